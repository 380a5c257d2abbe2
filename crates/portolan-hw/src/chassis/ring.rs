//! A ring of commands that many producers fill and one unit empties.
//!
//! Positions count commands since the start. Commands are written under a lock that is never held
//! across a wait: a producer that finds no room lets go of it and looks again later. When several
//! producers are at work, one sync serves all whose commands came before it. A sync has a number,
//! which the unit writes to memory behind everything in front; where it cannot, or where that is as
//! good, its index tells. Nobody waits for another producer: an interrupt handler that strikes
//! between two turns of the lock writes its own commands and its own sync. Completion interrupts
//! are not used.
//!
//! Under the lock there are stores to the ring, register accesses and cache maintenance, which do
//! not wait (the contracts of `Mmio` and `TableMem`), no heap, and no locks but those that a driver
//! calls leaves.
//!
//! A unit that meets a bad command stops. The command is replaced by a harmless one, the unit set
//! going again, and the refusal told to the producer of that command and to nobody else; a refused
//! sync to those who wait for it. A device that does not answer an invalidation is told to those
//! who asked that device. The record is bounded: those whose refusal may have been overwritten hear
//! that ([`Unit::OVERWRITTEN`]).
//!
//! *Context.* Interrupt, but for what waits for the unit (atomic) and what takes or gives back
//! memory (task).

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use portolan::addr::PhysAddr;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Guarded, Held, Nanos, TableMem, Word};

use super::refusals::{NOBODY, Owner, Refusals, SYNC, Ticket, Why};
use super::{Block, wait_while_it_works};

/// Commands written under one turn of the lock.
const CHUNK: usize = 64;
/// Words that syncs write their numbers to, in turn: the first half of a page of 4 KiB. As syncs
/// complete in order, a later number stands for an earlier one.
const NUMBERS: u32 = 256;
/// Looks at memory between two looks at registers.
const LOOKS: u32 = 256;

/// The words of a command. A ring of wider slots leaves the others zero.
pub(crate) type Words = [u64; 2];

/// Sizes of a ring, as exponents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Of the number of slots.
    pub(crate) lg2_slots: u32,
    /// Of a slot's bytes.
    pub(crate) lg2_bytes: u32,
}

impl Shape {
    const fn slots(self) -> u64 {
        1 << self.lg2_slots
    }
}

/// Why a unit stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// What its registers said, for [`Unit::resume`].
    pub(crate) seen: u32,
    /// It refused the command at its head, with this code.
    pub(crate) refused: Option<u32>,
    /// A device did not answer: `Some(None)` if the unit does not say which.
    pub(crate) silent: Option<Option<u16>>,
}

/// What a driver says of its unit's ring. Everything here waits for nothing.
pub(crate) trait Unit {
    type Memory: TableMem<AtomicU64>;
    type Cpus: Cpus;
    type Command: Copy;

    /// Bits of the unit's index beyond those that tell slots apart: with one, full is told from
    /// empty, and all slots can be used.
    const TURN_BITS: u32;
    /// Whether the index moves behind a sync only once that is complete.
    const INDEX_COMPLETES: bool;
    /// Whether a device that does not answer takes the syncs under way with it.
    const ABORTS_SYNCS: bool;
    /// Register of the head.
    const HEAD: usize;
    /// What is said of a refusal that was overwritten.
    const OVERWRITTEN: u32;

    fn mem(&self) -> &Self::Memory;
    fn clock(&self) -> &Self::Cpus;
    fn limit(&self) -> Nanos;
    /// An error once commands are no longer accepted.
    fn running(&self) -> Result<(), IommuError> {
        Ok(())
    }

    fn words(command: &Self::Command) -> Words;
    /// Counts a command that is written.
    fn count(&self, command: &Self::Command);
    /// Writes `number` to `at` once everything in front is complete; without `at` the index alone
    /// tells.
    fn sync(at: Option<PhysAddr>, number: u32) -> Self::Command;
    /// Replaces a refused command; may write to `spare`.
    fn harmless(spare: Option<PhysAddr>) -> Self::Command;

    /// Makes sure that the unit reads what was stored at `at`.
    fn clean(&self, _at: PhysAddr, _bytes: u64) {}
    /// Orders the stores before whatever comes after.
    fn barrier(&self) {}

