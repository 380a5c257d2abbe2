//! Linux's own rules: the commands that it would have submitted for the operations of a trace.
//!
//! Rules of Linux 6.12 to 7.3, DMA through the IOMMU on VT-d and AMD-Vi, each read from the kernel's source
//! (`docs/replay.md` names the functions):
//!
//! * Each device has its own domain.
//! * Strict: each unmap waits for its invalidation (`units.rs` has the commands).
//! * Lazy: a queue for each CPU and a timer for each domain (`queues.rs`, `timer.rs`); a flush invalidates the whole
//!   domain once. Since 7.3 mappings of the two-step API are invalidated at once (`kernel.rs`).
//! * Where the unit caches entries that are not present: strict, even if lazy was asked for, and each map submits the
//!   commands of its unmap. With first-stage tables of VT-d nothing at map, and lazy is allowed.
//!
//! On VT-d strict or lazy is the library's own [`default_policy`](portolan::dma::default_policy) for a driver that
//! keeps its buffers. Not modelled: devices that share a domain, device TLBs, and the copies made for devices that
//! are not trusted.

mod args;
mod count;
mod kernel;
mod queues;
#[cfg(test)]
mod tests;
mod timer;
mod times;
mod units;

pub use args::{CachingMode, LinuxArgs, StageName};
pub use count::{Counter, DeviceInterval, DomainReport, LinuxReport};
pub use kernel::{CpuTime, Kernel, Release};
pub use times::LinuxTimes;
pub(crate) use times::MOST_CACHED_PAGES;
pub use units::LinuxUnit;

use anyhow::{Result, bail};
use portolan::dma::{Decision, Policy, PolicyPreference, Shadowing, Stage};
use portolan::inval::{Caching, RangeForm};
use portolan_sim::decode::TableFormat;
use portolan_sim::profile::Profile;

/// The kernel, its setting of `iommu.strict`, and its IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Setting of `iommu.strict`.
    pub asked: PolicyPreference,
    /// The unit and its tables.
    pub unit: LinuxUnit,
    /// The kernel; `None` for that of the trace.
    pub kernel: Option<Kernel>,
}

/// Options of the command line; the machine supplies the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Setting of `iommu.strict`.
    pub asked: PolicyPreference,
    /// Caching mode or `NpCache`, if said.
    pub caching: Option<CachingMode>,
    /// Tables, if said.
    pub stage: Option<StageName>,
    /// The kernel; `None` for that of the trace.
    pub kernel: Option<Kernel>,
}

/// Stage of the VT-d tables that a machine walks; `None` if it is no VT-d.
pub fn stage_of(profile: &Profile) -> Option<Stage> {
    let format = profile.format();
    let is = |made: Result<TableFormat, _>| made.as_ref().ok() == Some(&format);
    if [3, 4, 5].map(TableFormat::vtd_second_stage).map(is).contains(&true) {
        Some(Stage::Second)
    } else if [4, 5].map(TableFormat::vtd_first_stage).map(is).contains(&true) {
        Some(Stage::First)
    } else {
        None
    }
}

/// Tells if a machine walks AMD's tables of version 1.
fn is_amd(profile: &Profile) -> bool {
    let made = (3..=6).map(TableFormat::amd_v1);
    made.flatten().any(|format| format == profile.format())
}

impl Rules {
    /// Rules for `profile`; `options` override them.
    ///
    /// # Errors
    /// If Linux's rules for the machine are not known, or it has no such tables.
    pub fn new(profile: &Profile, options: &Options) -> Result<Self> {
        let caching = match options.caching {
            Some(CachingMode::On) => Caching::NotPresentToo,
            Some(CachingMode::Off) => Caching::PresentOnly,
            None if profile.surroundings().shadowing == Shadowing::CachingMode => {
                Caching::NotPresentToo
            }
            None if is_amd(profile) => profile.capabilities().caching,
            None => Caching::PresentOnly,
        };
        let unit = match (stage_of(profile), profile.capabilities().range) {
            (Some(stage), RangeForm::PowerOfTwo { max_lg2_pages }) => LinuxUnit::Vtd {
                caching,
                stage: match options.stage {
                    Some(StageName::First) => Stage::First,
                    Some(StageName::Second) => Stage::Second,
                    None => stage,
                },
                max_mask: max_lg2_pages,
            },
            (None, _) if is_amd(profile) && options.stage.is_none() => LinuxUnit::Amd { caching },
            (None, _) if is_amd(profile) => {
                bail!("--stage is VT-d's: machine {} walks AMD's tables", profile.name())
            }
            _ => bail!(
                "Linux's rules are known for VT-d with page-selective invalidation and for AMD-Vi, which machine {} \
                 is not",
                profile.name()
            ),
        };
        Ok(Self { asked: options.asked, unit, kernel: options.kernel })
    }

    /// Rules for the kernel of a trace, unless they name one.
    #[must_use]
    pub fn of_trace(self, kernel: Kernel) -> Self {
        Self { kernel: Some(self.kernel.unwrap_or(kernel)), ..self }
    }

    /// The setting in reports.
    fn asked_name(&self) -> &'static str {
        match self.asked {
            PolicyPreference::None => "none",
            PolicyPreference::Strict => "strict",
            PolicyPreference::Lazy => "lazy",
        }
    }

    /// Strict or lazy, and why.
    pub fn decision(&self) -> Decision {
        self.unit.decision(self.asked)
    }

    fn is_lazy(&self) -> bool {
        self.decision().policy == Policy::Lazy
    }
}
