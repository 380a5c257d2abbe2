//! A unit: taking it over, making domains for it, letting go of it.
//!
//! Tegra X1 Technical Reference Manual, chapter 17.5.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;

use portolan::addr::InvalTag;
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{
    Awaited, BoundDomain, Conditions, Iommu, IommuDomains, IommuError, PagedDomain, Stage,
};
use portolan::platform::{AllMemory, Mmio, TableMem, UnitPlatform};
use portolan::table::PageTable;
use portolan::table::format::{Format, Tegra};

use super::config::Chip;
use super::config::Config;
use super::config::{Counters, Counts, WriteKind};
use super::shared::{self, BLOCKED, TegraQueue, TegraShared};
use super::tables::{TegraTables, reachable};
use crate::chassis::book::{Book, Streams};
use crate::chassis::{OperationState, Present, wait_until};
use crate::chassis::{common_methods, plain};
use crate::promise;
use crate::reservations::Reservations;
use portolan_spec::tegra_smmu::reg::{self, asid, config, tlb_flush};

/// Destination of a stream that is not blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamDestination {
    /// Memory, untranslated.
    Passed,
    /// An address space.
    Space(u32),
}

/// The registers of enable bits, as they were last written.
pub(super) type EnableBits = [u32; reg::ENABLES.len()];

/// One address space of a unit.
pub type TegraDomain<P> = PagedDomain<Tegra, TegraTables<P>, TegraQueue<P>>;

/// Checks that there is a unit that keeps written values, by a register that does nothing by
/// itself.
fn probe(regs: &impl Mmio, counters: &Counters, chip: Chip) -> Result<(), IommuError> {
    for wanted in [chip.asids() - 1, BLOCKED] {
        counters.add(WriteKind::SelectAsid);
        counters.add(WriteKind::ReadBack);
        regs.write32(reg::PTB_ASID, wanted);
        let (offset, value) = (reg::PTB_ASID, regs.present32(reg::PTB_ASID)?);
        if value != wanted {
            let value = value.into();
            return Err(IommuError::Nonsense { offset, value });
        }
    }
    Ok(())
}

/// One SMMU of the machine `P`.
///
/// *Locking.* Streams are moved one at a time, each by a few register accesses; a caller waits for
/// its turn no longer than the limit. Nothing is awaited or allocated under a lock.
///
/// *Context.* Interrupt: [`next_fault`](portolan::iommu::Iommu::next_fault). Task: taking over,
/// making domains, moving streams (a domain that they leave may end there), letting go, and
/// dropping it: then all streams are blocked, and nothing that the hardware may use is freed.
pub struct TegraSmmu<P: UnitPlatform<AtomicU32>> {
    pub(super) shared: Arc<TegraShared<P>>,
    quirks: Quirks,
    reserved: Reservations,
    /// Streams by the number of their swgroup.
    pub(super) book: Book<P, usize, StreamDestination, EnableBits>,
}

crate::chassis::opaque!(TegraSmmu, AtomicU32);

impl<P: UnitPlatform<AtomicU32>> TegraSmmu<P> {
    /// Takes the unit over: every swgroup is blocked. A unit that translates goes on doing so, by
    /// the tables that it has, until then; it is never turned off, since accesses pass while it is.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Memory`] before anything changes; [`IommuError::Gone`],
    /// [`IommuError::Nonsense`] with the register that did not take the written value, or
    /// [`IommuError::TimedOut`]. Memory that the hardware may have been told of is then not freed.
    pub fn enable(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        config: Config,
    ) -> Result<Self, IommuError> {
        let chip = config.chip;
        let mut reserved = config.reserved.clone();
        reserved.within(chip.memory_lg2());
        let counters = Counters::default();
        probe(&regs, &counters, chip)?;
        let nothing = reachable(&mem, Tegra::GRANULE, chip.memory_lg2())?;
        let enables = core::array::from_fn(|n| chip.enables(n));
        let shared = TegraShared::new(regs, mem, clock, &config, nothing, counters);
        let unit = Self {
            shared: Arc::new(shared),
            quirks: config.quirks,
            reserved,
            book: Book::new(Streams::new(enables)),
        };
        unit.start(enables)?;
        Ok(unit)
    }

