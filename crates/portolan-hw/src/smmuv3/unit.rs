//! The unit: taken over, enabled, and disabled again.
//!
//! IHI 0070, sections 3.11 (reset, enable and initialisation) and 6.3.9 (CR0). Accesses are aborted
//! before the unit is enabled and, unless asked otherwise, after it is disabled.

use super::command::{self, CommandCounts};
use super::features::{Features, TableUpdate};
use super::machine::SmmuHardware;
use super::machine::SmmuRecordQueue;
use super::queue::{CommandQueue, MoreQueues, SmmuQueue, SmmuShared, own_interface, places};
use super::quirks::{Errata, SYNC_OFTEN_LIMIT};
use super::tables::NamedStreams;
use super::tables::{Blocking, StreamTable, StreamTableShape};
use crate::at_work::AtWork;
use crate::chassis::arm::WhenDisabled;
use crate::chassis::handed::Adopted;
use crate::chassis::{OperationState, Present as _};
use crate::reservations::Reservations;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::addr::StreamId;
use portolan::inval::CombineOptions;
use portolan::iommu::IommuError;
use portolan::platform::{Guarded, Mmio, Nanos, UnitPlatform};
use portolan_spec::smmuv3::{event, reg};
use portolan_tables::overrides::CoherencyOverride;

/// Wish for an optional feature.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// It is not wanted.
    No,
    /// If the unit has it.
    IfThere,
}

/// Place of the indices of the event and page-request queues, which the architecture has in a
/// second page of registers.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterPages {
    /// In the second page, 64 KiB behind the first.
    Two,
    /// In the first, at the same offsets: Cavium ThunderX2, which IORT names as model 2 and a device
    /// tree as `cavium,thunderx2-smmu-v3` (its erratum 74).
    OnlyFirst,
}

impl RegisterPages {
    /// Offset of a register of the second page.
    const fn at(self, offset: usize) -> usize {
        match self {
            Self::Two => offset,
            Self::OnlyFirst => offset % (reg::WINDOW_BYTES / 2),
        }
    }
}

/// Settings of a unit.
///
/// *Context.* Interrupt: a value.
///
/// ```no_run
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::{AllMemory, Nanos, UnitPlatform};
/// # use portolan_hw::smmuv3::{Config, Smmu, Want};
/// /// A unit that is waited for no longer than a tenth of a second.
/// fn open<P: UnitPlatform>(
///     registers: P::Registers, memory: P::Memory, cpus: P,
/// ) -> Result<Smmu<P>, IommuError> {
///     let mut config = Config::default();
///     config.limit = Nanos::from_millis(100);
///     config.page_requests = Want::IfThere;
///     Smmu::enable(registers, memory, cpus, config)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Longest wait for anything that the unit has to do.
    pub limit: Nanos,
    /// Makes CPUs that invalidate at the same time submit together; each submits its own where it
    /// is `None`. See [`Combiner`](portolan::inval::Combiner) for a caller's wait then.
    pub combining: Option<CombineOptions>,
    /// Exponent of the number of streams, if the unit has as many; more where those of
    /// [`Config::at_work`] need it. Eight bytes are taken for each 256 of them, and 16 KiB for those 256
    /// once one of them is moved; a unit without tables of two levels takes 64 bytes for each.
    pub stream_lg2: u32,
    /// Exponent of the number of commands in the queue, if the unit allows as many.
    pub command_queue_lg2: u32,
    /// Exponent of the number of events, if the unit allows as many.
    pub event_queue_lg2: u32,
    /// Exponent of the number of page requests, if the unit allows as many.
    pub page_request_queue_lg2: u32,
    /// Treatment of accesses of blocked streams.
    pub blocking: Blocking,
    /// Syncs that write messages. Only where the unit writes memory coherently.
    pub messages: Want,
    /// Page requests.
    pub page_requests: Want,
    /// Wired interrupts for events, page requests and global errors.
    pub interrupts: Want,
    /// After [`Smmu::disable`].
    pub when_disabled: WhenDisabled,
    /// Firmware's word on the unit's access to tables and queues.
    pub coherency: CoherencyOverride,
    /// State in table entries that the board lets the unit update at most, by firmware (IORT's HTTU override): an
    /// interconnect may lack the atomic accesses for it. `None` if firmware says nothing.
    pub update: Option<TableUpdate>,
    /// Place of the registers of the second page.
    pub pages: RegisterPages,
    /// Memory that firmware reserves for streams: regions that their devices use (RMR nodes:
    /// [`Iort::reserved`](portolan_tables::iort::Iort::reserved)), doorbells of their messages.
    pub reserved: Reservations,
    /// Streams whose devices firmware has at work, such as a display's controller: they pass through
    /// untranslated, to all of memory, from the moment the unit is enabled until they are moved. All
    /// others are blocked at first.
    pub at_work: Vec<AtWork>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1_000),
            combining: None,
            stream_lg2: STREAM_LG2,
            command_queue_lg2: 8,
            event_queue_lg2: 7,
            page_request_queue_lg2: 7,
            blocking: Blocking::Recorded,
            messages: Want::IfThere,
            page_requests: Want::No,
            interrupts: Want::No,
            when_disabled: WhenDisabled::Abort,
            coherency: CoherencyOverride::AsRegistersSay,
            update: None,
            pages: RegisterPages::Two,
            reserved: Reservations::default(),
            at_work: Vec::new(),
        }
    }
}