    /// The register of the head.
    fn head(&self) -> Result<u64, IommuError>;
    /// The index in it.
    fn index(head: u64, shape: Shape) -> u64;
    fn set_tail(&self, index: u64, shape: Shape);

    /// Whether the unit has stopped, with `head` in its register.
    fn stopped(&self, head: u64) -> Result<Option<Stop>, IommuError>;
    /// More about `code`, with which the unit refused the command at `at`; without the ring's lock.
    fn why(&self, code: u32, _at: PhysAddr) -> u32 {
        code
    }
    /// The code of a device that did not answer.
    fn silent(stream: Option<u16>) -> u32;
    /// Acknowledges `stop`, and sets the unit going again between two indices.
    fn resume(&self, stop: Stop, shape: Shape, head: u64, tail: u64) -> Result<(), IommuError>;
}

/// What follows some commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// More of them.
    More,
    /// A sync.
    Sync,
}

/// A sync to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sync {
    /// Position behind it.
    pub(super) position: u64,
    pub(super) number: u32,
}

/// What became of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// They are complete.
    Done,
    /// A device that this producer has not asked did not answer, and its silence took syncs with it:
    /// what came since the last wait has to be submitted again.
    Again,
}

/// How far a unit is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    head: u64,
    free: u64,
}

#[derive(Debug)]
struct State {
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

impl State {
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
#[derive(Debug)]
pub(crate) struct Ring<C: Cpus> {
    commands: Block,
    /// Where syncs write their numbers.
    numbers: Option<Block>,
    shape: Shape,
    /// Most commands between two syncs.
    most_unsynced: u64,
    state: Guarded<C, State>,
    /// Position that the unit is known to have reached, for those who do not hold the lock.
    done: AtomicU64,
    /// Refusals so far, likewise.
    news: AtomicU64,
    /// Producers that want the lock.
    waiting: AtomicUsize,
}

impl<C: Cpus> Ring<C> {
    /// A ring that its unit does not know of yet, with a sync at least after every `most_unsynced`
    /// commands. Syncs write their numbers if `numbers` says so. *Context.* Task.
    pub(crate) fn new<M: TableMem<AtomicU64>>(
        mem: &M,
        shape: Shape,
        most_unsynced: u64,
        numbers: Option<()>,
    ) -> Result<Self, IommuError> {
        let commands = Block::new(mem, shape.lg2_slots + shape.lg2_bytes)?;
        let numbers = numbers.map(|()| Block::new(mem, 12)).transpose();
        let numbers = numbers.inspect_err(|_| commands.free(mem))?;
        let state = State {
            tail: 0,
            head: 0,
            owners: alloc::vec![NOBODY; 1 << shape.lg2_slots],
            last_owner: NOBODY,
            sync: Sync {
                position: 0,
                number: 0,
            },
            refusals: Refusals::default(),
        };
        Ok(Self {
            commands,
            numbers,
            shape,
            most_unsynced,
            state: Guarded::new(state),
            done: AtomicU64::new(0),
            news: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Where the unit finds the commands.
    pub(crate) fn commands(&self) -> Block {
        self.commands
    }

    /// A word that the unit may write and nobody reads.
    pub(crate) fn spare(&self) -> Option<PhysAddr> {
        self.word(NUMBERS)
    }

    /// Gives the memory back. The unit must have stopped using it. *Context.* Task.
    pub(crate) fn free<M: TableMem<AtomicU64>>(&self, mem: &M) {
        for block in [Some(self.commands), self.numbers].into_iter().flatten() {
            block.free(mem);
        }
    }

    /// Writes `commands` and a sync, and waits until they are complete. `asked` says whether a
    /// device was asked by them; any, if it is `None`. *Context.* Atomic.
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
            self.place(unit, &mut ticket, &chunk, Ending::More)?;
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
        let (ticket, placed) = self.place(unit, ticket, commands, Ending::Sync)?;
        let sync = match placed {
            Some(sync) => sync,
            None => self.sync(unit, &ticket)?,
        };
        self.complete(unit, &ticket, sync, asked)
    }

    /// Writes `commands`, a part at a time if there is little room; and at once the sync behind
    /// them, if it is their end, there is room and nobody else is at work. *Context.* Atomic.
    pub(crate) fn place<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        ticket: &mut Option<Ticket>,
        commands: &[U::Command],
        ending: Ending,
    ) -> Result<(Ticket, Option<Sync>), IommuError> {
        let mut rest = commands;
        loop {
            let (ticket, sync) = self.with_state(unit, |state| {
                let ticket = ticket.get_or_insert_with(|| state.ticket());
                let before = state.tail;
                let mut room = self.room(unit, state)?;
                while let [command, later @ ..] = rest {
                    let sync = self.sync_is_due(state);
                    if room <= u64::from(sync) {
                        break;
                    }
                    if sync {
                        self.put_sync(unit, state);
                    }
                    self.put(unit, state, command, ticket.owner);
                    room -= 1 + u64::from(sync);
                    rest = later;
                }
                ticket.end = state.tail;
                let alone = self.waiting.load(Ordering::Relaxed) == 0;
                let end = ending == Ending::Sync && rest.is_empty();
                let sync = (end && alone && room > 0).then(|| self.put_sync(unit, state));
                if state.tail != before {
                    self.publish(unit, state);
                }
                Ok((*ticket, sync))
            })?;
            if rest.is_empty() {
                return Ok((ticket, sync));
            }
            self.wait_for_room(unit)?;
        }
    }

    /// Writes one command if there is room for it at once; whether there was. Only for commands
    /// that need no sync.
    pub(crate) fn post<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        command: &U::Command,
    ) -> Result<bool, IommuError> {
        let post = || {
            self.with_state(unit, |state| {
                let sync = self.sync_is_due(state);
                if self.room(unit, state)? <= u64::from(sync) {
                    return Ok(false);
                }
                let owner = state.ticket().owner;
                if sync {
                    self.put_sync(unit, state);
                }
                self.put(unit, state, command, owner);
                self.publish(unit, state);
                Ok(true)
            })
        };
        if post()? {
            return Ok(true);
        }
        // It may be full because the unit has stopped.
        self.service(unit)?;
        post()
    }