    /// From a unit that is off, or translates for a previous owner, to one that blocks everything.
    /// Each swgroup is named before its clients are translated, so that no client is translated by
    /// tables that are not its own.
    pub(super) fn start(&self, enables: EnableBits) -> Result<(), IommuError> {
        const TO_BLOCKED: u32 = asid::ENABLE | BLOCKED;
        let shared = &*self.shared;
        let chip = shared.chip;
        shared.operation.set(OperationState::Running);
        for (register, value) in
            [(reg::PTC_CONFIG, chip.ptc_config()), (reg::TLB_CONFIG, chip.tlb_config())]
        {
            // They change only while nothing is cached.
            if shared.read(register)? != value {
                shared.write(WriteKind::Config, register, value);
            }
        }
        shared.set_directory(BLOCKED, shared.nothing)?;
        for group in chip.swgroups() {
            shared.write(WriteKind::SwgroupAsid, group.register, TO_BLOCKED);
        }
        for (register, bits) in reg::ENABLES.into_iter().zip(enables) {
            if bits != 0 {
                shared.write(WriteKind::Enables, register, bits);
            }
        }
        shared.forget_tables();
        shared.write(WriteKind::TlbAll, reg::TLB_FLUSH, tlb_flush::ALL);
        shared.read_back()?;
        self.switch(config::ENABLE)?;
        for (register, bits) in reg::ENABLES.into_iter().zip(enables) {
            shared.must_hold(register, bits, bits)?;
        }
        for group in chip.swgroups() {
            shared.must_hold(group.register, asid::BOTH, TO_BLOCKED)?;
        }
        Ok(())
    }

    /// Turns translation on or off, and waits until it is.
    fn switch(&self, value: u32) -> Result<(), IommuError> {
        let shared = &*self.shared;
        shared.write(WriteKind::Config, reg::SMMU_CONFIG, value);
        let reached = || Ok(shared.read(reg::SMMU_CONFIG)? & config::ENABLE == value);
        wait_until(&shared.clock, shared.limit, Awaited::Control, reached)
    }

    /// Chip of the unit.
    ///
    /// *Context.* Interrupt.
    pub fn chip(&self) -> Chip {
        self.shared.chip
    }

    /// Addresses reserved for streams, and the reservations of [`Config::reserved`] that were
    /// ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.reserved
    }

    /// Capabilities of the hardware for the plans of domains.
    ///
    /// *Context.* Interrupt.
    pub fn capabilities(&self) -> Capabilities {
        shared::capabilities()
    }

    /// A handle to its flushes.
    ///
    /// *Context.* Interrupt.
    pub fn queue(&self) -> TegraQueue<P> {
        TegraQueue(Arc::clone(&self.shared))
    }

    /// Register accesses so far, by kind.
    ///
    /// *Context.* Interrupt.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// Turns the unit off: from now on devices reach all memory, untranslated, as `_all` gives leave to.
    /// For handing the machine over.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the hardware does not follow. Memory that it may use then stays allocated.
    pub fn release(self, _all: AllMemory) -> Result<(), IommuError> {
        let shared = &*self.shared;
        self.block_all()?;
        self.switch(0)?;
        shared.operation.set(OperationState::Off);
        shared.mem.free(shared.nothing, Tegra::GRANULE);
        Ok(())
    }
}

impl<P: UnitPlatform<AtomicU32>> TegraSmmu<P> {
    /// An empty domain with 32-bit addresses.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::OutOfContexts`], [`IommuError::Memory`], or the hardware's.
    pub fn domain(&self) -> Result<TegraDomain<P>, IommuError> {
        self.domain_with(self.quirks)
    }

    /// The same, with quirks of its own.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`TegraSmmu::domain`].
    pub fn domain_with(&self, quirks: Quirks) -> Result<TegraDomain<P>, IommuError> {
        let shared = &*self.shared;
        shared.operation.running()?;
        let memory = shared.chip.memory();
        let noted = Arc::clone(&shared.noted);
        let tables = TegraTables::new(shared.mem.clone(), noted, shared.chip.memory_lg2());
        let table = PageTable::new(Tegra { memory }, tables)?;
        let id = shared.ids.take().ok_or(IommuError::OutOfContexts)?;
        let (context, root) = (InvalTag::new(id), table.root());
        let (caps, queue) = (shared::capabilities(), self.queue());
        // Dropped, it takes its directory back from the hardware.
        let domain = PagedDomain::new(table, context, caps, quirks, queue);
        shared.set_directory(id, root)?;
        shared.read_back()?;
        Ok(domain)
    }
}

/// *Context.* Task.
impl<P: UnitPlatform<AtomicU32>> Drop for TegraSmmu<P> {
    fn drop(&mut self) {
        // A failure leaves what it concerns unsettled, which is kept.
        let _ = self.block_all();
    }
}

impl<P: UnitPlatform<AtomicU32>> IommuDomains for TegraSmmu<P> {
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let domain = Arc::new(self.domain()?);
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    fn conditions(&self) -> Conditions {
        plain(Stage::Second)
    }

    common_methods!();
}