/// As many streams as Linux has tables for: a first level of 1 MiB.
const STREAM_LG2: u32 = 25;

impl Config {
    /// Exponent of the number of streams, those at work included.
    pub(super) fn streams(&self) -> u32 {
        let at_work = self.at_work.iter().map(|of| stream_lg2(of.stream));
        let needed = at_work.filter(|lg2| *lg2 <= STREAM_LG2).max();
        self.stream_lg2.max(needed.unwrap_or(0))
    }
}

/// Exponent of the number of streams up to `last`.
pub(crate) fn stream_lg2(last: StreamId) -> u32 {
    u32::BITS - last.get().leading_zeros()
}

/// A unit that is enabled.
///
/// Streams are moved through the traits of `portolan::iommu` and the methods here. When it is
/// dropped it is disabled as by [`Smmu::disable`]; if that fails, all memory that the hardware may
/// still use stays allocated for good. *Context.* of the drop: Task.
///
/// *Locking.* No lock is held across a wait. Calls that move the same stream take turns.
pub struct Smmu<P: UnitPlatform> {
    pub(super) shared: Arc<SmmuShared<P>>,
    pub(super) table: StreamTable<P>,
    pub(super) streams: NamedStreams<P>,
    pub(super) config: Config,
    pub(super) events: Guarded<P, SmmuRecordQueue>,
    pub(super) requests: Option<Guarded<P, SmmuRecordQueue>>,
    power: Guarded<P, EnableState>,
    pub(super) adopted: Adopted<P, Self>,
}

/// Queues of a unit, and the state that it shares with its domains.
pub(super) struct SmmuQueues<P: UnitPlatform> {
    pub(super) shared: Arc<SmmuShared<P>>,
    events: SmmuRecordQueue,
    requests: Option<SmmuRecordQueue>,
}

impl<P: UnitPlatform> SmmuQueues<P> {
    /// Gives back all but the command queue, which gives itself back.
    pub(super) fn free(&self) {
        let machine = &*self.shared.machine;
        machine.free(self.events.block());
        self.requests.iter().for_each(|requests| machine.free(requests.block()));
    }
}

crate::chassis::opaque!(Smmu, AtomicU64);

/// State of the unit's enables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnableState {
    On,
    /// It is disabled until it is resumed.
    Suspended,
    Off,
    /// A caller is disabling it.
    Changing,
    /// It is another driver's.
    Left,
    /// It did not answer when it was to be disabled.
    Unknown,
}

/// Outcome of the wish for a change.
enum Change {
    /// It is under way, and others are refused meanwhile.
    Begun,
    /// There is nothing to change.
    Made,
}

/// State in which the unit is found: enabled, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundEnabled {
    Yes,
    No,
}

impl<P: UnitPlatform> Smmu<P> {
    /// Takes the unit over and enables it, with all streams blocked but [`Config::at_work`].
    /// Earlier work of the unit ends: it is disabled first, and forgets everything. Accesses that
    /// come meanwhile are aborted, and none passes by the unit. Where it was disabled before, they
    /// go on until it is enabled as they did.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`Features::read`]; [`IommuError::Memory`] before anything is changed;
    /// [`IommuError::TimedOut`] if it does not follow, and then it is left disabled if it can be.
    pub fn enable(
        registers: P::Registers,
        mem: P::Memory,
        clock: P,
        config: Config,
    ) -> Result<Self, IommuError> {
        Self::enable_with(registers, MoreQueues::None, mem, clock, config)
    }

