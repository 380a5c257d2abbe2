//! Invalidations: the state that a unit shares with its domains (registers, context banks), and
//! synchronisations that several callers share.
//!
//! Steps of plans become register writes here (IHI 0062, TLB maintenance): invalidations of a first
//! stage and by second-stage address go through the domain's context bank, and are complete with
//! that bank's synchronisation; invalidation by VMID is a global register, and is complete with the
//! global one.
//!
//! A unit has one status bit for each context bank, and one for all. Were every caller to begin a
//! synchronisation of its own, each would put off all others' end. So one is under way at a time:
//! callers that come meanwhile wait for the next, which one of them begins for all.
//!
//! No caller waits for another. Each looks at the status bit itself, ends the synchronisation that
//! it finds complete, its own or another's, and begins the next. So a handler that comes on the CPU
//! whose caller waits here waits for the hardware alone, and a caller that is held up holds up no
//! other.
//!
//! *Context.* Atomic where a function waits for the hardware, as synchronisations do; interrupt
//! otherwise.

use super::banks::WrittenBanks;
use super::config::WriteKind;
use super::machine::{ANYTHING, Bank, Banks, SmmuV2Hardware, Stalling};
use super::quirks::Implementation;
use crate::chassis::{Operation, Submitters};
use crate::ids::Ids;
use alloc::vec::Vec;
use portolan::addr::{InvalTag, Iova};
use portolan::inval::{Command, Depth, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{Awaited, IommuError, Stage, TagPool};
use portolan::platform::{Clock, Cpus, Guarded, Nanos, UnitPlatform};
use portolan_spec::smmuv2::{bank, global};

/// Bank and stage that a domain has of the unit. Its bank is also its identifier: see
/// [`SmmuV2Shared::number`].
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BankTag {
    pub bank: Bank,
    pub stage: Stage,
}

/// The highest VMID: 8 bits of CBAR.
const MOST_VMID: u16 = 0xff;

/// Set in the identifier of a second-stage domain.
const SECOND_STAGE: u32 = 1 << 16;

impl BankTag {
    /// The identifier that goes through plans.
    pub fn context(self) -> InvalTag {
        let stage = match self.stage {
            Stage::First => 0,
            Stage::Second => SECOND_STAGE,
        };
        InvalTag::new(stage | u32::from(self.bank.0))
    }

    /// Back from such an identifier; `None` if it is no such.
    pub fn of(context: InvalTag) -> Option<Self> {
        let raw = context.get();
        let stage = match raw & SECOND_STAGE {
            0 => Stage::First,
            _ => Stage::Second,
        };
        let bank = u8::try_from(raw & !SECOND_STAGE).ok()?;
        let bank = Bank(bank);
        Some(Self { bank, stage })
    }
}

/// Parts that a unit and its domains share.
///
/// *Context.* Atomic: functions that sync or forget wait for the unit. [`SmmuV2Shared::new`] and
/// [`SmmuV2Shared::take`] take heap memory and are for tasks; [`SmmuV2Shared::number`] and
/// [`SmmuV2Shared::give_back`] are for interrupts as well.
pub(super) struct SmmuV2Shared<P: UnitPlatform> {
    pub machine: SmmuV2Hardware<P>,
    pub implementation: Implementation,
    /// Banks of either stage.
    pub banks: Ids<P>,
    /// Banks of stage 2 only.
    pub banks_of_stage2: Ids<P>,
    /// For each bank.
    gates: Vec<Gate<P>>,
    global: Gate<P>,
    /// Banks in use, for the search for faults. A leaf: no other lock is taken under it.
    pub in_use: Guarded<P, Banks>,
    /// Banks whose accesses stall. A leaf as well.
    pub stalling: Guarded<P, Stalling>,
    /// Each CPU its own: those that meet share their waits already ([`Gate`]), and commands are no ranges.
    pub submitters: Submitters<P>,
    pub operation: Operation,
    pub written: WrittenBanks<P>,
}

impl<P: UnitPlatform> SmmuV2Shared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.machine.clock
    }

    pub(super) fn operation(&self) -> &Operation {
        &self.operation
    }

    pub fn new(machine: SmmuV2Hardware<P>, implementation: Implementation, banks: u32) -> Self {
        let features = &machine.features;
        let (most, second) = (features.banks, features.banks_of_stage2.min(banks));
        Self {
            banks: Ids::new(second, banks.saturating_sub(1)),
            banks_of_stage2: match second {
                // An empty set.
                0 => Ids::new(1, 0),
                some => Ids::new(0, some - 1),
            },
            gates: (0..most).map(|_| Gate::default()).collect(),
            global: Gate::default(),
            in_use: Guarded::default(),
            stalling: Guarded::new(Stalling::new(most as usize)),
            submitters: Submitters::alone(),
            operation: Operation::default(),
            written: WrittenBanks::new(most),
            machine,
            implementation,
        }
    }

    /// The ASID of a first stage, the VMID of a second. First stages have VMID 0.
    pub fn number(&self, tag: BankTag) -> u16 {
        self.machine.above_bank.saturating_add(tag.bank.0.into())
    }

    /// A bank for `stage`.
    pub fn take(&self, stage: Stage) -> Result<BankTag, IommuError> {
        let second = match stage {
            Stage::First => None,
            Stage::Second => self.banks_of_stage2.take(),
        };
        let found = second.or_else(|| self.banks.take());
        let bank = found.and_then(|bank| u8::try_from(bank).ok());
        let bank = Bank(bank.ok_or(IommuError::OutOfContexts)?);
        let tag = BankTag { bank, stage };
        if stage == Stage::Second && self.number(tag) > MOST_VMID {
            self.give_back(tag);
            return Err(IommuError::OutOfContexts);
        }
        Ok(tag)
    }

    pub fn give_back(&self, tag: BankTag) {
        self.written.note(tag.bank, None);
        self.in_use.lock().remove(tag.bank);
        self.stalling.lock().remove(tag.bank);
        let bank = u32::from(tag.bank.0);
        self.banks_of_stage2.give_back(bank);
        self.banks.give_back(bank);
    }

    /// Waits until the invalidations of a bank are complete, and all accesses that used the
    /// invalidated translations.
    pub fn sync(&self, bank: Bank) -> Result<(), IommuError> {
        let machine = &self.machine;
        let gate = self.gates.get(usize::from(bank.0));
        let gate = gate.ok_or(IommuError::Unsupported)?;
        let (begin, status) =
            (machine.bank(bank, bank::TLBSYNC), machine.bank(bank, bank::TLBSTATUS));
        gate.pass(
            &machine.clock,
            machine.sync_limit,
            || machine.write(WriteKind::TlbSync, begin, ANYTHING),
            || Ok(machine.read(status)? & bank::SACTIVE != 0),
        )
    }

    /// Waits until all invalidations are complete.
    pub fn sync_all(&self) -> Result<(), IommuError> {
        let machine = &self.machine;
        self.global.pass(
            &machine.clock,
            machine.sync_limit,
            || machine.write(WriteKind::TlbGlobalSync, global::TLBGSYNC, ANYTHING),
            || Ok(machine.read(global::TLBGSTATUS)? & global::GSACTIVE != 0),
        )
    }

    /// Forgets everything, and waits.
    pub fn forget_everything(&self) -> Result<(), IommuError> {
        let machine = &self.machine;
        machine.write(WriteKind::TlbiAllNsnh, global::TLBIALLNSNH, ANYTHING);
        self.sync_all()
    }

    /// Has the unit forget all of a domain, without waiting.
    fn forget_all_of(&self, tag: BankTag) {
        let machine = &self.machine;
        let number = u32::from(self.number(tag));
        match tag.stage {
            Stage::First => {
                let register = machine.bank(tag.bank, bank::TLBIASID);
                machine.write(WriteKind::TlbiAsid, register, number);
            }
            Stage::Second => machine.write(WriteKind::TlbiVmid, global::TLBIVMID, number),
        }
    }

    /// Forgets all of a domain, and waits.
    pub fn forget(&self, tag: BankTag) -> Result<(), IommuError> {
        self.forget_all_of(tag);
        match tag.stage {
            Stage::First => self.sync(tag.bank),
            Stage::Second => self.sync_all(),
        }
    }

    fn forget_page(&self, tag: BankTag, iova: Iova, depth: Depth) {
        let unit = iova.get() >> bank::UNIT_LG2;
        let (kind, register, value) = match (tag.stage, depth) {
            (Stage::First, depth) => {
                let address = unit & ((1 << bank::VA_BITS) - 1);
                let value = u64::from(self.number(tag)) << bank::ASID_LSB | address;
                match depth {
                    Depth::LeafOnly => (WriteKind::TlbiVal, bank::TLBIVAL, value),
                    Depth::AllLevels => (WriteKind::TlbiVa, bank::TLBIVA, value),
                }
            }
            (Stage::Second, depth) => {
                let value = unit & ((1 << bank::IPA_BITS) - 1);
                match depth {
                    Depth::LeafOnly => (WriteKind::TlbiIpas2l, bank::TLBIIPAS2L, value),
                    Depth::AllLevels => (WriteKind::TlbiIpas2, bank::TLBIIPAS2, value),
                }
            }
        };
        let register = self.machine.bank(tag.bank, register);
        self.machine.write64(kind, register, value);
    }
}

