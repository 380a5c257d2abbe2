//! The invalidation queue: a ring of descriptors that many producers fill.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2 and
//! 11.4.9. Descriptors of 128 or 256 bits. Waiting is by status writes, each to a word of its own
//! slot, so that whoever waits looks at memory only. The lock is held to write descriptors, move
//! the tail and repair errors; never while waiting, and nothing is allocated under it: what one
//! producer has to tell another goes to lists of fixed length, and where one is full more of them
//! are told than would have to be. Completion interrupts are not used.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Guarded, Held, Mmio, OutOfTableMemory, TableMem, Word};

use super::control::Control;
use super::counts::Kind;
use super::refusal;
use super::request::{Ending, wait_words};
use super::spec::descriptor::Words;
use super::spec::reg::{self, command, fsts, iqercd, queue};
use super::told::{Asked, NOBODY, Owner, Told, Waited};

/// Commands handed over at a time; a ring has room for several times as many.
pub(super) const BATCH: usize = 16;
/// Commands of one batch.
pub(super) type Batch = ArrayVec<(Kind, Words), BATCH>;

/// Width of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Bits128,
    Bits256,
}

impl Width {
    const fn lg2_bytes(self) -> u32 {
        match self {
            Self::Bits128 => 4,
            Self::Bits256 => 5,
        }
    }
}

/// A wait that was submitted: where, counted since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct State {
    /// Descriptors submitted since the start.
    tail: u64,
    /// Of these, how many the unit is known to have fetched.
    head: u64,
    /// Who submitted what is in each slot.
    owners: Box<[Owner]>,
    told: Told,
}

/// The ring.
#[derive(Debug)]
pub(super) struct Ring<C: Cpus> {
    base: PhysAddr,
    size: PageSize,
    status: PhysAddr,
    status_size: PageSize,
    width: Width,
    lg2_slots: u32,
    state: Guarded<C, State>,
    /// The last name given out.
    last_owner: AtomicU64,
    /// The last one of whom something was refused or aborted. Later ones need not ask.
    told: AtomicU64,
}

impl<C: Cpus> Ring<C> {
    /// A ring of `2^lg2_pages` pages (at most 7), not yet handed to the unit.
    pub(super) fn new<M: TableMem<AtomicU64>>(
        mem: &M,
        lg2_pages: u32,
        width: Width,
    ) -> Result<Self, OutOfTableMemory> {
        let size = PageSize::of_lg2(12 + lg2_pages.min(7));
        let lg2_slots = size.lg2() - width.lg2_bytes();
        // One word for each slot, and one more for harmless waits.
        let status_size = PageSize::of_lg2((lg2_slots + 4).max(12));
        let base = mem.alloc(size)?;
        let status = mem
            .alloc(status_size)
            .inspect_err(|_| mem.free(base, size))?;
        let state = State {
            tail: 0,
            head: 0,
            owners: alloc::vec![NOBODY; 1 << lg2_slots].into_boxed_slice(),
            told: Told::default(),
        };
        Ok(Self {
            base,
            size,
            status,
            status_size,
            width,
            lg2_slots,
            state: Guarded::new(state),
            last_owner: AtomicU64::new(NOBODY),
            told: AtomicU64::new(NOBODY),
        })
    }

    /// What the address register has to hold.
    pub(super) fn address(&self) -> u64 {
        let wide = queue::WIDE.at((self.width == Width::Bits256).into());
        self.base.get() | queue::SIZE.at((self.size.lg2() - 12).into()) | wide
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free<M: TableMem<AtomicU64>>(&self, mem: &M) {
        mem.free(self.base, self.size);
        mem.free(self.status, self.status_size);
    }

    fn slots(&self) -> u64 {
        1 << self.lg2_slots
    }

    fn slot(&self, position: u64) -> u64 {
        position & (self.slots() - 1)
    }

    /// A name for a new attempt.
    pub(super) fn owner(&self) -> Owner {
        self.last_owner.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Hands `batch` over, once there is room.
    pub(super) fn submit<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        owner: Owner,
        batch: &Batch,
    ) -> Result<(), IommuError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut state = self.room(control, mem, batch.len() as u64)?;
        for (kind, words) in batch {
            control.counters.add(*kind);
            self.put(mem, &mut state, *words, owner);
        }
        self.publish(control, mem, state.tail);
        Ok(())
    }

