//! A ring of commands that many producers fill and one unit empties.
//!
//! Positions count commands since the start. Commands are written under a lock that is never held
//! across a wait: a producer that finds no room lets go of it and looks again later. When several
//! producers are at work, one sync serves all whose commands came before it. A sync has a number,
//! which the unit writes to memory behind everything in front; where it cannot, or where that is as
//! good, its index tells. No producer waits for another: an interrupt handler that strikes between
//! two turns of the lock writes its own commands and its own sync. Completion interrupts are not
//! used.
//!
//! Under the lock there are stores to the ring, register accesses and cache maintenance, which do
//! not wait (the contracts of `Mmio` and `TableMem`), no heap, and no locks but those that a driver
//! calls leaves.
//!
//! A unit that meets a bad command stops. The command is replaced by a harmless one, the unit set
//! going again, and only the producer of that command hears of the refusal; of a refused sync,
//! those that wait for it. Of a device that does not answer an invalidation, the producers hear
//! that asked that device. The record is bounded: those whose refusal may have been overwritten
//! hear that ([`Unit::OVERWRITTEN`]).
//!
//! *Context.* Interrupt, but for functions that wait for the unit (atomic) and those that take or
//! give back memory (task).

#[cfg(test)]
mod orders;
mod service;
#[cfg(test)]
mod tests;
mod waits;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use portolan::addr::PhysAddr;
use portolan::iommu::IommuError;
use portolan::platform::{Cpus, Guarded, Held, SharedWord, TableMem, Word};

use super::refusals::{NOBODY, Owner, Refusals, SYNC, Ticket};
use super::{Block, RingShape, Stop, Unit};

/// Commands written under one turn of the lock.
const CHUNK: usize = 64;
/// Words that syncs write their numbers to, in turn: the first half of a page of 4 KiB. As syncs
/// complete in order, a later number stands for an earlier one.
const NUMBERS: u32 = 256;

/// Kind of command that follows some commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// More of them.
    More,
    /// A sync, unless other producers are at work: theirs may serve.
    Sync,
    /// A sync behind them, of any caller.
    AnySync,
}

/// Outcome of one turn of the lock.
struct RingTurn {
    ticket: Ticket,
    /// Commands that were written.
    written: usize,
    sync: Option<Sync>,
}

/// A command for the next slot.
enum RingEntry<'c, K> {
    /// Of this owner.
    Command(&'c K, Owner),
    Sync,
}

/// A sync to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sync {
    /// Position behind it.
    pub(super) position: u64,
    pub(super) number: u32,
}

/// Outcome of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// They are complete.
    Done,
    /// A device that this producer has not asked did not answer, and its silence aborted syncs:
    /// commands since the last wait have to be submitted again.
    Again,
}

#[derive(Debug)]
struct RingState {
    tail: u64,
    /// Position that the unit is known to have reached.
    head: u64,
    /// Owner of each slot's command.
    owners: Vec<Owner>,
    last_owner: Owner,
    /// The last sync.
    sync: Sync,
    refusals: Refusals,
}

impl RingState {
    fn ticket(&mut self) -> Ticket {
        self.last_owner += 1;
        Ticket {
            owner: self.last_owner,
            first: self.tail,
            end: self.tail,
            news: self.refusals.news,
        }
    }
}

/// The ring.
pub(crate) struct Ring<C: Cpus> {
    commands: Block,
    /// Memory to which syncs write their numbers.
    numbers: Option<Block>,
    shape: RingShape,
    /// Most commands between two syncs.
    most_unsynced: u64,
    state: Guarded<C, RingState>,
    /// Position that the unit is known to have reached, for readers that do not hold the lock.
    done: C::Word,
    /// Refusals so far, likewise.
    news: C::Word,
    /// Producers that want the lock.
    waiting: AtomicUsize,
}

impl<C: Cpus> core::fmt::Debug for Ring<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let shape = &self.shape;
        f.debug_struct("Ring").field("shape", shape).finish_non_exhaustive()
    }
}

impl<C: Cpus> Ring<C> {
    /// A ring that its unit does not know of yet, with a sync at least after every `most_unsynced`
    /// commands. Syncs write their numbers if `numbers` says so. *Context.* Task.
    pub(crate) fn new<M: TableMem<AtomicU64>>(
        mem: &M,
        shape: RingShape,
        most_unsynced: u64,
        numbers: bool,
    ) -> Result<Self, IommuError> {
        let commands = Block::new(mem, shape.lg2_slots + shape.lg2_bytes)?;
        let numbers = numbers.then(|| Block::new(mem, 12)).transpose();
        let numbers = numbers.inspect_err(|_| commands.free(mem))?;
        let state = RingState {
            tail: 0,
            head: 0,
            owners: alloc::vec![NOBODY; 1 << shape.lg2_slots],
            last_owner: NOBODY,
            sync: Sync { position: 0, number: 0 },
            refusals: Refusals::default(),
        };
        Ok(Self {
            commands,
            numbers,
            shape,
            most_unsynced,
            state: Guarded::new(state),
            done: SharedWord::new(0),
            news: SharedWord::new(0),
            waiting: AtomicUsize::new(0),
        })
    }

