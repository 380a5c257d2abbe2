//! Linux's own rules: what it would have submitted for the operations of a trace.
//!
//! Rules of Linux 6.12, DMA through the IOMMU on VT-d:
//!
//! * Each device has its own domain.
//! * Strict: each unmap submits one page-selective invalidation, the smallest aligned power of two
//!   that covers it, or the whole domain where the unit cannot express that.
//! * Lazy: a queue for each CPU and a timer for each domain ([`queues`](self)); a flush invalidates the
//!   whole domain once.
//! * Caching mode with second-stage tables: strict, whatever was asked for, and each map submits what
//!   its unmap does. With first-stage tables nothing at map, and lazy is allowed.
//!
//! Which of strict and lazy follows is the library's own [`default_policy`] for a driver that keeps
//! its buffers. Not modelled: devices that share a domain, device TLBs, and the copies made for
//! devices that are not trusted.

mod args;
mod count;
mod queues;

pub use args::{Asked, CachingMode, LinuxArgs, StageName};
pub use count::{Counter, DomainReport, LinuxReport};

use anyhow::{Result, bail};
use portolan::dma::{
    Buffers, Decision, DeviceTlb, Policy, PolicyInputs, PolicyPreference, Shadowing, Stage,
    TrapCost, Trust, default_policy,
};
use portolan::inval::{Caching, RangeForm};
use portolan_model::decode::TableFormat;
use portolan_model::profile::Profile;

/// When a lazy domain's timer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Nanoseconds between ticks; timers run at ticks.
    pub tick_ns: u64,
}

impl Default for Timer {
    /// 4 ms (`CONFIG_HZ=250`).
    fn default() -> Self {
        Self { tick_ns: 4_000_000 }
    }
}

/// The kernel and its IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// What the kernel was told.
    pub asked: Asked,
    /// Whether the unit reports caching mode.
    pub caching: Caching,
    /// Which tables the kernel uses.
    pub stage: Stage,
    /// Largest address mask of a page-selective invalidation, an exponent of pages.
    pub max_mask: u8,
    /// Ticks.
    pub timer: Timer,
}

/// What the command line says; what it leaves out is the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the kernel was told.
    pub asked: Asked,
    /// Caching mode, if said.
    pub caching: Option<CachingMode>,
    /// Tables, if said.
    pub stage: Option<StageName>,
    /// Ticks.
    pub timer: Timer,
}

/// Which VT-d tables a machine walks; `None` if it is no VT-d.
pub fn stage_of(profile: &Profile) -> Option<Stage> {
    let format = profile.format();
    let is = |made: Result<TableFormat, _>| made.as_ref().ok() == Some(&format);
    if [3, 4, 5]
        .map(TableFormat::vtd_second_stage)
        .map(is)
        .contains(&true)
    {
        Some(Stage::Second)
    } else if [4, 5]
        .map(TableFormat::vtd_first_stage)
        .map(is)
        .contains(&true)
    {
        Some(Stage::First)
    } else {
        None
    }
}

impl Rules {
    /// The rules for `profile`, as far as `options` do not say otherwise.
    ///
    /// # Errors
    /// If the machine is no VT-d, or the options contradict each other.
    pub fn new(profile: &Profile, options: &Options) -> Result<Self> {
        let caps = profile.capabilities();
        let (Some(stage), RangeForm::PowerOfTwo { max_lg2_pages }) =
            (stage_of(profile), caps.range)
        else {
            bail!(
                "Linux's rules are known for VT-d with page-selective invalidation, which machine {} \
                 is not",
                profile.name()
            );
        };
        Ok(Self {
            asked: options.asked,
            caching: match options.caching {
                Some(CachingMode::On) => Caching::NotPresentToo,
                Some(CachingMode::Off) => Caching::PresentOnly,
                None if profile.surroundings().shadowing == Shadowing::CachingMode => {
                    Caching::NotPresentToo
                }
                None => Caching::PresentOnly,
            },
            stage: match options.stage {
                Some(StageName::First) => Stage::First,
                Some(StageName::Second) => Stage::Second,
                None => stage,
            },
            max_mask: max_lg2_pages,
            timer: options.timer,
        })
    }

    /// Strict or lazy, and why.
    pub fn decision(&self) -> Decision {
        default_policy(&PolicyInputs {
            trust: Trust::Trusted,
            stage: self.stage,
            shadowing: match self.caching {
                Caching::NotPresentToo => Shadowing::CachingMode,
                Caching::PresentOnly => Shadowing::None,
            },
            device_tlb: DeviceTlb::Absent,
            exits: TrapCost::None,
            buffers: Buffers::Kept,
            wish: match self.asked {
                Asked::Strict => PolicyPreference::Strict,
                Asked::Lazy => PolicyPreference::Lazy,
            },
        })
    }

    /// Whether the tables are shadowed, so that maps owe an invalidation.
    fn shadowed(&self) -> bool {
        (self.caching, self.stage) == (Caching::NotPresentToo, Stage::Second)
    }

    fn is_lazy(&self) -> bool {
        self.decision().policy == Policy::Lazy
    }
}