    /// A sync behind the commands of `ticket`: somebody else's, if one came meanwhile.
    fn sync<U: Unit<Cpus = C>>(&self, unit: &U, ticket: &Ticket) -> Result<Sync, IommuError> {
        loop {
            let found = self.with_state(unit, |state| {
                if state.sync.position >= ticket.end {
                    return Ok(Some(state.sync));
                }
                if self.room(unit, state)? == 0 {
                    return Ok(None);
                }
                let sync = self.put_sync(unit, state);
                self.publish(unit, state);
                Ok(Some(sync))
            })?;
            match found {
                Some(sync) => return Ok(sync),
                None => self.wait_for_room(unit)?,
            }
        }
    }

    fn with_state<T, U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        work: impl FnOnce(&mut State) -> Result<T, IommuError>,
    ) -> Result<T, IommuError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        unit.running()?;
        work(&mut state)
    }

    fn slot(&self, position: u64) -> usize {
        (position & (self.shape.slots() - 1)) as usize
    }

    /// Where the unit reads the command at `position`.
    fn address(&self, position: u64) -> PhysAddr {
        let offset = (self.slot(position) as u64) << self.shape.lg2_bytes;
        PhysAddr::new(self.commands.at.get() + offset)
    }

    /// The unit's index for a position.
    fn index<U: Unit>(&self, position: u64) -> u64 {
        position & ((self.shape.slots() << U::TURN_BITS) - 1)
    }

    /// Free slots as far as is known.
    fn free_slots<U: Unit>(&self, state: &State) -> u64 {
        let usable = self.shape.slots() - u64::from(U::TURN_BITS == 0);
        usable - (state.tail - state.head)
    }

    /// Slots that one more command may need: its own, and that of a sync before it.
    fn needed(&self) -> u64 {
        1 + u64::from(self.most_unsynced != u64::MAX)
    }

    fn sync_is_due(&self, state: &State) -> bool {
        state.tail - state.sync.position >= self.most_unsynced
    }

    /// Free slots; looks at the unit only if too few are known for one command.
    fn room<U: Unit<Cpus = C>>(&self, unit: &U, state: &mut State) -> Result<u64, IommuError> {
        if self.free_slots::<U>(state) < self.needed() {
            self.advance(unit, state)?;
        }
        Ok(self.free_slots::<U>(state))
    }

