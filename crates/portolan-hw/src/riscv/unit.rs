//! A unit: taking it over, making domains for it, letting go of it.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0. Several units are several instances; nothing is
//! shared between them.

use super::command::{Counts, RiscvControl, RiscvTag};
use super::faults::{FAULTS, REQUESTS, RecordQueue};
use super::features::{Config, Features, Messages, RiscvFeature, Signal};
use super::messages::{MessageTables, message_window};
use super::queue::{self, Monitor, RiscvQueue, RiscvShared};
use super::tables::{Directory, DirectoryShape, Key, Remotes, Streams, Tables};
use super::takeover::{close, start, stop, turn_off, use_directory};
use crate::chassis::book::Book;
use crate::chassis::handed::Adopted;
use crate::chassis::sets::Sets;
use crate::chassis::{Block, Operation, Ring, Submitters};
use crate::ids::Ids;
use crate::reservations::Reservations;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64};
use portolan::addr::StreamId;
use portolan::inval::{Capabilities, Ranges};
use portolan::iommu::{Attach as _, IommuError, PagedDomain};
use portolan::platform::{AllMemory, TableMem, UnitPlatform};
use portolan::table::PageTable;
use portolan::table::format::{
    DirtyTracking, Riscv, RiscvFirstStage, RiscvLevels, RiscvMemoryTypes, RiscvSecondStage,
};
use portolan_spec::riscv::context::MARKS;
use portolan_spec::riscv::reg;

/// Last PSCID, of 20 bits.
const LAST_FIRST: u32 = (1 << 20) - 1;
/// Last GSCID, of 16 bits.
const LAST_SECOND: u32 = (1 << 16) - 1;
/// Widest number of a device.
const MOST_STREAMS_LG2: u32 = 24;

/// A domain of a unit with first-stage tables.
pub type FirstDomain<P> = PagedDomain<RiscvFirstStage, <P as UnitPlatform>::Memory, RiscvQueue<P>>;
/// A domain of a unit with second-stage tables.
pub type SecondDomain<P> =
    PagedDomain<RiscvSecondStage, <P as UnitPlatform>::Memory, RiscvQueue<P>>;

/// One IOMMU with the RISC-V IOMMU's registers on the machine `P`.
///
/// *Locking.* Streams are moved one at a time; a caller waits for its turn no longer than the
/// limit. When it is dropped, all streams are blocked, and nothing that the hardware may use is
/// freed: neither its own tables nor, if it does not follow, the domains of its streams.
pub struct RiscvIommu<P: UnitPlatform> {
    pub(super) shared: Arc<RiscvShared<P>>,
    pub(super) book: Book<P, Key, Option<RiscvTag>, Tables>,
    pub(super) config: Config,
    pub(super) adopted: Adopted<P, Self>,
}

crate::chassis::opaque!(RiscvIommu, AtomicU64);

/// Memory that the hardware is going to be told of.
pub(super) struct RiscvAllocations<P: UnitPlatform> {
    pub(super) queue: Ring<P>,
    pub(super) faults: RecordQueue<P>,
    pub(super) requests: Option<RecordQueue<P>>,
    pub(super) messages: Option<MessageTables>,
}

/// The tag of streams that have interrupts and no domain.
const NO_DOMAIN: u32 = LAST_SECOND;

impl<P: UnitPlatform> RiscvAllocations<P> {
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        config: &Config,
        features: &Features,
    ) -> Result<Self, IommuError> {
        let levels = best(&SECOND, features.has);
        let levels = levels.filter(|_| features.has.contains(RiscvFeature::MESSAGE_TABLES));

        let more = match config.signal {
            Signal::None => 0,
            Signal::Wired | Signal::Message { .. } => reg::queue::INTERRUPT,
        };
        let queue: Ring<P> = queue::ring(mem, config.queue_lg2)?;
        let faults = RecordQueue::new(mem, FAULTS, config.faults_lg2, more);
        let faults = faults.inspect_err(|_| queue.free(mem))?;
        let requests = config.requests_lg2.map(|lg2| RecordQueue::new(mem, REQUESTS, lg2, more));
        let requests = requests.transpose().inspect_err(|_| {
            queue.free(mem);
            faults.free(mem);
        })?;
        let free = || {
            queue.free(mem);
            faults.free(mem);
            requests.iter().for_each(|requests| requests.free(mem));
        };
        let messages = config.interrupts.map(|wanted| {
            let levels = levels.ok_or(IommuError::Unsupported)?.count();
            MessageTables::new(wanted, levels, RiscvTag::Second(NO_DOMAIN))
        });
        let messages = messages.transpose().inspect_err(|_| free())?;
        Ok(Self { queue, faults, requests, messages })
    }

    fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        if let Some(messages) = &mut self.messages {
            messages.free(mem);
        }
        self.queue.free(mem);
        self.faults.free(mem);
        self.requests.iter().for_each(|requests| requests.free(mem));
    }
}

