//! A unit: taking it over, making domains for it, letting go of it.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2,
//! 2.4, 2.5 and 3.4. Several units are several instances; nothing is shared between them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use portolan::addr::ContextId;
use portolan::inval::{Capabilities, Quirks};
use portolan::platform::{Cpus, Guarded, Mmio, Nanos, TableMem, poll};
use portolan::table::PageTable;
use portolan::table::format::{AmdLevels, AmdV1};
use portolan::unit::{Awaited, PagedDomain, UnitError};

use super::attach::Home;
use super::capability::Capability;
use super::control::{Control, Turn};
use super::counts::Counts;
use super::device_table::DeviceTable;
use super::events::Events;
use super::features::Features;
use super::queue::Queue;
use super::shared::{AmdQueue, DOMAINS, Shared};
use super::spec::reg::{self, control, status};
use crate::ids::Ids;

/// Domain identifier of streams that pass through. Identifier 0 stays in entries that block.
pub(super) const PASS: u16 = 1;

/// How a unit is to be driven.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long to wait for the hardware, each time.
    pub limit: Nanos,
    /// Commands in the command buffer as an exponent, from 8 to 15.
    pub queue_lg2: u32,
    /// Events in the event log as an exponent, from 8 to 15.
    pub events_lg2: u32,
    /// Streams in the device table as an exponent, from 7 to 16. Others are not of this unit.
    pub streams_lg2: u32,
    /// Width of physical addresses in bits, if the capability block does not say.
    pub output_lg2: u32,
    /// What the invalidation plans are to know beyond the hardware's own word.
    pub quirks: Quirks,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1000),
            queue_lg2: 8,
            events_lg2: 8,
            streams_lg2: 16,
            output_lg2: 48,
            quirks: Quirks::default(),
        }
    }
}

/// What the unit remembers of streams.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Where each stream is that is not blocked.
    pub(super) homes: BTreeMap<u16, Home>,
    /// What the hardware may still reach after a failure.
    pub(super) limbo: Vec<(u16, Home)>,
}

impl Drop for Known {
    /// What the hardware may still reach is never freed.
    fn drop(&mut self) {
        core::mem::forget(core::mem::take(&mut self.homes));
        core::mem::forget(core::mem::take(&mut self.limbo));
    }
}

/// A domain of this unit.
pub type AmdDomain<R, M, C> = PagedDomain<AmdV1, M, AmdQueue<R, M, C>>;