    /// The caller has seen that there is room.
    fn put<U: Unit>(&self, unit: &U, state: &mut State, command: &U::Command, owner: Owner) {
        self.write(unit, state.tail, command);
        if let Some(of) = state.owners.get_mut(self.slot(state.tail)) {
            *of = owner;
        }
        state.tail += 1;
    }

    /// The caller has seen that there is room.
    fn put_sync<U: Unit>(&self, unit: &U, state: &mut State) -> Sync {
        let number = state.sync.number.wrapping_add(1);
        let command = U::sync(self.word(number % NUMBERS), number);
        self.put(unit, state, &command, SYNC);
        state.sync = Sync {
            position: state.tail,
            number,
        };
        state.sync
    }

    fn write<U: Unit>(&self, unit: &U, position: u64, command: &U::Command) {
        let first = self.slot(position) << (self.shape.lg2_bytes - 3);
        let words = self.commands.words(unit.mem());
        if let Some([low, high]) = words.get(first..first + 2) {
            let [first, second] = U::words(command);
            Word::store(low, first);
            Word::store(high, second);
        }
        unit.clean(self.address(position), 1 << self.shape.lg2_bytes);
        unit.count(command);
    }

    fn publish<U: Unit>(&self, unit: &U, state: &State) {
        unit.barrier();
        unit.set_tail(self.index::<U>(state.tail), self.shape);
    }

    fn word(&self, index: u32) -> Option<PhysAddr> {
        self.numbers?.at.checked_add(u64::from(index) * 8)
    }

    /// Reads how far the unit is, and returns the register.
    fn advance<U: Unit>(&self, unit: &U, state: &mut State) -> Result<u64, IommuError> {
        let value = unit.head()?;
        let index = U::index(value, self.shape);
        let ahead = self.index::<U>(index.wrapping_sub(state.head));
        if self.index::<U>(index) != index || ahead > state.tail - state.head {
            let offset = U::HEAD;
            return Err(IommuError::Nonsense { offset, value });
        }
        state.head += ahead;
        self.done.fetch_max(state.head, Ordering::Release);
        Ok(value)
    }

    /// Looks how far the unit is, and sets it going again if it has stopped.
    pub(crate) fn service<U: Unit<Cpus = C>>(&self, unit: &U) -> Result<(), IommuError> {
        self.service_locked(unit, self.state.lock()).map(drop)
    }