/// Writes that are not known to be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// In one bank.
    Bank(Bank),
    /// In several, or by global registers.
    All,
}

impl Pending {
    fn add(&mut self, bank: Bank) {
        *self = match *self {
            Self::Nothing => Self::Bank(bank),
            Self::Bank(old) if old == bank => Self::Bank(bank),
            _ => Self::All,
        };
    }
}

crate::chassis::handle!(SmmuV2Queue of SmmuV2Shared, AtomicU64);

impl<P: UnitPlatform> SmmuV2Shared<P> {
    fn finish(&self, pending: Pending) -> Result<(), IommuError> {
        match pending {
            Pending::Nothing => Ok(()),
            Pending::Bank(bank) => self.sync(bank),
            Pending::All => self.sync_all(),
        }
    }

    fn invalidate(&self, command: Command, pending: &mut Pending) -> Result<(), IommuError> {
        let shared = self;
        let known = |context| BankTag::of(context).ok_or(IommuError::Unsupported);
        match command {
            Command::Page { context, iova, depth, .. } => {
                let tag = known(context)?;
                shared.forget_page(tag, iova, depth);
                pending.add(tag.bank);
            }
            Command::Context { context } => {
                let tag = known(context)?;
                shared.forget_all_of(tag);
                match tag.stage {
                    Stage::First => pending.add(tag.bank),
                    Stage::Second => *pending = Pending::All,
                }
            }
            // There are no ranges; where streams go is not cached apart.
            Command::Range { .. } => return Err(IommuError::Unsupported),
            Command::Global | Command::Configuration { .. } => {
                let machine = &shared.machine;
                machine.write(WriteKind::TlbiAllNsnh, global::TLBIALLNSNH, ANYTHING);
                *pending = Pending::All;
            }
        }
        Ok(())
    }
}

