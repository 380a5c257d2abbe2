//! The command buffer: a ring of commands that many producers fill.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.4 and
//! 2.5.6 to 2.5.7. Each producer ends its commands with a COMPLETION_WAIT that stores to a word of
//! its own slot, so that whoever waits looks at memory. The lock is held to write a batch of commands,
//! move the tail and repair errors; never while waiting, and nothing is allocated under it. So an
//! interrupt handler can submit on the CPU whose submission it interrupted. Completion interrupts are
//! not used.
//!
//! A unit that meets a bad command stops fetching. The command is replaced by a harmless one and
//! fetching is turned on again at the same place: what others submitted is not lost. Who submitted it
//! finds its refusal in a short list of the last ones; who finds the list overwritten since it began
//! takes its own commands for refused as well.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use portolan::addr::{PageSize, PhysAddr};
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Guarded, Held, Mmio, OutOfTableMemory, TableMem, Word};

use super::command::{self, Counted};
use super::control::{Control, poll_while_it_works};
use super::counts::Kind;
use super::events::Events;
use super::refusal;
use super::spec::command::{LG2_BYTES, Words};
use super::spec::reg::{self, control, status};

/// Commands handed over at a time; the smallest ring has room for several times as many.
const BATCH: usize = 16;

/// Exponents of the number of commands that a ring can have.
const LG2_SLOTS: core::ops::RangeInclusive<u32> = 8..=15;

/// Refusals remembered.
const REFUSALS: usize = 64;

/// Names one submission; none has the number 0.
type Owner = u64;

/// What is behind commands that nobody waits for.
const NOBODY: Owner = 0;

/// One submission: whose commands, and how many refusals there were before its first.
#[derive(Clone, Copy, Debug)]
struct Submission {
    owner: Owner,
    since: u64,
}

/// What is behind a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Another batch.
    MoreToCome,
    /// The wait for all of them.
    Wait,
}

#[derive(Debug)]
struct State {
    /// Commands submitted since the start.
    tail: u64,
    /// Of these, how many the unit is known to have fetched.
    head: u64,
    /// Who submitted what is in each slot.
    owners: Vec<Owner>,
    /// The last refusals, by their number: of whose command, and the code.
    refusals: [(Owner, u32); REFUSALS],
    /// How many there were.
    refused: u64,
}

/// The ring.
#[derive(Debug)]
pub(super) struct Queue<C: Cpus> {
    base: PhysAddr,
    size: PageSize,
    stores: PhysAddr,
    stores_size: PageSize,
    lg2_slots: u32,
    state: Guarded<C, State>,
    submissions: AtomicU64,
    /// How many refusals there were, for those who do not hold the lock.
    refused: AtomicU64,
}

impl<C: Cpus> Queue<C> {
    /// A ring of `2^lg2_slots` commands (8 to 15), not yet handed to the unit.
    pub(super) fn new<M: TableMem<AtomicU64>>(
        mem: &M,
        lg2_slots: u32,
    ) -> Result<Self, OutOfTableMemory> {
        let lg2_slots = lg2_slots.clamp(*LG2_SLOTS.start(), *LG2_SLOTS.end());
        let size = PageSize::of_lg2(lg2_slots + LG2_BYTES);
        let stores_size = PageSize::of_lg2((lg2_slots + 3).max(12));
        let base = mem.alloc(size)?;
        let stores = mem
            .alloc(stores_size)
            .inspect_err(|_| mem.free(base, size))?;
        let state = State {
            tail: 0,
            head: 0,
            owners: alloc::vec![NOBODY; 1 << lg2_slots],
            refusals: [(NOBODY, 0); REFUSALS],
            refused: 0,
        };
        Ok(Self {
            base,
            size,
            stores,
            stores_size,
            lg2_slots,
            state: Guarded::new(state),
            submissions: AtomicU64::new(NOBODY + 1),
            refused: AtomicU64::new(0),
        })
    }

