//! The unit: taken over, and disabled again.
//!
//! IHI 0062, reset and initialisation. Everything is blocked before translation is turned on, but
//! for streams that [`Inherited::PassThrough`](super::Inherited::PassThrough) leaves as they are. A
//! unit that translated before goes on translating meanwhile: see [`takeover`].

use super::config::Config;
use super::config::WriteCounts;
use super::features::Features;
use super::machine::SmmuV2Hardware;
use super::queue::{SmmuV2Queue, SmmuV2Shared};
use super::quirks::Prefetch;
use super::streams::{GroupDestination, StreamGroups, StreamMatching};
use super::takeover;
use crate::chassis::arm::WhenDisabled;
use crate::chassis::book::{Attachment, Book, Streams};
use crate::chassis::{OperationState, common_methods, plain};
use crate::promise;
use crate::reservations::Reservations;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use portolan::iommu::{
    AttachError, BoundDomain, Conditions, Iommu, IommuDomains, IommuError, Stage,
};
use portolan::platform::{Guarded, UnitPlatform};
use portolan_spec::smmuv2::global::{self, cr0};

/// Position of the search for faults.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) next: usize,
    /// Records that were lost and not yet told.
    pub(super) lost: u32,
}

/// A unit that translates.
///
/// Streams are moved through the traits of `portolan::iommu`. When it is dropped it is disabled as
/// by [`SmmuV2::disable`]; if that fails, the domains that the hardware may still use stay
/// allocated for good. The unit itself has no memory.
///
/// *Locking.* No lock is held across a wait, and nothing is allocated under one. Streams are moved
/// one at a time: a caller waits for another's move, at most [`Config::limit`], and its error then
/// ([`Awaited::Turn`](portolan::iommu::Awaited)) says nothing of the hardware.
///
/// *Context.* Interrupt: [`next_fault`](portolan::iommu::Iommu::next_fault) and
/// [`next_stall`](SmmuV2::next_stall). Task: taking over, making domains, moving streams,
/// disabling, and dropping the unit, which disables it.
pub struct SmmuV2<P: UnitPlatform> {
    pub(super) shared: Arc<SmmuV2Shared<P>>,
    pub(super) mapping: StreamMatching,
    prefetch: Prefetch,
    /// Groups of streams by the number of their registers.
    pub(super) book: Book<P, usize, GroupDestination, StreamGroups>,
    pub(super) search: Guarded<P, Search>,
    pub(super) stopped: AtomicBool,
    pub(super) config: Config,
}

crate::chassis::opaque!(SmmuV2, AtomicU64);

/// Global faults are recorded, unmatched streams fault, invalidations of processors are not heard.
pub(super) const RUNNING: u32 =
    cr0::GFRE | cr0::GFIE | cr0::GCFGFRE | cr0::GCFGFIE | cr0::USFCFG | cr0::VMIDPNE | cr0::PTM;

impl<P: UnitPlatform> SmmuV2<P> {
    /// Takes the unit over: all streams are blocked, or pass through if they were inherited so.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`Features::read`]; [`IommuError::Unsupported`] also if
    /// [`Implementation::ThunderX`](super::Implementation::ThunderX) counts more banks than there
    /// are identifiers; [`IommuError::TimedOut`] if the unit does not forget its old state: streams
    /// are then blocked, unless it had not been translating before.
    pub fn enable(
        registers: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
    ) -> Result<Self, IommuError> {
        let features = Features::read(&registers)?.with_coherency(config.coherency);
        config.reserved.within(features.output_lg2);
        let machine = SmmuV2Hardware::new(registers, mem, clock, &config, features);
        if u32::from(machine.above_bank) + features.banks > u32::from(u16::MAX) {
            return Err(IommuError::Unsupported);
        }
        let taken = takeover::take_over(&machine, &config, RUNNING)?;
        let banks = taken.mapping.bypass_bank;
        let banks = banks.map_or(features.banks, |bank| bank.0.into());
        let shared = SmmuV2Shared::new(machine, config.implementation, banks);
        shared.operation.set(OperationState::Running);
        let inherited: Vec<_> = taken.groups.0.iter().map(|group| group.slot).collect();
        let mut streams = Streams::new(taken.groups);
        for slot in inherited {
            streams.begin(slot, Attachment::without_domain(GroupDestination::Through));
        }
        Ok(Self {
            shared: Arc::new(shared),
            mapping: taken.mapping,
            prefetch: taken.prefetch,
            book: Book::new(streams),
            search: Guarded::default(),
            stopped: AtomicBool::new(false),
            config,
        })
    }

    /// Features of the unit.
    ///
    /// *Context.* Interrupt.
    pub fn features(&self) -> &Features {
        &self.shared.machine.features
    }

    /// State of the prefetcher of an MMU-500. If it is [`Prefetch::On`], secure software did not
    /// clear SACR.CACHE_LOCK, and errata of the unit are not worked around.
    ///
    /// *Context.* Interrupt.
    pub fn prefetch(&self) -> Prefetch {
        self.prefetch
    }

    /// Registers written so far, by kind.
    ///
    /// *Context.* Interrupt.
    pub fn counts(&self) -> WriteCounts {
        self.shared.machine.counters.read()
    }

    /// Addresses reserved for streams, and the reservations of [`Config::reserved`] that were
    /// ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reserved
    }

    /// A handle to its invalidations.
    ///
    /// *Context.* Interrupt.
    pub fn queue(&self) -> SmmuV2Queue<P> {
        SmmuV2Queue(Arc::clone(&self.shared))
    }

    /// Blocks all streams and forgets everything; then accesses meet [`Config::when_disabled`].
    /// From then on streams cannot be moved, and domains can be dropped.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the unit does not follow: memory that it may still use is then kept until another call
    /// succeeds, or for good.
    pub fn disable(&self) -> Result<(), IommuError> {
        // A stream is moved before its group is blocked, or by who sees this: both take the book.
        self.stopped.store(true, Ordering::Relaxed);
        let blocked = self.block_all();
        self.shared.forget_everything()?;
        blocked.map_err(|error| match error {
            AttachError::Iommu(error) => error,
            _ => IommuError::Unsupported,
        })?;
        if let WhenDisabled::Bypass(_) = self.config.when_disabled {
            let machine = &self.shared.machine;
            machine.configure(global::CR0, RUNNING | cr0::CLIENTPD);
            machine.read(global::CR0)?;
        }
        Ok(())
    }
}

/// *Context.* Task.
impl<P: UnitPlatform> Drop for SmmuV2<P> {
    fn drop(&mut self) {
        // A failure leaves what it concerns unsettled, which is kept.
        if !self.stopped.load(Ordering::Relaxed) {
            let _ = self.disable();
        }
    }
}

impl<P: UnitPlatform> IommuDomains for SmmuV2<P> {
    /// First-stage tables; second-stage tables where there is no first stage.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        match self.conditions().stage {
            Stage::First => {
                let domain = Arc::new(self.first_stage::<12>(&Default::default())?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
            Stage::Second => {
                let domain = Arc::new(self.second_stage::<12>(&Default::default())?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
        }
    }

    fn conditions(&self) -> Conditions {
        plain(if self.features().stage1 { Stage::First } else { Stage::Second })
    }

    common_methods!();
}