impl<P: UnitPlatform> InvalidationQueue for SmmuV2Shared<P> {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        // A unit without power may not be accessed.
        if self.operation.is_off() {
            return Ok(());
        }
        let mut pending = Pending::Nothing;
        for step in steps {
            match step {
                // There is no such buffer.
                Step::FlushWriteBuffer => {}
                Step::Invalidate(command) => self.invalidate(command, &mut pending)?,
                Step::Sync => {
                    self.finish(pending)?;
                    pending = Pending::Nothing;
                }
            }
        }
        Ok(())
    }
}

impl<P: UnitPlatform> TagPool for SmmuV2Queue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let tag = BankTag::of(context).ok_or(IommuError::Unsupported)?;
        let machine = &self.0.machine;
        if !self.0.operation.is_off() {
            // No stream comes here any more: the bank walks nothing from now on.
            machine.configure(machine.bank(tag.bank, bank::SCTLR), 0);
            machine.clear_fault(tag.bank)?;
            self.0.forget(tag)?;
        }
        self.0.give_back(tag);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct SyncState {
    /// The number of the last synchronisation that was begun.
    begun: u64,
    /// All up to this number are complete.
    done: u64,
    /// Those above `done` up to this number failed, the last of them with `error`.
    failed: u64,
    error: Option<IommuError>,
}