/// The directory with which a unit of these features does what `config` asks for; `None` if it cannot.
fn served(config: &Config, features: &Features) -> Option<DirectoryShape> {
    let asks = config.requests_lg2.is_some();
    let tracks = config.dirty == DirtyTracking::Hardware;
    let absent = asks && !features.has.contains(RiscvFeature::ATS)
        || tracks && !features.has.contains(RiscvFeature::UPDATES);
    let shape = DirectoryShape::shallowest(features.context_words(), config.streams_lg2);
    shape.filter(|_| !absent && features.can_signal(config.signal))
}

impl<P: UnitPlatform> RiscvShared<P> {
    /// State over memory that the hardware is going to be told of.
    pub(super) fn of(
        control: RiscvControl<P>,
        parts: RiscvAllocations<P>,
        config: &Config,
    ) -> Self {
        let RiscvAllocations { queue, faults, requests, .. } = parts;
        let ranges = Ranges::of(&control.features.capabilities());
        let submitters = Submitters::new(&control.clock, ranges, config.combining);
        Self {
            control,
            queue,
            faults,
            requests,
            monitor: Monitor::new(),
            requests_cut: AtomicBool::new(false),
            streams_lg2: config.streams_lg2,
            atcs: Sets::default(),
            silences: AtomicU64::new(0),
            firsts: Ids::new(1, LAST_FIRST),
            seconds: Ids::new(1, NO_DOMAIN - 1),
            submitters,
            operation: Operation::default(),
        }
    }

    /// Gives the queues back. The unit must have stopped using them, or not begun.
    pub(super) fn free_queues(&self) {
        let mem = &self.control.mem;
        self.queue.free(mem);
        self.faults.free(mem);
        self.requests.iter().for_each(|requests| requests.free(mem));
    }
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Features of a unit, and the shape of its directory; makes `config` fit for it.
    pub(super) fn offered(
        regs: &P::Registers,
        config: &mut Config,
    ) -> Result<(Features, DirectoryShape), IommuError> {
        config.streams_lg2 = config.streams_lg2.min(MOST_STREAMS_LG2);
        let features = Features::read(regs)?;
        let shape = served(config, &features).ok_or(IommuError::Unsupported)?;
        config.reserved.within(features.output_lg2);
        if let Some(interrupts) = &config.interrupts {
            config.reserved.hold([message_window(interrupts)].into_iter());
        }
        Ok((features, shape))
    }

    /// Takes the unit over: streams reach the memory that [`Config::reserved`] names for them, and all others
    /// are blocked. The former go on meanwhile where the unit lets all accesses through and has the features that
    /// are wanted; where it had another directory, or features have to change, it has to let nothing through
    /// until it has its own (6.4, 6.5). If it fails once the unit was stopped, that stays so.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`IommuError`]; [`IommuError::Unsupported`] for a unit of another major version, for one
    /// that is big-endian alone, and where it lacks a feature that `config` asks for. Memory that
    /// the hardware may have been told of is then not freed.
    pub fn enable(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
    ) -> Result<Self, IommuError> {
        let (features, shape) = Self::offered(&regs, &mut config)?;
        let control = RiscvControl::new(regs, mem, clock, &config, features);
        Self::enable_over(control, shape, config)
    }