    /// What the base register has to hold.
    pub(super) fn address(&self) -> u64 {
        self.base.get() | reg::LENGTH.at(self.lg2_slots.into())
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free<M: TableMem<AtomicU64>>(&self, mem: &M) {
        mem.free(self.base, self.size);
        mem.free(self.stores, self.stores_size);
    }

    fn slots(&self) -> u64 {
        1 << self.lg2_slots
    }

    fn slot(&self, position: u64) -> u64 {
        position & (self.slots() - 1)
    }

    /// Submits `commands` and a wait behind them, and waits. Without commands there is nothing to
    /// wait for.
    pub(super) fn run<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        unit: &Control<R, M, C>,
        events: &Events<C>,
        commands: &mut dyn Iterator<Item = Counted>,
    ) -> Result<(), IommuError> {
        let mut commands = commands.fuse().peekable();
        if commands.peek().is_none() {
            return Ok(());
        }
        let of = Submission {
            owner: self.submissions.fetch_add(1, Ordering::Relaxed),
            since: self.refused.load(Ordering::Acquire),
        };
        let result = loop {
            // One place is left for the wait.
            let batch: ArrayVec<Counted, BATCH> = commands.by_ref().take(BATCH - 1).collect();
            // Looks at the next command without the lock: it may come from a plan.
            let end = match commands.peek() {
                Some(_) => End::MoreToCome,
                None => End::Wait,
            };
            match self.submit(unit, events, of.owner, &batch, end) {
                Ok(None) => {}
                Ok(Some(position)) => break self.wait(unit, events, of, position),
                Err(error) => break Err(error),
            }
        };
        match self.refusal(of) {
            Some(code) => Err(IommuError::Refused { code }),
            None => result,
        }
    }

    /// Why the unit refused a command of `of`, if it did.
    fn refusal(&self, of: Submission) -> Option<u32> {
        if self.refused.load(Ordering::Acquire) == of.since {
            return None;
        }
        let state = self.state.lock();
        if state.refused - of.since > REFUSALS as u64 {
            return Some(refusal::UNKNOWN);
        }
        let new = (of.since..state.refused).map(|n| n as usize % REFUSALS);
        let mut new = new.filter_map(|at| state.refusals.get(at));
        new.find(|(owner, _)| *owner == of.owner)
            .map(|(_, code)| *code)
    }