impl SyncState {
    fn fail(&mut self, error: IommuError) -> IommuError {
        (self.failed, self.error) = (self.begun, Some(error));
        error
    }

    /// Tells if a synchronisation was begun whose end is not known.
    fn is_under_way(&self) -> bool {
        self.begun > self.done.max(self.failed)
    }
}

/// The synchronisations of one status bit.
///
/// *Locking.* The lock is held for a few instructions and two accesses to registers, never across a
/// wait.
#[derive(Debug)]
pub(super) struct Gate<C: Cpus>(Guarded<C, SyncState>);

impl<C: Cpus> Default for Gate<C> {
    fn default() -> Self {
        Self(Guarded::default())
    }
}

/// The synchronisation that a caller has seen under way, and since when. It had been begun by then,
/// so that the hardware is never given less time than it has.
struct Seen {
    number: u64,
    since: Option<Nanos>,
}

impl Seen {
    /// Time for which `number` has been under way at `now`, a time before which no caller had ended
    /// it.
    fn age(&mut self, number: u64, now: Nanos) -> Nanos {
        if self.number != number {
            // `now` may be a time before this one was begun.
            (self.number, self.since) = (number, None);
            return Nanos::new(0);
        }
        now.since(*self.since.get_or_insert(now))
    }
}

impl<C: Cpus> Gate<C> {
    /// Returns once a synchronisation that was begun after this call is complete. `begin` and
    /// `active` reach the hardware, and do not wait.
    ///
    /// # Errors
    /// The error of `active`, or [`IommuError::TimedOut`] if the hardware takes longer than `limit`
    /// for one synchronisation.
    pub fn pass(
        &self,
        clock: &impl Clock,
        limit: Nanos,
        begin: impl Fn(),
        active: impl Fn() -> Result<bool, IommuError>,
    ) -> Result<(), IommuError> {
        let wanted = self.0.lock().begun + 1;
        let mut seen = Seen { number: 0, since: None };
        loop {
            // Taken before the look: the synchronisation under way then was so at this time.
            let now = clock.now();
            if let Some(result) = self.look(wanted, now, limit, &mut seen, &begin, &active) {
                return result;
            }
            clock.relax();
        }
    }