    /// The same, with command queues beside the unit's own.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Smmu::enable`]; [`IommuError::Nonsense`] with a register that describes or owns such queues.
    pub fn enable_with(
        registers: P::Registers,
        more: MoreQueues<P::Registers>,
        mem: P::Memory,
        clock: P,
        mut config: Config,
    ) -> Result<Self, IommuError> {
        let features = Features::read(&registers)?.on_board(config.coherency, config.update);
        config.reserved.within(features.output_lg2);
        let machine = SmmuHardware::new(registers, mem, clock, config.limit, features.coherent);
        let machine = Arc::new(machine);
        let queues = Self::queues(&machine, features, &config, more)?;
        Self::enable_over(queues, config)
    }

    /// The same over queues that are allocated.
    pub(super) fn enable_over(queues: SmmuQueues<P>, config: Config) -> Result<Self, IommuError> {
        let machine = queues.shared.machine.clone();
        let shape = StreamTableShape::new(&queues.shared.features, config.streams());
        let table = StreamTable::new(&machine, shape, config.blocking);
        let table = table.inspect_err(|_| queues.free())?;
        let unit = Self::of(queues, table, config);
        unit.start()?;
        // From here on a failure drops the unit, which disables it.
        unit.set_power(EnableState::On);
        let found = unit.found()?;
        unit.prepare_on(found)?;
        unit.switch_on(0)?;
        if found == FoundEnabled::No {
            unit.shared.machine.set_bypass(WhenDisabled::Abort)?;
        }
        Ok(unit)
    }

    /// Allocates queues.
    pub(super) fn queues(
        machine: &Arc<SmmuHardware<P>>,
        features: Features,
        config: &Config,
        more: MoreQueues<P::Registers>,
    ) -> Result<SmmuQueues<P>, IommuError> {
        let messages = config.messages == Want::IfThere && features.msi && features.coherent;
        let lg2 = config.command_queue_lg2.min(features.command_queue_lg2);
        let most =
            if features.errata.contains(Errata::SYNC_OFTEN) { SYNC_OFTEN_LIMIT } else { u64::MAX };
        let queue = CommandQueue::new(machine.clone(), lg2.max(1), most, messages)?;
        // Until the unit is told of it, the queue is off: dropped, it gives its memory back.
        queue.operation.set(OperationState::Off);
        let places = places(machine, more)?.into_iter();
        let more = places.map(|place| queue.beside(place, most, messages));
        let more = more.collect::<Result<Vec<_>, _>>()?;
        let shared = SmmuShared::new(machine.clone(), queue, more, features, config.combining);
        let shared = Arc::new(shared);
        let lg2 = config.event_queue_lg2.min(features.event_queue_lg2);
        let events = SmmuRecordQueue::new(
            machine,
            lg2,
            event::LG2_BYTES,
            config.pages.at(reg::EVENTQ_PROD),
            config.pages.at(reg::EVENTQ_CONS),
        )?;
        let requests = match (config.page_requests, features.pri) {
            (Want::IfThere, true) => {
                let lg2 = config.page_request_queue_lg2.min(features.page_request_queue_lg2);
                let bytes = event::PAGE_REQUEST_LG2_BYTES;
                let (prod, cons) = (reg::PRIQ_PROD, reg::PRIQ_CONS);
                let (prod, cons) = (config.pages.at(prod), config.pages.at(cons));
                let records = SmmuRecordQueue::new(machine, lg2, bytes, prod, cons);
                Some(records.inspect_err(|_| machine.free(events.block()))?)
            }
            _ => None,
        };
        Ok(SmmuQueues { shared, events, requests })
    }

    /// The unit over allocations, of which it was not told.
    pub(super) fn of(queues: SmmuQueues<P>, table: StreamTable<P>, config: Config) -> Self {
        let SmmuQueues { shared, events, requests } = queues;
        Self {
            shared,
            table,
            streams: NamedStreams::default(),
            config,
            events: Guarded::new(events),
            requests: requests.map(Guarded::new),
            power: Guarded::new(EnableState::Off),
            adopted: Adopted::default(),
        }
    }

    fn found(&self) -> Result<FoundEnabled, IommuError> {
        match self.shared.machine.read(reg::CR0ACK)? & reg::cr0::SMMUEN {
            0 => Ok(FoundEnabled::No),
            _ => Ok(FoundEnabled::Yes),
        }
    }

