//! A unit: taking it over, making domains for it, letting go of it.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2,
//! 2.4, 2.5 and 3.4. Several units are several instances; nothing is shared between them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64};

use portolan::addr::InvalTag;
use portolan::inval::{Capabilities, Quirks, Ranges};
use portolan::iommu::{InterruptTarget, IommuError, PagedDomain};
use portolan::platform::{AllMemory, Guarded, TableMem, UnitPlatform};
use portolan::table::Format as _;
use portolan::table::PageTable;
use portolan::table::format::{AmdLevels, AmdV1};

use super::command;
use super::command::AmdControl;
use super::command::Counts;
use super::config::Config;
use super::counters_in_use::CountersInUse;
use super::faults::Logs;
use super::features::{Capability, Features};
use super::former::KeptEntry;
use super::guest::guest_names;
use super::prepared;
use super::queue;
use super::queue::{AmdQueue, AmdShared, FIRST, NOTHING};
use super::tables::{AmdInterruptTables, DeviceTable};
use super::tables::{AmdPlace, Attachment, MoverState, Streams};
use super::takeover::{start, stop_rings, turn_off};
use crate::chassis::book::Book;
use crate::chassis::handed::Adopted;
use crate::chassis::sets::Sets;
use crate::chassis::{Operation, Ring, Submitters};
use crate::ids::Ids;
use crate::promise::leading_to_firmware;
use crate::reservations::Reservations;
use portolan_tables::describe::UnitKind;

/// Identifiers of domains.
pub(super) fn domain_ids<P: UnitPlatform>() -> Ids<P> {
    Ids::new(FIRST.into(), u32::from(NOTHING) - 1)
}

/// A domain of this unit.
pub type AmdDomain<P> = PagedDomain<AmdV1, <P as UnitPlatform>::Memory, AmdQueue<P>>;

/// One IOMMU with AMD-Vi's registers on the machine `P`.
///
/// *Locking.* Streams are moved one at a time; a caller waits for its turn no longer than the
/// limit. When it is dropped, all streams are blocked, and nothing that the hardware may use is
/// freed: neither its own tables nor, if it does not follow, the domains of its streams.
pub struct AmdVi<P: UnitPlatform> {
    pub(super) shared: Arc<AmdShared<P>>,
    pub(crate) config: Config,
    pub(super) table: DeviceTable,
    pub(super) book: Book<P, u16, AmdPlace, MoverState>,
    pub(super) remap: Option<AmdInterruptTables<P>>,
    /// Target of the interrupt that events raise, if they do.
    pub(super) signals: Guarded<P, Option<InterruptTarget>>,
    pub(super) adopted: Adopted<P, Self>,
    pub(super) counters: Guarded<P, CountersInUse>,
}

crate::chassis::opaque!(AmdVi, AtomicU64);

/// Memory that the hardware is going to be told of.
struct AmdAllocations<P: UnitPlatform> {
    queue: Ring<P>,
    logs: Logs<P>,
    table: DeviceTable,
}

impl<P: UnitPlatform> AmdAllocations<P> {
    fn new(mem: &impl TableMem<AtomicU64>, config: &Config) -> Result<Self, IommuError> {
        let queue: Ring<P> = queue::ring(mem, config.queue_lg2)?;
        let logs = Logs::new(mem, config).inspect_err(|_| queue.free(mem))?;
        let table = DeviceTable::new(mem, config);
        let table = table.inspect_err(|_| {
            queue.free(mem);
            logs.free(mem);
        })?;
        Ok(Self { queue, logs, table })
    }