    /// One look at the hardware; `None` if there is more to wait for.
    fn look(
        &self,
        wanted: u64,
        now: Nanos,
        limit: Nanos,
        seen: &mut Seen,
        begin: &impl Fn(),
        active: &impl Fn() -> Result<bool, IommuError>,
    ) -> Option<Result<(), IommuError>> {
        let mut state = self.0.lock();
        loop {
            if state.done >= wanted {
                return Some(Ok(()));
            }
            if let Some(error) = state.error.filter(|_| state.failed >= wanted) {
                return Some(Err(error));
            }
            if !state.is_under_way() {
                begin();
                state.begun += 1;
            }
            match active() {
                // What was begun may have got lost as well.
                Err(error) => return Some(Err(state.fail(error))),
                Ok(false) => state.done = state.begun,
                Ok(true) => {
                    let (awaited, waited) = (Awaited::Invalidation, seen.age(state.begun, now));
                    if waited < limit {
                        return None;
                    }
                    let error = state.fail(IommuError::TimedOut { awaited, waited });
                    return Some(Err(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_there_and_back() {
        for stage in [Stage::First, Stage::Second] {
            let tag = BankTag { bank: Bank(127), stage };
            assert_eq!(BankTag::of(tag.context()), Some(tag));
        }
        assert_eq!(BankTag::of(InvalTag::new(1 << 17)), None);
    }
}

#[cfg(test)]
mod sync_tests {
    use super::*;
    use core::cell::Cell;
    use core::sync::atomic::{AtomicU64, Ordering};

    struct Ticks(AtomicU64);
    portolan::one_cpu!(Ticks);

    impl Clock for Ticks {
        fn now(&self) -> Nanos {
            Nanos::new(self.0.fetch_add(1, Ordering::Relaxed) + 1)
        }
    }

    const LIMIT: Nanos = Nanos::new(50);

    #[test]
    fn ends_late_or_not_at_all() {
        let (gate, clock) = (Gate::<Ticks>::default(), Ticks(AtomicU64::new(0)));
        let (begun, looks) = (Cell::new(0), Cell::new(0));
        let begin = || begun.set(begun.get() + 1);
        let after_three = || {
            looks.set(looks.get() + 1);
            Ok(looks.get() < 3)
        };
        assert_eq!(gate.pass(&clock, LIMIT, begin, after_three), Ok(()));
        assert_eq!((begun.get(), looks.get()), (1, 3));
        let never = gate.pass(&clock, LIMIT, begin, || Ok(true));
        // A tick for each look: given up at the limit, not behind it.
        let awaited = Awaited::Invalidation;
        assert_eq!(never, Err(IommuError::TimedOut { awaited, waited: LIMIT }));
        // The next caller is not held up by the one that gave up.
        assert_eq!(gate.pass(&clock, LIMIT, begin, || Ok(false)), Ok(()));
        assert_eq!(begun.get(), 3);
        let gone = gate.pass(&clock, LIMIT, begin, || Err(IommuError::Gone));
        assert_eq!(gone, Err(IommuError::Gone));
        assert_eq!(gate.pass(&clock, LIMIT, begin, || Ok(false)), Ok(()));
        assert_eq!(begun.get(), 5);
    }

    /// Clock that calls `strike` between two looks of a waiting caller, once.
    struct Struck<F: Fn() + Send + Sync + 'static> {
        ticks: AtomicU64,
        step: u64,
        strikes: AtomicU64,
        strike: F,
    }

    impl<F: Fn() + Send + Sync + 'static> Clock for Struck<F> {
        fn now(&self) -> Nanos {
            Nanos::new(self.ticks.fetch_add(self.step, Ordering::Relaxed))
        }

        fn relax(&self) {
            if self.strikes.fetch_add(1, Ordering::Relaxed) == 0 {
                (self.strike)();
            }
        }
    }

    /// The status bit of a synchronisation that takes so many looks.
    struct Iommu {
        left: AtomicU64,
        looks: u64,
        begun: AtomicU64,
    }

    impl Iommu {
        fn taking(looks: u64) -> alloc::sync::Arc<Self> {
            alloc::sync::Arc::new(Self { left: AtomicU64::new(0), looks, begun: AtomicU64::new(0) })
        }

        fn begin(&self) {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.left.store(self.looks, Ordering::Relaxed);
        }

        fn is_active(&self) -> bool {
            let left = self.left.load(Ordering::Relaxed);
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
            left > 0
        }
    }

    #[test]
    fn a_handler_on_the_cpu_whose_caller_waits_gets_its_own_synchronisation() {
        let gate = alloc::sync::Arc::new(Gate::<Ticks>::default());
        let unit = Iommu::taking(4);
        let (inner, registers) = (gate.clone(), unit.clone());
        let handled = alloc::sync::Arc::new(spin::Mutex::new(None));
        let result = handled.clone();
        let clock = Struck {
            ticks: AtomicU64::new(0),
            step: 1,
            strikes: AtomicU64::new(0),
            strike: move || {
                let ticks = Ticks(AtomicU64::new(0));
                let begin = || registers.begin();
                let passed = inner.pass(&ticks, LIMIT, begin, || Ok(registers.is_active()));
                *result.lock() = Some(passed);
            },
        };
        let begin = || unit.begin();
        let passed = gate.pass(&clock, LIMIT, begin, || Ok(unit.is_active()));
        assert_eq!((passed, *handled.lock()), (Ok(()), Some(Ok(()))));
        // The handler's was begun after its own call, and the one that it struck was over by then.
        assert_eq!(unit.begun.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_caller_that_was_held_up_does_not_call_the_hardware_slow() {
        let gate = Gate::<Ticks>::default();
        let unit = Iommu::taking(2);
        // Between two looks of this caller more time passes than the hardware has.
        let clock = Struck {
            ticks: AtomicU64::new(0),
            step: 2 * LIMIT.get(),
            strikes: AtomicU64::new(0),
            strike: || {},
        };
        let begin = || unit.begin();
        let passed = gate.pass(&clock, LIMIT, begin, || Ok(unit.is_active()));
        assert_eq!(passed, Ok(()));
    }
}