    /// Has a unit in any state carry commands out, with everything set up and forgotten, and disabled
    /// yet.
    fn prepare_on(&self, found: FoundEnabled) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        let features = &self.shared.features;
        // Where the unit is off, devices that are at work go on as they do until it is on.
        if found == FoundEnabled::Yes {
            machine.set_bypass(WhenDisabled::Abort)?;
        }
        self.turn_off()?;
        let attributes =
            if features.coherent { reg::cr1::WRITE_BACK } else { reg::cr1::NON_CACHEABLE };
        machine.registers.write32(reg::CR1, attributes);
        let control2 = reg::cr2::RECINVSID | reg::cr2::PTM;
        machine.registers.write32(reg::CR2, control2);
        self.table.install(machine)?;
        self.start_queues(0)
    }

    /// Has the unit carry commands out, with `kept` of its enables on, and forget everything.
    pub(super) fn start_queues(&self, kept: u32) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        let features = &self.shared.features;
        self.forget_messages();
        let base = self.shared.queue.install();
        // A former kernel's queue would complete commands of its own.
        machine.registers.holds(reg::CMDQ_BASE, base)?;
        self.events.lock().install(machine, reg::EVENTQ_BASE)?;
        if let Some(requests) = &self.requests {
            requests.lock().install(machine, reg::PRIQ_BASE)?;
        }
        machine.acknowledge(machine.errors()?)?;
        machine.control(reg::CR0, reg::CR0ACK, kept | reg::cr0::CMDQEN)?;
        if let Some(window) = self.shared.more.first().and_then(CommandQueue::window) {
            own_interface(machine, window, self.shared.more.len())?;
        }
        self.shared.more.iter().try_for_each(CommandQueue::start)?;
        self.shared.queue.operation.set(OperationState::Running);
        if kept & reg::cr0::SMMUEN != 0 {
            // Commands without a sync between them have no order (4.8): an entry that is still cached would fill in
            // translations behind the command that drops them.
            self.shared.run([command::config_everything()])?;
        }
        let mut forget = [command::config_everything(); 3];
        forget[1] = command::invalidate_everything();
        forget[2] = command::invalidate_hyp();
        let count = 2 + usize::from(features.hyp);
        self.shared.queue.run(forget.into_iter().take(count))
    }

    /// Ends translation first, and the queues after it.
    fn turn_off(&self) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        let before = machine.read(reg::CR0ACK)? & reg::cr0::ALL;
        machine.control(reg::CR0, reg::CR0ACK, before & !reg::cr0::SMMUEN)?;
        self.shared.more.iter().try_for_each(CommandQueue::stop)?;
        machine.control(reg::CR0, reg::CR0ACK, 0)?;
        machine.control(reg::IRQ_CTRL, reg::IRQ_CTRLACK, 0)
    }

    /// Enables the unit that is prepared, with `kept` of its enables on.
    pub(super) fn switch_on(&self, kept: u32) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        let mut enables = kept | reg::cr0::CMDQEN | reg::cr0::EVENTQEN;
        if self.requests.is_some() {
            enables |= reg::cr0::PRIQEN;
        }
        if self.shared.features.ats {
            enables |= reg::cr0::ATSCHK;
        }
        machine.control(reg::CR0, reg::CR0ACK, enables)?;
        if self.config.interrupts == Want::IfThere {
            let mut lines = reg::irq::GERROR | reg::irq::EVENTQ;
            if self.requests.is_some() {
                lines |= reg::irq::PRIQ;
            }
            machine.control(reg::IRQ_CTRL, reg::IRQ_CTRLACK, lines)?;
        }
        machine.control(reg::CR0, reg::CR0ACK, enables | reg::cr0::SMMUEN)
    }

    /// Interrupts come by wire. Addresses of messages reset to an unknown value, and a kernel before
    /// may have left its own: a unit writes there as soon as it is enabled. Their enables have to be
    /// off (6.3.21).
    fn forget_messages(&self) {
        let features = &self.shared.features;
        if !features.msi {
            return;
        }
        let registers = &self.shared.machine.registers;
        registers.write64(reg::GERROR_IRQ_CFG0, 0);
        registers.write64(reg::EVENTQ_IRQ_CFG0, 0);
        if features.pri {
            registers.write64(reg::PRIQ_IRQ_CFG0, 0);
        }
    }

    /// Disables the unit. From then on streams cannot be moved, accesses meet
    /// [`Config::when_disabled`], and domains can be dropped.
    ///
    /// Devices with translations of their own have to have ATS disabled before
    /// ([`Smmu::disable_ats`]): a disabled unit aborts translated accesses and refuses translation
    /// requests (3.9.1.2 and 3.9.1.3), in spite of [`Config::when_disabled`], and translations that
    /// such a device keeps would be used once ATS is enabled for its stream again.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// If the unit does not follow: memory that it may still use is then kept until another call
    /// succeeds, or for good. [`IommuError::Stopped`] while another caller is at it.
    pub fn disable(&self) -> Result<(), IommuError> {
        match self.begin_change(&[EnableState::On, EnableState::Suspended, EnableState::Unknown])? {
            Change::Made => return Ok(()),
            Change::Begun => {}
        }
        // Later callers are refused.
        let operation = &self.shared.queue.operation;
        if !operation.is_off() {
            operation.set(OperationState::Stopped);
        }
        let result = self.turn_off().and_then(|()| match self.config.when_disabled {
            when @ WhenDisabled::Bypass(_) => self.shared.machine.set_bypass(when),
            WhenDisabled::Abort => Ok(()),
        });
        self.end_change(&result, EnableState::Off);
        if result.is_ok() {
            operation.set(OperationState::Off);
        }
        result
    }

    /// Begins a change of the unit's enables, unless they are in none of the states `from`: then there
    /// is nothing to change.
    fn begin_change(&self, from: &[EnableState]) -> Result<Change, IommuError> {
        let mut power = self.power.lock();
        match *power {
            EnableState::Changing | EnableState::Left => Err(IommuError::Stopped),
            now if from.contains(&now) => {
                *power = EnableState::Changing;
                Ok(Change::Begun)
            }
            _ => Ok(Change::Made),
        }
    }

    /// Begins to leave a unit that is on.
    pub(super) fn begin_leaving(&self) -> Result<(), IommuError> {
        match self.begin_change(&[EnableState::On])? {
            Change::Begun => Ok(()),
            Change::Made => Err(IommuError::Stopped),
        }
    }

    pub(super) fn set_power(&self, state: EnableState) {
        self.power.with(|power| *power = state);
    }

    pub(super) fn end_change(&self, result: &Result<(), IommuError>, to: EnableState) {
        let state = if result.is_ok() { to } else { EnableState::Unknown };
        self.power.with(|power| *power = state);
    }

    /// As [`Iommu::suspend`](portolan::iommu::Iommu::suspend): disables the unit, which then aborts all
    /// accesses.
    pub(super) fn power_down(&self) -> Result<(), IommuError> {
        match self.begin_change(&[EnableState::On, EnableState::Unknown])? {
            Change::Made => return Ok(()),
            Change::Begun => {}
        }
        let (machine, queue) = (&*self.shared.machine, &self.shared.queue);
        let shut = || {
            let enables = machine.read(reg::CR0ACK)? & reg::cr0::ALL & !reg::cr0::SMMUEN;
            machine.control(reg::CR0, reg::CR0ACK, enables)
        };
        let all = || self.shared.queues().try_for_each(CommandQueue::drain);
        let drain = || all().and_then(|()| self.turn_off());
        let result = queue.operation.suspend(shut, drain);
        self.end_change(&result, EnableState::Suspended);
        result
    }

    /// As [`Iommu::resume`](portolan::iommu::Iommu::resume). A unit whose power is back passes accesses or
    /// aborts them, as it was made, until its first registers are written.
    pub(super) fn power_up(&self) -> Result<(), IommuError> {
        match self.begin_change(&[EnableState::Suspended, EnableState::Unknown])? {
            Change::Made => return Ok(()),
            Change::Begun => {}
        }
        let operation = &self.shared.queue.operation;
        let start = |_: &mut _| self.prepare_on(FoundEnabled::Yes);
        let result = operation.resume(&mut (), start, |_| self.switch_on(0));
        self.end_change(&result, EnableState::On);
        result
    }

    /// Features of the unit. *Context.* Interrupt.
    pub fn features(&self) -> &Features {
        &self.shared.features
    }

    /// Commands written to the queue so far. *Context.* Interrupt.
    pub fn counts(&self) -> CommandCounts {
        self.shared.counts()
    }

    /// The unit's queue. *Context.* Interrupt.
    pub fn queue(&self) -> SmmuQueue<P> {
        SmmuQueue(self.shared.clone())
    }
}

impl<P: UnitPlatform> Drop for Smmu<P> {
    fn drop(&mut self) {
        if self.disable().is_err() {
            return;
        }
        let machine = &*self.shared.machine;
        self.streams.release(machine);
        self.table.release(machine);
        let records = [Some(&self.events), self.requests.as_ref()];
        for records in records.into_iter().flatten() {
            machine.free(records.with(|records| records.block()));
        }
    }
}