    /// Hands a wait over, once there is room.
    pub(super) fn submit_wait<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        owner: Owner,
        ending: Ending,
    ) -> Result<Ticket, IommuError> {
        let mut state = self.room(control, mem, 1)?;
        control.counters.add(Kind::Wait);
        let position = state.tail;
        let slot = self.slot(position);
        // What the word held is older by a turn of the ring at least: make it just too old.
        if let Some(word) = mem.table(self.status, self.status_size).get(slot as usize) {
            Word::store(word, u64::from(position as u32));
        }
        let address = self.status.get() + slot * 8;
        let data = (position as u32).wrapping_add(1);
        self.put(mem, &mut state, wait_words(address, data, ending), owner);
        self.publish(control, mem, state.tail);
        Ok(Ticket(position))
    }

    /// Waits for `ticket` of `owner`, who has asked devices as `asked` says. As long as the unit
    /// goes on fetching what comes before, the limit does not run out.
    pub(super) fn wait<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        owner: Owner,
        ticket: Ticket,
        asked: &impl Asked,
    ) -> Result<Waited, IommuError> {
        let look = || {
            let done = self.done(mem, ticket);
            if !done {
                if let Err(error) = self.repair(control, mem) {
                    return Some(Err(error));
                }
            }
            // Also if the last wait is done: one between stages may have been aborted.
            if self.told.load(Ordering::Acquire) >= owner {
                if let Some(news) = self.news(owner, asked) {
                    return Some(news);
                }
            }
            done.then_some(Ok(Waited::Done))
        };
        let progress = || self.progress(control).min(ticket.0 + 1);
        let waited = control.patient(Awaited::Completion, look, progress);
        match waited {
            // A unit that was reset in between has forgotten its queue.
            Err(IommuError::TimedOut { .. }) if control.status()? & command::QIE == 0 => {
                Err(IommuError::Stopped)
            }
            waited => waited,
        }
    }

    /// What `owner` has to hear, if anything.
    fn news(&self, owner: Owner, asked: &impl Asked) -> Option<Result<Waited, IommuError>> {
        let aborted = self.state.lock().told.news(owner)?;
        Some(aborted.and_then(|aborted| aborted.verdict(owner, asked)))
    }

    /// After a failure: what is still queued of `owner` is nobody's.
    pub(super) fn abandon(&self, owner: Owner) {
        let mut state = self.state.lock();
        for of in state.owners.iter_mut().filter(|of| **of == owner) {
            *of = NOBODY;
        }
        state.told.forget(owner);
    }

    fn done<M: TableMem<AtomicU64>>(&self, mem: &M, ticket: Ticket) -> bool {
        let slot = self.slot(ticket.0) as usize;
        let Some(word) = mem.table(self.status, self.status_size).get(slot) else {
            return false;
        };
        let wanted = (ticket.0 as u32).wrapping_add(1);
        // A later wait in the same slot stands for this one, too.
        (Word::load(word) as u32).wrapping_sub(wanted) < 1 << 31
    }

    /// The lock, with room for `count` descriptors.
    fn room<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        count: u64,
    ) -> Result<Held<'_, C, State>, IommuError> {
        let fits = |state: &State| state.tail - state.head + count < self.slots();
        let look = || {
            let mut state = self.state.lock();
            if fits(&state) {
                return Some(Ok(state));
            }
            match self.fetched(control, &state) {
                Ok(head) => state.head = head,
                Err(error) => return Some(Err(error)),
            }
            if fits(&state) {
                return Some(Ok(state));
            }
            drop(state);
            self.repair(control, mem).err().map(Err)
        };
        control.patient(Awaited::QueueRoom, look, || self.progress(control))
    }

    /// How many descriptors the unit has fetched, as far as that can be known.
    fn progress<R: Mmio>(&self, control: &Control<R, C>) -> u64 {
        let mut state = self.state.lock();
        if let Ok(head) = self.fetched(control, &state) {
            state.head = head;
        }
        state.head
    }
    /// How many descriptors the unit has fetched, as its head tells.
    fn fetched<R: Mmio>(&self, control: &Control<R, C>, state: &State) -> Result<u64, IommuError> {
        let value = control.regs.read64(reg::IQH);
        if value == u64::MAX {
            return Err(IommuError::Gone);
        }
        let index = queue::OFFSET.of(value) >> self.width.lg2_bytes();
        let ahead = self.slot(index.wrapping_sub(state.head));
        if index >= self.slots() || ahead > state.tail - state.head {
            let offset = reg::IQH;
            return Err(IommuError::Nonsense { offset, value });
        }
        Ok(state.head + ahead)
    }

    /// Writes a descriptor of `owner` to the tail.
    fn put<M: TableMem<AtomicU64>>(&self, mem: &M, state: &mut State, words: Words, owner: Owner) {
        let position = state.tail;
        self.write(mem, position, words);
        let slot = self.slot(position) as usize;
        if let Some(of) = state.owners.get_mut(slot) {
            *of = owner;
        }
        state.tail += 1;
    }

    fn write<M: TableMem<AtomicU64>>(&self, mem: &M, position: u64, words: Words) {
        let per_slot = 1 << (self.width.lg2_bytes() - 3);
        let first = self.slot(position) as usize * per_slot;
        let ring = mem.table(self.base, self.size);
        let slot = ring.get(first..first + per_slot).unwrap_or(&[]);
        let all = words.into_iter().chain(core::iter::repeat(0));
        for (word, value) in slot.iter().zip(all) {
            Word::store(word, value);
        }
        let start = PhysAddr::new(self.base.get() + first as u64 * 8);
        if let Some(bytes) = PhysRange::from_len(start, 1 << self.width.lg2_bytes()) {
            mem.clean(bytes);
        }
    }

    /// Moves the unit's tail. It wraps: the offset behind the last slot is that of the first.
    fn publish<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        tail: u64,
    ) {
        mem.clean_barrier();
        let offset = self.slot(tail) << self.width.lg2_bytes();
        control.regs.write64(reg::IQT, offset);
    }

    /// Looks whether the queue has stopped, and sets it going again (6.5.2.10): a refused
    /// descriptor is replaced by a wait that nobody waits for; a device's time-out is told to
    /// whoever asked that device, and to everybody that waits may have been aborted; and only the
    /// bit that was dealt with is cleared.
    fn repair<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
    ) -> Result<(), IommuError> {
        let stopped = fsts::IQE | fsts::ITE | fsts::ICE;
        match control.regs.read32(reg::FSTS) {
            u32::MAX => return Err(IommuError::Gone),
            status if status & stopped == 0 => return Ok(()),
            _ => {}
        }
        let mut state = self.state.lock();
        // Somebody else may have been here since.
        let status = control.regs.read32(reg::FSTS);
        let record = control.regs.read64(reg::IQERCD);
        if status == u32::MAX || (record == u64::MAX && status & stopped != 0) {
            return Err(IommuError::Gone);
        }
        if status & fsts::ITE != 0 {
            let last = self.last_owner.load(Ordering::Acquire);
            state.told.timed_out(iqercd::ITESID.of(record) as u16, last);
            self.told.fetch_max(last, Ordering::AcqRel);
            control.regs.write32(reg::FSTS, fsts::ITE);
        }
        if status & fsts::ICE != 0 {
            control.regs.write32(reg::FSTS, fsts::ICE);
        }
        if status & fsts::IQE != 0 {
            let code = iqercd::IQEI.of(record) as u32;
            self.replace(control, mem, &mut state, refusal::DESCRIPTOR | code)?;
        }
        if status & stopped != 0 {
            self.publish(control, mem, state.tail);
        }
        Ok(())
    }

    /// Puts a harmless descriptor in place of the one that the head is at.
    fn replace<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        state: &mut State,
        code: u32,
    ) -> Result<(), IommuError> {
        let head = self.fetched(control, state)?;
        if head < state.tail {
            let spare = self.status.get() + self.slots() * 8;
            self.write(mem, head, wait_words(spare, 0, Ending::Plain));
            control.counters.add(Kind::Replaced);
            let slot = self.slot(head) as usize;
            let owner = state.owners.get_mut(slot);
            let owner = owner.map_or(NOBODY, |of| core::mem::replace(of, NOBODY));
            let last = self.last_owner.load(Ordering::Acquire);
            let told = state.told.refuse(owner, code, last);
            self.told.fetch_max(told, Ordering::AcqRel);
            mem.clean_barrier();
        }
        state.head = head;
        control.regs.write32(reg::FSTS, fsts::IQE);
        Ok(())
    }

    /// Whether the unit has fetched everything.
    pub(super) fn drained<R: Mmio>(&self, control: &Control<R, C>) -> Result<bool, IommuError> {
        let state = self.state.lock();
        Ok(self.fetched(control, &state)? == state.tail)
    }
}