    fn service_locked<'r, U: Unit<Cpus = C>>(
        &'r self,
        unit: &U,
        mut state: Held<'r, C, State>,
    ) -> Result<Progress, IommuError> {
        let look = |state: &mut State| {
            let value = self.advance(unit, state)?;
            match U::INDEX_COMPLETES && state.head == state.tail {
                true => Ok(None),
                false => unit.stopped(value),
            }
        };
        if let Some(stop) = look(&mut state)? {
            let head = state.head;
            drop(state);
            let why = |code| unit.why(code, self.address(head));
            let code = stop.refused.map(why);
            state = self.state.lock();
            // Somebody else may have been here since.
            if look(&mut state)? == Some(stop) && state.head == head {
                self.repair(unit, &mut state, stop, code)?;
            }
        }
        Ok(Progress {
            head: state.head,
            free: self.free_slots::<U>(&state),
        })
    }

    /// The unit stopped at `state.head`.
    fn repair<U: Unit>(
        &self,
        unit: &U,
        state: &mut State,
        stop: Stop,
        code: Option<u32>,
    ) -> Result<(), IommuError> {
        let head = state.head;
        if let Some(stream) = stop.silent {
            let (after, before) = match U::ABORTS_SYNCS {
                true => (0, state.tail),
                false => (head, head + 1),
            };
            state.refusals.time_out(stream, after, before);
        }
        if let (Some(code), true) = (code, head < state.tail) {
            self.write(unit, head, &U::harmless(self.spare()));
            unit.barrier();
            let owner = state.owners.get_mut(self.slot(head));
            let owner = owner.map_or(NOBODY, |of| core::mem::replace(of, NOBODY));
            state.refusals.refuse(owner, head, code);
        }
        self.news.store(state.refusals.news, Ordering::Release);
        let (head, tail) = (self.index::<U>(head), self.index::<U>(state.tail));
        unit.resume(stop, self.shape, head, tail)
    }

    /// Whether `sync` is complete, as far as is known without a register.
    fn is_complete<U: Unit>(&self, unit: &U, sync: Sync) -> bool {
        if U::INDEX_COMPLETES && self.done.load(Ordering::Acquire) >= sync.position {
            return true;
        }
        let Some(block) = self.numbers else {
            return false;
        };
        let word = block
            .words(unit.mem())
            .get((sync.number % NUMBERS) as usize);
        // A later sync with the same word stands for this one, too. What no sync writes there is not
        // believed.
        let later = word.map_or(u32::MAX, |word| {
            (Word::load(word) as u32).wrapping_sub(sync.number)
        });
        later < 1 << 31 && later % NUMBERS == 0
    }

    /// Waits for `sync` behind the commands of `ticket`. As long as the unit works through what is
    /// in front, the limit does not run out. *Context.* Atomic.
    pub(crate) fn complete<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        ticket: &Ticket,
        sync: Sync,
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        let verdict = || self.verdict::<U>(ticket, sync, asked);
        // A sync that was refused or taken never comes, unless the index tells.
        let early = || match U::INDEX_COMPLETES {
            true => None,
            false => Some(verdict()).filter(|verdict| *verdict != Ok(Outcome::Done)),
        };
        let mut looks = 0u32;
        let look = || {
            if self.is_complete(unit, sync) {
                return Some(verdict());
            }
            looks = looks.wrapping_add(1);
            if self.numbers.is_some() && looks % LOOKS != 0 {
                return early();
            }
            // Whoever holds the lock finds out as well.
            let state = self.state.try_lock()?;
            if let Err(error) = self.service_locked(unit, state) {
                return Some(Err(error));
            }
            match self.is_complete(unit, sync) {
                true => Some(verdict()),
                false => early(),
            }
        };
        // What others have had done behind it says nothing of this sync.
        let progress = || {
            let progress = self.service_locked(unit, self.state.lock())?;
            Ok(progress.head.min(sync.position))
        };
        let awaited = Awaited::Completion;
        wait_while_it_works(unit.clock(), unit.limit(), awaited, look, progress)
    }

    /// What became of the commands of `ticket`, which are complete with `sync`.
    pub(crate) fn verdict<U: Unit>(
        &self,
        ticket: &Ticket,
        sync: Sync,
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        if self.news.load(Ordering::Acquire) == ticket.news {
            return Ok(Outcome::Done);
        }
        let concern = self.state.lock().refusals.concern(ticket, sync);
        let silent = concern.map_err(|why| IommuError::Refused {
            code: match why {
                Why::Code(code) => code,
                Why::Overwritten => U::OVERWRITTEN,
            },
        })?;
        // Without the lock: who asked what may take another.
        match silent.iter().find(|stream| asked(**stream)) {
            Some(stream) => Err(IommuError::Refused {
                code: U::silent(*stream),
            }),
            None if U::ABORTS_SYNCS && !silent.is_empty() => Ok(Outcome::Again),
            None => Ok(Outcome::Done),
        }
    }

    /// Waits until `enough` of what the unit has done.
    fn wait_until<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        awaited: Awaited,
        enough: impl Fn(Progress) -> bool,
    ) -> Result<(), IommuError> {
        let look = || {
            let state = self.state.try_lock()?;
            match self.service_locked(unit, state) {
                Ok(progress) => enough(progress).then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        };
        let progress = || Ok(self.service_locked(unit, self.state.lock())?.head);
        wait_while_it_works(unit.clock(), unit.limit(), awaited, look, progress)
    }

    fn wait_for_room<U: Unit<Cpus = C>>(&self, unit: &U) -> Result<(), IommuError> {
        let enough = |progress: Progress| progress.free >= self.needed();
        self.wait_until(unit, Awaited::QueueRoom, enough)
    }

    /// Waits until the unit has fetched everything. *Context.* Atomic.
    pub(crate) fn drain<U: Unit<Cpus = C>>(&self, unit: &U) -> Result<(), IommuError> {
        let all = self.shape.slots() - u64::from(U::TURN_BITS == 0);
        self.wait_until(unit, Awaited::Completion, |progress| progress.free == all)
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