    pub(crate) fn shape(&self) -> RingShape {
        self.shape
    }

    /// Memory from which the unit reads the commands.
    pub(crate) fn commands(&self) -> Block {
        self.commands
    }

    /// Address of a word that the unit may write and no code reads.
    pub(crate) fn spare(&self) -> Option<PhysAddr> {
        self.word(NUMBERS)
    }

    /// Begins again at the first slot, for a unit that is told so next: commands that it has not carried
    /// out are lost. No command is accepted until the unit is [running](Unit::running) again.
    pub(crate) fn restart<U: Unit<Cpus = C>>(&self) {
        let state = &mut *self.state.lock();
        let begin = state.tail.next_multiple_of(self.shape.slots() << U::TURN_BITS);
        (state.tail, state.head, state.sync.position) = (begin, begin, begin);
        self.tell(begin);
    }

    /// Gives the memory back. The unit must have stopped using it. *Context.* Task.
    pub(crate) fn free<M: TableMem<AtomicU64>>(&self, mem: &M) {
        for block in [Some(self.commands), self.numbers].into_iter().flatten() {
            block.free(mem);
        }
    }

    /// Writes `commands` and a sync, and waits until they are complete. `asked` tells if a device
    /// was asked by them; any, if it is `None`. *Context.* Atomic.
    pub(crate) fn run<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        mut commands: impl Iterator<Item = U::Command>,
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        let mut ticket = None;
        loop {
            // Fetched without the lock: they may come from a plan.
            let chunk: ArrayVec<_, CHUNK> = commands.by_ref().take(CHUNK).collect();
            if !chunk.is_full() {
                return self.finish(unit, &mut ticket, &chunk, asked);
            }
            self.place(unit, &mut ticket, &chunk, BatchEnd::More)?;
        }
    }

    /// Writes `commands`, the last of `ticket`, and a sync, and waits until all are complete;
    /// `asked` as for [`Ring::run`]. *Context.* Atomic.
    pub(crate) fn finish<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        ticket: &mut Option<Ticket>,
        commands: &[U::Command],
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        let mut done = || {
            let turn = self.turn(unit, ticket, commands, BatchEnd::Sync)?;
            let (ticket, sync) = match commands.get(turn.written..) {
                Some(rest @ [_, ..]) => self.place(unit, ticket, rest, BatchEnd::Sync)?,
                _ => (turn.ticket, turn.sync),
            };
            let sync = match sync {
                Some(sync) => sync,
                None => self.sync(unit, &ticket)?,
            };
            self.complete(unit, &ticket, sync, asked)
        };
        done().map_err(|error| unit.reason(error))
    }

    /// Writes `commands`, a part at a time if there is little room; and at once the sync behind
    /// them, if it is their end, there is room and no other producer is at work. *Context.* Atomic.
    pub(crate) fn place<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        ticket: &mut Option<Ticket>,
        commands: &[U::Command],
        ending: BatchEnd,
    ) -> Result<(Ticket, Option<Sync>), IommuError> {
        let mut rest = commands;
        loop {
            let turn = self.turn(unit, ticket, rest, ending)?;
            rest = rest.get(turn.written..).unwrap_or(&[]);
            if rest.is_empty() {
                return Ok((turn.ticket, turn.sync));
            }
            self.wait_for_room(unit)?;
        }
    }

    /// Writes one command if there is room for it at once, and tells if there was. Only for
    /// commands that need no sync.
    pub(crate) fn post<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        command: &U::Command,
    ) -> Result<bool, IommuError> {
        let commands = core::slice::from_ref(command);
        let post = || Ok(self.turn(unit, &mut None, commands, BatchEnd::More)?.written == 1);
        if post()? {
            return Ok(true);
        }
        // It may be full because the unit has stopped.
        self.service(unit)?;
        post()
    }

    /// Returns a sync behind the commands of `ticket`: another producer's, if one came meanwhile.
    fn sync<U: Unit<Cpus = C>>(&self, unit: &U, ticket: &Ticket) -> Result<Sync, IommuError> {
        loop {
            let turn = self.turn(unit, &mut Some(*ticket), &[], BatchEnd::AnySync)?;
            match turn.sync {
                Some(sync) => return Ok(sync),
                None => self.wait_for_room(unit)?,
            }
        }
    }

    /// Writes as many of `commands` as there is room for in one turn of the lock, each behind a sync if
    /// one is due, and what ends them.
    fn turn<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        ticket: &mut Option<Ticket>,
        commands: &[U::Command],
        ending: BatchEnd,
    ) -> Result<RingTurn, IommuError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut held = self.state.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        unit.running()?;
        let state = &mut *held;
        let ticket = ticket.get_or_insert_with(|| state.ticket());
        if ending == BatchEnd::AnySync && state.sync.position >= ticket.end {
            return Ok(RingTurn { ticket: *ticket, written: 0, sync: Some(state.sync) });
        }
        let before = state.tail;
        let mut room = self.room(unit, state)?;
        let mut written = 0;
        for command in commands {
            let sync = self.sync_is_due(state);
            if room <= u64::from(sync) {
                break;
            }
            if sync {
                self.put(unit, state, RingEntry::Sync);
            }
            self.put(unit, state, RingEntry::Command(command, ticket.owner));
            room -= 1 + u64::from(sync);
            written += 1;
        }
        let wanted = match ending {
            BatchEnd::More => false,
            BatchEnd::Sync => self.waiting.load(Ordering::Relaxed) == 0,
            BatchEnd::AnySync => true,
        };
        let end = wanted && written == commands.len() && room > 0;
        ticket.end = state.tail;
        if end {
            self.put(unit, state, RingEntry::Sync);
        }
        if state.tail != before {
            unit.barrier();
            unit.set_tail(self.index::<U>(state.tail), self.shape);
        }
        Ok(RingTurn { ticket: *ticket, written, sync: end.then_some(state.sync) })
    }

    fn slot(&self, position: u64) -> usize {
        (position & (self.shape.slots() - 1)) as usize
    }

    /// Address of the command at `position`.
    fn address(&self, position: u64) -> PhysAddr {
        let offset = (self.slot(position) as u64) << self.shape.lg2_bytes;
        PhysAddr::new(self.commands.at.get() + offset)
    }

    /// The unit's index for a position.
    fn index<U: Unit>(&self, position: u64) -> u64 {
        position & ((self.shape.slots() << U::TURN_BITS) - 1)
    }

    /// Free slots as far as is known.
    fn free_slots<U: Unit>(&self, state: &RingState) -> u64 {
        let usable = self.shape.slots() - u64::from(U::TURN_BITS == 0);
        usable - (state.tail - state.head)
    }

    /// Slots that one more command may need: its own, and that of a sync before it.
    fn needed(&self) -> u64 {
        1 + u64::from(self.most_unsynced != u64::MAX)
    }

    fn sync_is_due(&self, state: &RingState) -> bool {
        state.tail - state.sync.position >= self.most_unsynced
    }

    /// Free slots; looks at the unit only if too few are known for one command.
    fn room<U: Unit<Cpus = C>>(&self, unit: &U, state: &mut RingState) -> Result<u64, IommuError> {
        if self.free_slots::<U>(state) < self.needed() {
            self.advance(unit, state)?;
        }
        Ok(self.free_slots::<U>(state))
    }

    /// Writes the next command. The caller has seen that there is room.
    fn put<U: Unit>(&self, unit: &U, state: &mut RingState, entry: RingEntry<'_, U::Command>) {
        let position = state.tail;
        state.tail += 1;
        match entry {
            RingEntry::Command(command, owner) => {
                self.write(unit, state, position, command, owner);
            }
            RingEntry::Sync => {
                let number = state.sync.number.wrapping_add(1);
                state.sync = Sync { position: state.tail, number };
                let command = U::sync(self.word(number % NUMBERS), number);
                self.write(unit, state, position, &command, SYNC);
            }
        }
    }

    /// Writes the command at `position`, which has `owner` from now on.
    #[inline(always)]
    fn write<U: Unit>(
        &self,
        unit: &U,
        state: &mut RingState,
        position: u64,
        command: &U::Command,
        owner: Owner,
    ) {
        let slot = self.slot(position);
        let first = slot << (self.shape.lg2_bytes - 3);
        let words = self.commands.words(unit.machine().0);
        if let Some([low, high]) = words.get(first..first + 2) {
            let [first, second] = U::words(command);
            Word::store(low, first);
            Word::store(high, second);
        }
        if let Some(of) = state.owners.get_mut(slot) {
            *of = owner;
        }
        unit.clean(self.address(position), 1 << self.shape.lg2_bytes);
        unit.count(command);
    }

    fn word(&self, index: u32) -> Option<PhysAddr> {
        self.numbers?.at.checked_add(u64::from(index) * 8)
    }
}

#[cfg(test)]
impl<C: Cpus> Ring<C> {
    /// Keeps everybody else out while `work` runs.
    pub(crate) fn keep_locked(&self, work: impl FnOnce()) {
        let _held = self.state.lock();
        work();
    }
}