/// One IOMMU with AMD-Vi's registers `R`, tables in memory `M`, and clock `C`.
///
/// *Locking.* Streams are moved one at a time; whoever waits for that waits no longer than the
/// limit. When it is dropped, all streams are blocked, and nothing that the hardware may use is
/// freed: neither its own tables nor, if it does not follow, the domains of its streams.
#[derive(Debug)]
pub struct AmdVi<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> {
    pub(super) shared: Arc<Shared<R, M, C>>,
    config: Config,
    pub(super) moves: Turn,
    pub(super) table: DeviceTable,
    pub(super) known: Guarded<C, Known>,
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> AmdVi<R, M, C> {
    /// Takes the unit with `capability` over: every stream is blocked. What firmware left on is
    /// turned off first; until this returns, accesses may pass.
    ///
    /// # Errors
    /// See [`UnitError`]. Memory that the hardware may have been told of is then not freed.
    pub fn enable(
        regs: R,
        mem: M,
        clock: C,
        capability: Capability,
        config: Config,
    ) -> Result<Self, UnitError> {
        let features = Features::read(&regs, capability)?;
        let control = Control::new(regs, mem, clock, config.limit, features);
        let queue = Queue::new(&control.mem, config.queue_lg2)?;
        let events = match Events::new(&control.mem, config.events_lg2) {
            Ok(events) => events,
            Err(error) => {
                queue.free(&control.mem);
                return Err(error.into());
            }
        };
        let table = DeviceTable::new(&control.mem, config.streams_lg2)
            .map_err(UnitError::from)
            .and_then(|table| match quiet(&control) {
                Ok(()) => Ok(table),
                Err(error) => {
                    table.free(&control.mem);
                    Err(error)
                }
            })
            .inspect_err(|_| {
                queue.free(&control.mem);
                events.free(&control.mem);
            })?;
        let shared = Shared {
            control,
            queue,
            events,
            ids: Ids::new(u32::from(PASS) + 1, DOMAINS - 1),
            streams: table.streams(),
        };
        let unit = Self {
            shared: Arc::new(shared),
            config,
            moves: Turn::default(),
            table,
            known: Guarded::new(Known::default()),
        };
        unit.start()?;
        Ok(unit)
    }

    /// From a quiet unit to one that blocks everything.
    fn start(&self) -> Result<(), UnitError> {
        let Shared {
            control: unit,
            queue,
            events,
            ..
        } = &*self.shared;
        let regs = &unit.regs;
        regs.write64(reg::DEVICE_TABLE, self.table.address());
        regs.write64(reg::COMMAND_BASE, queue.address());
        regs.write64(reg::EVENT_BASE, events.address());
        for pointer in [
            reg::COMMAND_HEAD,
            reg::COMMAND_TAIL,
            reg::EVENT_HEAD,
            reg::EVENT_TAIL,
        ] {
            regs.write64(pointer, 0);
        }
        // Memory that firmware excluded from translation: none from now on.
        regs.write64(reg::EXCLUSION_BASE, 0);
        regs.write64(reg::EXCLUSION_LIMIT, 0);
        let old = status::EVENT_OVERFLOW | status::EVENT_INTERRUPT | status::WAIT_INTERRUPT;
        regs.write64(reg::STATUS, old);
        let on = control::ENABLE | control::COMMANDS | control::EVENT_LOG | control::COHERENT;
        unit.switch(control::FIRMWARE, on)?;
        let run = status::COMMANDS_RUN | status::EVENT_RUNS;
        unit.await_status(run, run)?;
        self.shared.forget_everything()
    }

    /// What the unit can do.
    pub fn features(&self) -> &Features {
        &self.shared.control.features
    }

    /// What the plans of domains know of the hardware.
    pub fn capabilities(&self) -> Capabilities {
        self.features().capabilities()
    }

    /// A handle to its invalidations.
    pub fn queue(&self) -> AmdQueue<R, M, C> {
        AmdQueue(Arc::clone(&self.shared))
    }

    /// Commands submitted so far.
    pub fn counts(&self) -> Counts {
        self.shared.control.counters.read()
    }

    /// Turns the unit off and frees its own tables: from now on devices reach all memory,
    /// untranslated. For handing the machine over.
    ///
    /// # Errors
    /// If the hardware does not follow. What it may use then stays allocated.
    pub fn release(self) -> Result<(), UnitError> {
        let unit = &self.shared.control;
        let (homes, limbo) = {
            let mut known = self.known.lock();
            let homes = core::mem::take(&mut known.homes);
            (homes, core::mem::take(&mut known.limbo))
        };
        // Entries that name the domains are gone before the domains are.
        if let Err(error) = self.block_table(homes.keys().chain(limbo.iter().map(|(at, _)| at))) {
            // The entries block already; what they led to may still be cached.
            let mut known = self.known.lock();
            known.limbo = limbo.into_iter().chain(homes).collect();
            return Err(error);
        }
        // While commands are fetched, by which domains that nobody else holds say good-bye.
        drop((homes, limbo));
        let drained = || match self.shared.queue.drained(unit) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        let awaited = Awaited::Completion;
        poll(&unit.clock, unit.limit, drained)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }))?;
        quiet(unit)?;
        self.table.free(&unit.mem);
        let shared = Arc::clone(&self.shared);
        drop(self);
        // Domains that are still held keep the queue: they will find it off.
        if let Some(shared) = Arc::into_inner(shared) {
            shared.queue.free(&shared.control.mem);
            shared.events.free(&shared.control.mem);
        }
        Ok(())
    }
}

impl<R: Mmio, M: TableMem<AtomicU64> + Clone, C: Cpus> AmdVi<R, M, C> {
    /// An empty domain with 48-bit addresses.
    ///
    /// # Errors
    /// [`UnitError::OutOfContexts`], [`UnitError::Memory`].
    pub fn domain(&self) -> Result<AmdDomain<R, M, C>, UnitError> {
        self.domain_as(AmdLevels::Four, self.capabilities(), self.config.quirks)
    }

    /// As [`AmdVi::domain`], with everything chosen by the caller.
    ///
    /// # Errors
    /// As there; and [`UnitError::Unsupported`] for more levels than the unit walks.
    pub fn domain_as(
        &self,
        levels: AmdLevels,
        caps: Capabilities,
        quirks: Quirks,
    ) -> Result<AmdDomain<R, M, C>, UnitError> {
        if !self.features().walks(levels) {
            return Err(UnitError::Unsupported);
        }
        let told = self.features().capability.physical_lg2;
        let format = AmdV1 {
            levels,
            output_lg2: told.unwrap_or(self.config.output_lg2),
        };
        let table = PageTable::new(format, self.shared.control.mem.clone())?;
        let context = ContextId::new(self.shared.take_id()?.into());
        Ok(PagedDomain::new(table, context, caps, quirks, self.queue()))
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Drop for AmdVi<R, M, C> {
    fn drop(&mut self) {
        // A failure leaves what it concerns in limbo, which is kept.
        let _ = self.block_all();
    }
}

/// Stops whatever runs: commands, the log, and the unit.
fn quiet<R: Mmio, M, C: Cpus>(unit: &Control<R, M, C>) -> Result<(), UnitError> {
    unit.switch(control::FIRMWARE, 0)?;
    unit.await_status(status::COMMANDS_RUN | status::EVENT_RUNS, 0)
}
