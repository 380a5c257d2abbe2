//! A machine's default policy and what strict unmaps cost there: one answer for all commands.
//!
//! `explain`, `replay` and `scale` all print what is here, so that none of them recommends what
//! another one advises against.

use portolan::dma::{
    Buffers, Decision, Policy, PolicyInputs, PolicyPreference, Stage, default_policy,
};
use portolan_model::profile::{ContextKind, Event, Profile};
use serde::Serialize;

use crate::linux::stage_of;
use portolan_cli::display::grouped;

/// The policies of a machine where nobody asked for one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// For drivers that keep their buffers.
    pub kept: Default,
    /// For drivers that hand them over.
    pub owned: Default,
    /// Whether lazy is possible for a trusted device where it is asked for: `yes` or `no`.
    pub lazy_if_asked: &'static str,
    /// What unmapping one page takes under strict, if the profile says all of it.
    pub unmap: Option<UnmapCost>,
}

/// A policy that nobody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Default {
    /// `strict`, `deferred` or `lazy`.
    pub policy: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// What one strict unmap of a page takes the CPU that waits, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UnmapCost {
    /// The call and the entry.
    pub work_ns: f64,
    /// The command, by range where there are ranges, and its sync.
    pub invalidation_ns: f64,
    /// The least and the most that may be, where the evidence for a price leaves a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidation_range_ns: Option<[f64; 2]>,
}

/// What `profile` says of its machine, for a driver that keeps its buffers and nothing asked.
pub fn facts_of(profile: &Profile) -> PolicyInputs {
    let around = profile.surroundings();
    let stage = stage_of(profile).unwrap_or(match profile.context() {
        ContextKind::Asid => Stage::First,
        ContextKind::Vmid | ContextKind::Domain => Stage::Second,
    });
    PolicyInputs {
        trust: around.trust,
        stage,
        shadowing: around.shadowing,
        device_tlb: around.device_tlb,
        exits: around.exits,
        buffers: Buffers::Kept,
        wish: PolicyPreference::None,
    }
}

/// The name of `policy` in reports.
pub(crate) const fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Strict => "strict",
        Policy::Deferred => "deferred",
        Policy::Lazy => "lazy",
    }
}

impl From<Decision> for Default {
    fn from(decision: Decision) -> Self {
        Self {
            policy: policy_name(decision.policy),
            reason: decision.reason,
        }
    }
}

impl Advice {
    /// For the machine of `profile`.
    pub fn of(profile: &Profile) -> Self {
        let kept = facts_of(profile);
        let decide = |buffers, wish| {
            default_policy(&PolicyInputs {
                buffers,
                wish,
                ..kept
            })
        };
        let asked = decide(Buffers::Kept, PolicyPreference::Lazy);
        Self {
            kept: default_policy(&kept).into(),
            owned: decide(Buffers::Owned, PolicyPreference::None).into(),
            lazy_if_asked: match asked.policy {
                Policy::Lazy => "yes",
                Policy::Strict | Policy::Deferred => "no",
            },
            unmap: UnmapCost::of(profile),
        }
    }

    /// As sentences, a line each.
    pub fn text(&self) -> String {
        let mut said = format!(
            "Where nobody asks, drivers that keep their buffers get {}, those that hand them over {}. {}\n",
            self.kept.policy, self.owned.policy, self.kept.reason
        );
        if let Some(unmap) = &self.unmap {
            said.push_str(&unmap.text());
            said.push('\n');
        }
        said
    }
}

impl UnmapCost {
    /// Of `profile`; nothing if a price is missing.
    pub fn of(profile: &Profile) -> Option<Self> {
        let quote = |event| profile.quote(event).ok();
        let work = quote(Event::UnmapCall)?.ns + quote(Event::UnmapPage)?.ns;
        let command = quote(Event::CmdRange).or_else(|| quote(Event::CmdPage))?;
        let sync = quote(Event::Sync)?;
        let range = [command.low() + sync.low(), command.high() + sync.high()];
        Some(Self {
            work_ns: work,
            invalidation_ns: command.ns + sync.ns,
            invalidation_range_ns: Some(range).filter(|[low, high]| low < high),
        })
    }

    fn text(&self) -> String {
        let whole = |ns: f64| grouped(ns.round() as u64);
        let share = 100.0 * self.invalidation_ns / (self.work_ns + self.invalidation_ns);
        let range = match self.invalidation_range_ns {
            Some([low, high]) => format!(" (from {} to {})", whole(low), whole(high)),
            None => String::new(),
        };
        format!(
            "A strict unmap of one page takes {} ns of table work and {} ns{range} of invalidation and sync, \
             {share:.0} % of it.",
            whole(self.work_ns),
            whole(self.invalidation_ns),
        )
    }
}
