//! The command buffer: a ring of commands that many producers fill.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.4 and
//! 2.5.6 to 2.5.7. Each producer ends its commands with a COMPLETION_WAIT that stores to a word of
//! its own slot, so that whoever waits looks at memory only. The lock is held to write commands,
//! move the tail and repair errors; never while waiting. Completion interrupts are not used.
//!
//! A unit that meets a bad command stops fetching. The command is replaced by a harmless one and
//! fetching is turned on again at the same place: what others submitted is not lost.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Cpus, Guarded, Held, Mmio, OutOfTableMemory, TableMem, Word, poll};
use portolan::unit::{Awaited, UnitError};

use super::command::{self, Counted};
use super::control::Control;
use super::counts::Kind;
use super::events::Events;
use super::spec::command::{LG2_BYTES, Words};
use super::spec::reg::{self, control, status};

/// Commands handed over at a time; the smallest ring has room for several times as many.
const BATCH: usize = 16;

/// Exponents of the number of commands that a ring can have.
const LG2_SLOTS: core::ops::RangeInclusive<u32> = 8..=15;

/// Names whoever submits, for as long as it waits.
type Owner = u64;

/// Whoever is behind commands that nobody waits for.
const NOBODY: Owner = 0;

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
    /// What was refused, until its submitter hears of it.
    refusals: Vec<(Owner, u32)>,
    /// Submitters that have not left.
    active: Vec<Owner>,
    last_owner: Owner,
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
    /// Number of refusals that were not heard of.
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
            refusals: Vec::new(),
            active: Vec::new(),
            last_owner: NOBODY,
        };
        Ok(Self {
            base,
            size,
            stores,
            stores_size,
            lg2_slots,
            state: Guarded::new(state),
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
    ) -> Result<(), UnitError> {
        let mut commands = commands.fuse().peekable();
        if commands.peek().is_none() {
            return Ok(());
        }
        let owner = self.enter();
        let result = loop {
            // One place is left for the wait.
            let batch: ArrayVec<Counted, BATCH> = commands.by_ref().take(BATCH - 1).collect();
            // Looks at the next command without the lock: it may come from a plan.
            let end = match commands.peek() {
                Some(_) => End::MoreToCome,
                None => End::Wait,
            };
            match self.submit(unit, events, owner, &batch, end) {
                Ok(None) => {}
                Ok(Some(position)) => break self.wait(unit, events, owner, position),
                Err(error) => break Err(error),
            }
        };
        match self.leave(owner) {
            Some(code) => Err(UnitError::Refused { code }),
            None => result,
        }
    }

    fn enter(&self) -> Owner {
        let mut state = self.state.lock();
        state.last_owner = state.last_owner.wrapping_add(1).max(NOBODY + 1);
        let owner = state.last_owner;
        state.active.push(owner);
        owner
    }

    /// Forgets what is kept for `owner`; returns what was refused of it.
    fn leave(&self, owner: Owner) -> Option<u32> {
        let mut state = self.state.lock();
        state.active.retain(|of| *of != owner);
        let code = state.refusals.iter().find(|(of, _)| *of == owner);
        let code = code.map(|(_, code)| *code);
        state.refusals.retain(|(of, _)| *of != owner);
        let left = state.refusals.len() as u64;
        self.refused.store(left, Ordering::Release);
        code
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
    ) -> Result<Option<u64>, UnitError> {
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
        owner: Owner,
        position: u64,
    ) -> Result<(), UnitError> {
        let look = || {
            if self.done(&unit.mem, position) {
                return Some(Ok(()));
            }
            if let Err(error) = self.repair(unit, events) {
                return Some(Err(error));
            }
            if self.refused.load(Ordering::Acquire) == 0 {
                return None;
            }
            let state = self.state.lock();
            let code = state.refusals.iter().find(|(of, _)| *of == owner)?.1;
            Some(Err(UnitError::Refused { code }))
        };
        let awaited = Awaited::Completion;
        poll(&unit.clock, unit.limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }))
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
    ) -> Result<Held<'_, C, State>, UnitError> {
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
        let awaited = Awaited::QueueRoom;
        poll(&unit.clock, unit.limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }))
    }

    /// How many commands the unit has fetched, as its head tells.
    fn fetched<R: Mmio, M>(
        &self,
        unit: &Control<R, M, C>,
        state: &State,
    ) -> Result<u64, UnitError> {
        let offset = reg::COMMAND_HEAD;
        let value = unit.read(offset)?;
        // QEMU shows the head behind the last slot before it shows it at the first.
        let ahead = self.slot(reg::INDEX.of(value).wrapping_sub(state.head));
        if reg::INDEX.of(value) > self.slots() || ahead > state.tail - state.head {
            return Err(UnitError::Nonsense { offset, value });
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
    ) -> Result<(), UnitError> {
        let runs = |status: u64| status & status::COMMANDS_RUN != 0;
        if runs(unit.read(reg::STATUS)?) {
            return Ok(());
        }
        let mut state = self.state.lock();
        // Somebody else may have been here since.
        if runs(unit.read(reg::STATUS)?) {
            return Ok(());
        }
        if unit.read(reg::CONTROL)? & control::ENABLE == 0 {
            return Err(UnitError::Stopped);
        }
        let head = self.fetched(unit, &state)?;
        state.head = head;
        unit.switch(!control::COMMANDS, 0)?;
        if head < state.tail {
            let address = self.base.get() + (self.slot(head) << LG2_BYTES);
            let code = events.of_command(unit, address);
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

    /// Keeps the refusal for its submitter, if that has not left.
    fn refuse(&self, state: &mut State, owner: Owner, code: u32) {
        let known = state.refusals.iter().any(|(of, _)| *of == owner);
        if state.active.contains(&owner) && !known {
            state.refusals.push((owner, code));
        }
        let left = state.refusals.len() as u64;
        self.refused.store(left, Ordering::Release);
    }

    /// Whether the unit has fetched everything.
    pub(super) fn drained<R: Mmio, M>(&self, unit: &Control<R, M, C>) -> Result<bool, UnitError> {
        let state = self.state.lock();
        Ok(self.fetched(unit, &state)? == state.tail)
    }
}