    /// The same with a directory of `shape`, or a deeper one.
    pub(super) fn enable_over(
        control: RiscvControl<P>,
        shape: DirectoryShape,
        config: Config,
    ) -> Result<Self, IommuError> {
        let at_work = !config.reserved.at_work()?.is_empty();
        let mem = &control.mem;
        let mut parts = RiscvAllocations::new(mem, &config, &control.features)?;
        let root = Block::new(mem, 12).inspect_err(|_| parts.free(mem))?;
        stop(&control, config.signal, at_work).inspect_err(|_| {
            parts.free(mem);
            root.free(mem);
        })?;
        let messages = parts.messages.take();
        let shared = Arc::new(RiscvShared::of(control, parts, &config));
        start(&shared, config.signal)?;
        let streams = Streams::new(Tables {
            directory: Directory::new(root, shape),
            messages,
            processes: BTreeMap::new(),
            remotes: Remotes::default(),
        });
        let (book, adopted) = (Book::new(streams), Adopted::default());
        let unit = Self { shared, book, config, adopted };
        let control = &unit.shared.control;
        unit.use_tables().inspect_err(|_| {
            let _ = close(control);
        })?;
        Ok(unit)
    }

    /// Has the unit use its directory, in which the streams that firmware has at work are.
    fn use_tables(&self) -> Result<(), IommuError> {
        self.keep_at_work(&|_| false)?;
        let control = &self.shared.control;
        self.book
            .with(self.turn(), |streams| use_directory(control, &mut streams.state.directory))?
    }

    /// Attaches the streams that firmware has at work, but for those that are `kept`, to domains of the kind that
    /// others get.
    pub(super) fn keep_at_work(&self, kept: &dyn Fn(StreamId) -> bool) -> Result<(), IommuError> {
        let reserved = &self.config.reserved;
        let first = self.best_first();
        match (first.filter(|_| self.interrupts_config().is_none()), self.best_second()) {
            (Some(levels), _) => {
                let new = || self.first_stage(levels);
                reserved.keep_at_work(new, |stream, domain| match kept(stream) {
                    true => Ok(()),
                    false => self.attach(stream, domain),
                })
            }
            (None, Some(levels)) => {
                let new = || self.second_stage(levels);
                reserved.keep_at_work(new, |stream, domain| match kept(stream) {
                    true => Ok(()),
                    false => self.attach(stream, domain),
                })
            }
            // The unit walks no tables.
            (None, None) => Ok(()),
        }
    }
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Tells if the unit with these registers, which are left as they are, could tell of faults in
    /// this way.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// As [`RiscvIommu::enable`], of the unit's feature registers.
    pub fn can_signal(regs: &P::Registers, signal: Signal) -> Result<bool, IommuError> {
        Ok(Features::read(regs)?.can_signal(signal))
    }

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

    /// Settings for messages of devices.
    pub(crate) fn interrupts_config(&self) -> Option<&Messages> {
        self.config.interrupts.as_ref()
    }

    /// Bits for marks in the context of a stream that leads somewhere.
    pub(super) fn marks(&self) -> u64 {
        match self.config.dirty {
            DirtyTracking::Off => 0,
            DirtyTracking::Hardware => MARKS,
        }
    }

    /// Tells if there is a queue of page requests.
    pub(crate) fn reads_requests(&self) -> bool {
        self.shared.requests.is_some()
    }

    /// A handle to its invalidations.
    ///
    /// *Context.* Interrupt.
    pub fn queue(&self) -> RiscvQueue<P> {
        RiscvQueue(Arc::clone(&self.shared))
    }

    /// Commands submitted so far.
    ///
    /// *Context.* Interrupt.
    pub fn counts(&self) -> Counts {
        self.shared.control.counters.read()
    }

    /// Width of the numbers of devices in bits.
    pub(super) fn streams_lg2(&self) -> u32 {
        self.config.streams_lg2
    }

    /// Turns the unit off and frees its own tables: from now on devices reach all memory, as `_all` gives leave to,
    /// untranslated. For handing the machine over.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the hardware does not follow. Memory that it may use then stays allocated.
    pub fn release(self, _all: AllMemory) -> Result<(), IommuError> {
        let unit = &self.shared.control;
        let left = self.book.with(self.turn(), |streams| {
            // Contexts that name the domains are gone before the domains are.
            streams.state.directory.clear(&unit.mem);
            match self.shared.forget_everything() {
                Ok(()) => Ok(streams.settled(..)),
                Err(error) => {
                    // Nothing leads to the contexts any more; what they led to may still be kept.
                    streams.unsettle(..);
                    Err(error)
                }
            }
        })?;
        // While commands are fetched: a domain without another holder still submits some when it is
        // dropped.
        drop(left?);
        self.shared.queue.drain(&*self.shared)?;
        turn_off(unit)?;
        for records in [Some(&self.shared.faults), self.shared.requests.as_ref()] {
            records.map_or(Ok(()), |records| records.turn_off(unit))?;
        }
        self.book.with(self.turn(), |streams| streams.state.free(&unit.mem))?;
        let shared = Arc::clone(&self.shared);
        drop(self);
        // Domains that are still held keep the queue: they will find it off.
        if let Some(shared) = Arc::into_inner(shared) {
            shared.free_queues();
        }
        Ok(())
    }
}