    fn free(&self, mem: &impl TableMem<AtomicU64>) {
        self.queue.free(mem);
        self.logs.free(mem);
        self.table.free(mem);
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// Takes the unit with `capability` over: streams reach the memory that [`Config::reserved`]
    /// names for them, and all others are blocked. A unit that was on is never off meanwhile: until
    /// the new table counts, devices reach the mappings of firmware or a previous kernel.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`IommuError`]. Memory that the hardware may have been told of is then not freed.
    pub fn enable(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        capability: Capability,
        config: Config,
    ) -> Result<Self, IommuError> {
        let features = Features::read(&regs, capability, config.host_translation)?;
        let control = AmdControl::new(regs, mem, clock, config.limit, features);
        Self::enable_keeping(control, config, |_, _, _| Ok(Vec::new()))
    }

    /// As [`AmdVi::enable`], with the entries that `keep` makes of the unit as it is found.
    pub(super) fn enable_keeping(
        control: AmdControl<P>,
        mut config: Config,
        keep: impl FnOnce(&AmdControl<P>, &DeviceTable, &Ids<P>) -> Result<Vec<KeptEntry>, IommuError>,
    ) -> Result<Self, IommuError> {
        let features = control.features;
        features.can_mark(config.dirty)?;
        features.can_log_requests(config.requests_lg2)?;
        features.can_post(&config)?;
        config.reserved.within(prepared::address_lg2(&features, &config));
        config.reserved.hold(UnitKind::AmdVi.not_translated());
        let mem = &control.mem;
        let remap = config.interrupts;
        let remap = remap.map(|wanted| AmdInterruptTables::new(&features, wanted)).transpose()?;
        let parts = AmdAllocations::new(mem, &config)?;
        if remap.is_some() {
            parts.table.abort_interrupts(mem);
        }
        let ids = domain_ids();
        let (kept, prepared) = keep(&control, &parts.table, &ids)
            .and_then(|kept| {
                Ok((kept, prepared::prepare(mem, &features, &ids, &parts.table, &config)?))
            })
            .and_then(|all| stop_rings(&control).map(|()| all))
            .inspect_err(|_| parts.free(mem))?;
        for KeptEntry { stream, memory } in &kept {
            parts.table.prepare(mem, *stream, *memory);
        }
        let AmdAllocations { queue, logs, table } = parts;
        let ranges = Ranges::of(&features.capabilities());
        let submitters = Submitters::new(&control.clock, ranges, config.combining);
        let shared = Arc::new(AmdShared {
            control,
            queue,
            logs,
            requests_cut: AtomicBool::new(false),
            atcs: Sets::default(),
            ids,
            guest_ids: guest_names(),
            guests: Sets::default(),
            nested: Sets::default(),
            streams: table.streams(),
            entries: table.at(0),
            submitters,
            operation: Operation::default(),
        });
        if let Err(error) = start(&shared, &table, &config) {
            for mut of in prepared {
                of.table.keep();
            }
            return Err(error);
        }
        let mut known = Streams::new(MoverState::default());
        for of in prepared {
            let (id, streams) = (command::domain_of(of.context), of.streams);
            let caps = shared.control.features.capabilities();
            let queue = AmdQueue(Arc::clone(&shared));
            let domain = leading_to_firmware(of.table, of.context, caps, config.quirks, queue)
                .shadowed(shared.control.features.shadowing());
            let attachment = Attachment::new(AmdPlace::of(id), &Arc::new(domain));
            for streams in streams {
                for stream in table.within(streams) {
                    known.begin(stream, attachment.clone());
                }
            }
        }
        for one in kept {
            known.begin(one.stream, Attachment::without_domain(AmdPlace::of(one.domain())));
        }
        let (book, signals) = (Book::new(known), Guarded::default());
        let adopted = Adopted::default();
        let counters = Guarded::default();
        Ok(Self { shared, config, table, book, remap, signals, adopted, counters })
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// Addresses reserved for streams, and the reservations of [`Config::reserved`] that were
    /// ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reserved
    }

    /// Features of the unit.
    ///
    /// *Context.* Interrupt.
    pub fn features(&self) -> &Features {
        &self.shared.control.features
    }

    /// Capabilities of the hardware for the plans of domains.
    ///
    /// *Context.* Interrupt.
    pub fn capabilities(&self) -> Capabilities {
        self.features().capabilities()
    }

    /// A handle to its invalidations.
    ///
    /// *Context.* Interrupt.
    pub fn queue(&self) -> AmdQueue<P> {
        AmdQueue(Arc::clone(&self.shared))
    }

    /// Commands submitted so far.
    ///
    /// *Context.* Interrupt.
    pub fn counts(&self) -> Counts {
        self.shared.control.counters.read()
    }

    /// Turns the unit off and frees its own tables: from now on devices reach all memory,
    /// untranslated, as `_all` gives leave to. For handing the machine over.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the hardware does not follow. Memory that it may use then stays allocated.
    pub fn release(self, _all: AllMemory) -> Result<(), IommuError> {
        let unit = &self.shared.control;
        self.revoke_interrupts(None)?;
        self.silence_devices()?;
        let left = self.book.with(self.turn(), |streams| {
            // Entries that name the domains are gone before the domains are.
            match self.block_table(streams.not_blocked(..)) {
                Ok(()) => {
                    let pasids = streams.state.guests.pasids.settled(..);
                    Ok((streams.settled(..), pasids))
                }
                Err(error) => {
                    // The entries block already; what they led to may still be cached.
                    streams.unsettle(..);
                    streams.state.guests.pasids.unsettle(..);
                    Err(error)
                }
            }
        })?;
        // While commands are fetched: a domain without another holder still submits some when it is
        // dropped.
        drop(left?);
        self.shared.queue.drain(&*self.shared)?;
        turn_off(unit)?;
        self.table.free(&unit.mem);
        let guests = |streams: &mut Streams| core::mem::take(&mut streams.state.guests.tables);
        for table in self.book.with(self.turn().always(), guests)?.into_values() {
            table.free(&unit.mem);
        }
        self.free_interrupts()?;
        let shared = Arc::clone(&self.shared);
        drop(self);
        // Domains that are still held keep the queue: they will find it off.
        if let Some(shared) = Arc::into_inner(shared) {
            shared.queue.free(&shared.control.mem);
            shared.logs.free(&shared.control.mem);
        }
        Ok(())
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// An empty domain with 48-bit addresses, or as many bits as the unit takes.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::OutOfContexts`], [`IommuError::Memory`].
    pub fn domain(&self) -> Result<AmdDomain<P>, IommuError> {
        self.domain_as(AmdLevels::Four, self.capabilities(), self.config.quirks)
    }

    /// As [`AmdVi::domain`], with everything chosen by the caller.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As there; and [`IommuError::Unsupported`] for more levels than the unit walks.
    pub fn domain_as(
        &self,
        levels: AmdLevels,
        caps: Capabilities,
        quirks: Quirks,
    ) -> Result<AmdDomain<P>, IommuError> {
        if !self.features().walks(levels) {
            return Err(IommuError::Unsupported);
        }
        let format = self.features().format(&self.config, levels);
        let table = PageTable::new(format, self.shared.control.mem.clone())?;
        let table = table.limited(self.features().input_lg2(), format.page_sizes());
        let context = InvalTag::new(self.shared.take_id()?.into());
        let domain = PagedDomain::new(table, context, caps, quirks, self.queue());
        Ok(domain.shadowed(self.features().shadowing()))
    }
}

impl<P: UnitPlatform> Drop for AmdVi<P> {
    /// *Context.* Task: waits for the hardware.
    fn drop(&mut self) {
        // A failure leaves what it concerns unsettled, which is kept.
        let _ = self.revoke_interrupts(None);
        let _ = self.block_all();
    }
}
