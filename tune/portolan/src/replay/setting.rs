//! A setting of Linux that is advised: its place and value, its effect, the reason, and the evidence.
//!
//! It cannot be made without the line of the trace that speaks for it.

use serde::Serialize;

use super::cost::Causes;
use super::situation::Now;
use crate::counts::Exposed;
use crate::trace::Excerpt;

/// Rule that gave the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A group's type `DMA-FQ`.
    LazyGroup,
    /// `iommu.strict=0`.
    LazyKernel,
    /// `iommu.strict=1`.
    StrictKernel,
    /// `intel_iommu=sm_on`, or a kernel that is lazy then.
    FirstStage,
    /// `iommu.passthrough=1` or a group's type `identity`.
    Identity,
    /// Removal of `swiotlb=force`.
    NoForcedBounce,
    /// An IOMMU instead of bouncing.
    IommuForBounce,
    /// `swiotlb=SLOTS,AREAS`.
    BouncePool,
    /// A kernel whose bounce pool has areas.
    BounceAreas,
    /// Huge pages.
    HugePages,
    /// Buffers that stay mapped.
    KeepMapped,
    /// `iommu.forcedac=1`, or a kernel that needs none.
    ForceDac,
    /// `pci=noats`.
    NoAts,
}

/// Object that a setting changes: of settings with the same target one is advised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Time of invalidation of unmapped addresses, and translation of DMA as such.
    Policy,
    /// Use and shape of the bounce pool.
    Pool,
    /// The shape of buffers.
    Pieces,
    /// Lifetimes of mappings.
    Lifetimes,
    /// Choice of the addresses that are given out.
    Addresses,
    /// Device TLBs.
    DeviceTlb,
}

impl Rule {
    /// Object that it changes.
    pub fn target(self) -> Target {
        match self {
            Self::LazyGroup
            | Self::LazyKernel
            | Self::StrictKernel
            | Self::FirstStage
            | Self::Identity => Target::Policy,
            Self::NoForcedBounce | Self::IommuForBounce | Self::BouncePool | Self::BounceAreas => {
                Target::Pool
            }
            Self::HugePages => Target::Pieces,
            Self::KeepMapped => Target::Lifetimes,
            Self::ForceDac => Target::Addresses,
            Self::NoAts => Target::DeviceTlb,
        }
    }

    /// Tells if the kernel is lazy with it.
    pub(crate) fn is_lazy(self) -> bool {
        matches!(self, Self::LazyGroup | Self::LazyKernel | Self::FirstStage)
    }

    /// Tells if its gain depends on the times of events: a lazy kernel flushes by the clock.
    pub(super) fn needs_times(self) -> bool {
        self.is_lazy() || self == Self::StrictKernel
    }
}

/// A setting that is advised.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Rule that gave it.
    pub rule: Rule,
    /// A file below `/sys`, or in words.
    pub where_to_set: String,
    /// The value to set there.
    pub value: String,
    /// Its effect.
    pub effect: Effect,
    /// Reason, as a sentence.
    pub reason: String,
    /// The line of the trace that speaks for it.
    pub evidence: Evidence,
    /// Facts and prices that qualify it.
    pub besides: Vec<Besides>,
    /// The price of it that is no time: a protection that is given up, as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub danger: Option<String>,
    /// Note on it, as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
    /// Assumptions, since neither trace nor facts say it; sentences.
    pub assumes: Vec<String>,
}

/// Effect of a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// Description in words, without the time.
    pub says: String,
    /// Saved time, if there are prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving: Option<Saving>,
    /// Cost of Linux with the setting, if it means another policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub then: Option<Then>,
}

/// Linux under a policy that it did not have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Then {
    /// The policy.
    pub policy: Now,
    /// Invalidations at most.
    pub invalidations: u64,
    /// The CPU time by cause.
    pub causes: Causes,
    /// Time that devices wait for walks, in microseconds.
    pub device_wait_us: f64,
    /// Memory that stays reachable after unmap.
    pub exposed: Exposed,
}

/// A saving of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saving {
    /// CPU time that mapping costs now, in microseconds of the trace; the same for all settings.
    pub before_us: f64,
    /// CPU time that it costs then.
    pub after_us: f64,
    /// The least and the most that this may be.
    pub after_range_us: [f64; 2],
    /// Saved percentage.
    pub pct: f64,
    /// Smallest and largest saved percentage that prices and trace allow.
    pub range_pct: [f64; 2],
}

/// A line of the trace that shows why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Its number, from 1.
    pub line: u64,
    /// Its text.
    pub text: String,
    /// Meaning of the line.
    pub shows: String,
    /// Number of lines of the kind in the trace; this is the first, or the one with the highest count.
    pub count: u64,
}

/// A fact of the machine, or a price of its profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Besides {
    /// `fact`, `price` or `rule`.
    pub kind: &'static str,
    /// Name of the fact, price or rule.
    pub name: String,
    /// Text, with its source.
    pub says: String,
}

impl Evidence {
    /// The line that `excerpt` has, the first of `count`.
    pub(super) fn of(excerpt: &Excerpt, shows: String, count: u64) -> Self {
        Self { line: excerpt.line, text: excerpt.text.clone(), shows, count }
    }
}

impl Besides {
    /// A fact.
    pub(super) fn fact(name: impl Into<String>, says: impl Into<String>) -> Self {
        Self { kind: "fact", name: name.into(), says: says.into() }
    }
}

impl Effect {
    /// Per cent that are saved in any case; 0 if no price tells.
    pub(super) fn sure_pct(&self) -> f64 {
        self.saving.map_or(0.0, |saving| saving.range_pct[0])
    }
}

impl Saving {
    /// Saving from `before_us` to `after_us`, with its range in per cent; `None` if nothing costs anything.
    pub(super) fn of(before_us: f64, after_us: f64, range_pct: [f64; 2]) -> Option<Self> {
        let pct = pct(before_us, after_us)?;
        let [low, high] = range_pct;
        let range_pct = [low.min(high).min(pct), low.max(high).max(pct)];
        let [least, most] = range_pct.map(|pct| before_us * (1.0 - pct / 100.0));
        Some(Self { before_us, after_us, after_range_us: [most, least], pct, range_pct })
    }

    /// Changes the range of the time afterwards to `after_range_us`.
    pub(super) fn to(self, after_range_us: [f64; 2]) -> Self {
        Self { after_range_us, ..self }
    }
}

/// Percentage of `before` that `after` saves.
pub(super) fn pct(before: f64, after: f64) -> Option<f64> {
    let pct = 100.0 * (1.0 - after / before);
    (before > 0.0 && pct.is_finite()).then_some(pct)
}

impl Setting {
    /// Words to type or to write: a shell's line for a file below `/sys`.
    pub fn command(&self) -> String {
        if self.where_to_set.starts_with('/') {
            format!("echo {} > {}", self.value, self.where_to_set)
        } else {
            format!("{}: {}", self.where_to_set, self.value)
        }
    }
}