    /// Hands `batch` over, once there is room; with the wait if that is its end, whose position is
    /// then returned.
    fn submit<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        unit: &Control<R, M, C>,
        events: &Events<C>,
        owner: Owner,
        batch: &[Counted],
        end: End,
    ) -> Result<Option<u64>, IommuError> {
        let mut state = self.room(unit, events, BATCH as u64)?;
        for (kind, words) in batch {
            self.push(unit, &mut state, owner, *kind, *words);
        }
        let position = (end == End::Wait).then(|| {
            let position = state.tail;
            let address = self.stores.get() + self.slot(position) * 8;
            let words = command::store(address, position + 1);
            self.push(unit, &mut state, owner, Kind::Wait, words);
            position
        });
        self.publish(unit, state.tail);
        Ok(position)
    }

    fn push<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        unit: &Control<R, M, C>,
        state: &mut State,
        owner: Owner,
        kind: Kind,
        words: Words,
    ) {
        unit.counters.add(kind);
        self.write(&unit.mem, state.tail, words);
        let slot = self.slot(state.tail) as usize;
        if let Some(of) = state.owners.get_mut(slot) {
            *of = owner;
        }
        state.tail += 1;
    }

    fn wait<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        unit: &Control<R, M, C>,
        events: &Events<C>,
        of: Submission,
        position: u64,
    ) -> Result<(), IommuError> {
        let look = || {
            if self.done(&unit.mem, position) {
                return Some(Ok(()));
            }
            if let Err(error) = self.repair(unit, events) {
                return Some(Err(error));
            }
            let code = self.refusal(of)?;
            Some(Err(IommuError::Refused { code }))
        };
        // What others have fetched behind it says nothing of this wait.
        let progress = || Ok(self.advance(unit)?.min(position + 1));
        let awaited = Awaited::Completion;
        poll_while_it_works(&unit.clock, unit.limit, awaited, look, progress).unwrap_or_else(Err)
    }

    /// How many commands the unit has fetched.
    fn advance<R: Mmio, M>(&self, unit: &Control<R, M, C>) -> Result<u64, IommuError> {
        let mut state = self.state.lock();
        state.head = self.fetched(unit, &state)?;
        Ok(state.head)
    }

    fn done<M: TableMem<AtomicU64>>(&self, mem: &M, position: u64) -> bool {
        let slot = self.slot(position);
        let word = mem.table(self.stores, self.stores_size).get(slot as usize);
        // A later wait in the same slot stands for this one, too. What no wait stores there is not
        // believed.
        let stored = word.map_or(0, Word::load);
        stored > position && self.slot(stored - 1) == slot
    }

    /// The lock, with room for `count` commands.
    fn room<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        unit: &Control<R, M, C>,
        events: &Events<C>,
        count: u64,
    ) -> Result<Held<'_, C, State>, IommuError> {
        let fits = |state: &State| state.tail - state.head + count < self.slots();
        let look = || {
            let mut state = self.state.lock();
            if fits(&state) {
                return Some(Ok(state));
            }
            match self.fetched(unit, &state) {
                Ok(head) => state.head = head,
                Err(error) => return Some(Err(error)),
            }
            if fits(&state) {
                return Some(Ok(state));
            }
            drop(state);
            self.repair(unit, events).err().map(Err)
        };
        let progress = || self.advance(unit);
        let awaited = Awaited::QueueRoom;
        poll_while_it_works(&unit.clock, unit.limit, awaited, look, progress).unwrap_or_else(Err)
    }

    /// How many commands the unit has fetched, as its head tells.
    fn fetched<R: Mmio, M>(
        &self,
        unit: &Control<R, M, C>,
        state: &State,
    ) -> Result<u64, IommuError> {
        let offset = reg::COMMAND_HEAD;
        let value = unit.read(offset)?;
        // QEMU shows the head behind the last slot before it shows it at the first.
        let ahead = self.slot(reg::INDEX.of(value).wrapping_sub(state.head));
        if reg::INDEX.of(value) > self.slots() || ahead > state.tail - state.head {
            return Err(IommuError::Nonsense { offset, value });
        }
        Ok(state.head + ahead)
    }

    fn write<M: TableMem<AtomicU64>>(&self, mem: &M, position: u64, words: Words) {
        let first = self.slot(position) as usize * words.len();
        let ring = mem.table(self.base, self.size);
        let slot = ring.get(first..first + words.len()).unwrap_or(&[]);
        for (word, value) in slot.iter().zip(words) {
            Word::store(word, value);
        }
    }

    fn publish<R: Mmio, M>(&self, unit: &Control<R, M, C>, tail: u64) {
        let tail = reg::INDEX.at(self.slot(tail));
        unit.regs.write64(reg::COMMAND_TAIL, tail);
    }

    /// Looks whether the unit has stopped fetching, and sets it going again behind a harmless
    /// command in place of the one that it stopped at.
    fn repair<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        unit: &Control<R, M, C>,
        events: &Events<C>,
    ) -> Result<(), IommuError> {
        let runs = |status: u64| status & status::COMMANDS_RUN != 0;
        if runs(unit.read(reg::STATUS)?) {
            return Ok(());
        }
        if unit.read(reg::CONTROL)? & control::ENABLE == 0 {
            return Err(IommuError::Stopped);
        }
        let head = self.advance(unit)?;
        let address = self.base.get() + (self.slot(head) << LG2_BYTES);
        let code = events.of_command(unit, address);
        let mut state = self.state.lock();
        // Somebody else may have been here since.
        if runs(unit.read(reg::STATUS)?) || self.fetched(unit, &state)? != head {
            return Ok(());
        }
        unit.switch(!control::COMMANDS, 0)?;
        if head < state.tail {
            self.write(&unit.mem, head, command::nothing());
            unit.counters.add(Kind::Replaced);
            let slot = self.slot(head) as usize;
            let owner = state.owners.get_mut(slot);
            let owner = owner.map_or(NOBODY, |of| core::mem::replace(of, NOBODY));
            self.refuse(&mut state, owner, code);
        }
        let head = reg::INDEX.at(self.slot(head));
        unit.regs.write64(reg::COMMAND_HEAD, head);
        self.publish(unit, state.tail);
        unit.switch(u64::MAX, control::COMMANDS)
    }

    /// Keeps the refusal for its submitter.
    fn refuse(&self, state: &mut State, owner: Owner, code: u32) {
        let at = state.refused as usize % REFUSALS;
        if let Some(kept) = state.refusals.get_mut(at) {
            *kept = (owner, code);
        }
        state.refused += 1;
        self.refused.store(state.refused, Ordering::Release);
    }

    /// Waits until the unit has fetched everything.
    pub(super) fn drain<R: Mmio, M>(&self, unit: &Control<R, M, C>) -> Result<(), IommuError> {
        let drained = || {
            let state = self.state.lock();
            match self.fetched(unit, &state) {
                Ok(head) => (head == state.tail).then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        };
        let progress = || self.advance(unit);
        let awaited = Awaited::Completion;
        poll_while_it_works(&unit.clock, unit.limit, awaited, drained, progress).unwrap_or_else(Err)
    }
}