/// The stages' tables by the unit's features, those first that cover the addresses of most devices.
pub(super) const FIRST: [(RiscvLevels, RiscvFeature); 3] = [
    (RiscvLevels::Four, RiscvFeature::FIRST_4),
    (RiscvLevels::Three, RiscvFeature::FIRST_3),
    (RiscvLevels::Five, RiscvFeature::FIRST_5),
];
pub(super) const SECOND: [(RiscvLevels, RiscvFeature); 3] = [
    (RiscvLevels::Four, RiscvFeature::SECOND_4),
    (RiscvLevels::Three, RiscvFeature::SECOND_3),
    (RiscvLevels::Five, RiscvFeature::SECOND_5),
];

fn best(of: &[(RiscvLevels, RiscvFeature)], has: RiscvFeature) -> Option<RiscvLevels> {
    let mut all = of.iter();
    all.find(|(_, bit)| has.contains(*bit)).map(|(levels, _)| *levels)
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Checks that the unit has that many levels.
    pub(super) fn walks(
        &self,
        of: &[(RiscvLevels, RiscvFeature)],
        levels: RiscvLevels,
    ) -> Result<(), IommuError> {
        let has = self.features().has;
        let walks = |(known, bit): &(_, RiscvFeature)| *known == levels && has.contains(*bit);
        if of.iter().any(walks) { Ok(()) } else { Err(IommuError::Unsupported) }
    }

    /// Tables of `levels` levels whose root has `2^ROOT` bytes.
    pub(super) fn format<const ROOT: u32>(&self, levels: RiscvLevels) -> Riscv<ROOT> {
        let features = self.features();
        Riscv {
            levels,
            output_lg2: features.output_lg2,
            memory_types: if features.has.contains(RiscvFeature::MEMORY_TYPES) {
                RiscvMemoryTypes::Svpbmt
            } else {
                RiscvMemoryTypes::Absent
            },
            contiguity: self.config.contiguity,
            dirty: self.config.dirty,
        }
    }

    /// Levels of the first-stage tables that suit most devices: of 48-bit addresses if there are such.
    pub(crate) fn best_first(&self) -> Option<RiscvLevels> {
        best(&FIRST, self.features().has)
    }

    /// The same of second-stage tables.
    pub(crate) fn best_second(&self) -> Option<RiscvLevels> {
        best(&SECOND, self.features().has)
    }
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// An empty domain with first-stage tables.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit does not walk such tables;
    /// [`IommuError::OutOfContexts`], [`IommuError::Memory`].
    pub fn first_stage(&self, levels: RiscvLevels) -> Result<FirstDomain<P>, IommuError> {
        self.walks(&FIRST, levels)?;
        let format: RiscvFirstStage = self.format(levels);
        let table = PageTable::new(format, self.shared.control.mem.clone())?;
        let tag = RiscvTag::First(self.shared.take(&self.shared.firsts)?);
        let quirks = self.features().quirks(self.config.quirks);
        let (caps, queue) = (self.capabilities(), self.queue());
        Ok(PagedDomain::new(table, tag.context(), caps, quirks, queue))
    }

    /// An empty domain with second-stage tables.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`RiscvIommu::first_stage`].
    pub fn second_stage(&self, levels: RiscvLevels) -> Result<SecondDomain<P>, IommuError> {
        self.walks(&SECOND, levels)?;
        let format: RiscvSecondStage = self.format(levels);
        let table = PageTable::new(format, self.shared.control.mem.clone())?;
        let tag = RiscvTag::Second(self.shared.take(&self.shared.seconds)?);
        let quirks = self.features().quirks(self.config.quirks);
        let (caps, queue) = (self.capabilities(), self.queue());
        Ok(PagedDomain::new(table, tag.context(), caps, quirks, queue))
    }
}

impl<P: UnitPlatform> Drop for RiscvIommu<P> {
    /// *Context.* Task: waits for the hardware.
    fn drop(&mut self) {
        // A failure leaves what it concerns unsettled, which is kept.
        let _ = self.block_all();
    }
}
