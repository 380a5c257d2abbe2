//! The invalidation queue: a ring of descriptors that many producers fill.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2 and
//! 11.4.9. Descriptors of 128 or 256 bits. Waiting is by status writes, each to a word of its own
//! slot, so that whoever waits looks at memory only. The lock is held to write descriptors, move
//! the tail and repair errors; never while waiting. Completion interrupts are not used.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{Cpus, Guarded, Held, Mmio, OutOfTableMemory, TableMem, Word, poll};
use portolan::unit::{Awaited, UnitError};

use super::control::Control;
use super::counts::Kind;
use super::refusal;
use super::request::wait_words;
use super::spec::descriptor::Words;
use super::spec::reg::{self, fsts, iqercd, queue};

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

/// Names whoever submits, for as long as it waits.
pub(super) type Owner = u64;

/// Whoever is behind descriptors that nobody waits for any more.
const NOBODY: Owner = 0;

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
    owners: Vec<Owner>,
    /// Who is at it, and where the last of it is.
    active: Vec<(Owner, u64)>,
    /// What was refused, until its submitter hears of it.
    refusals: Vec<(Owner, u32)>,
    last_owner: Owner,
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
    /// Number of refusals that were not heard of.
    refused: AtomicU64,
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
            owners: alloc::vec![NOBODY; 1 << lg2_slots],
            active: Vec::new(),
            refusals: Vec::new(),
            last_owner: NOBODY,
        };
        Ok(Self {
            base,
            size,
            status,
            status_size,
            width,
            lg2_slots,
            state: Guarded::new(state),
            refused: AtomicU64::new(0),
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

    /// A name for a new submitter.
    pub(super) fn owner(&self) -> Owner {
        let mut state = self.state.lock();
        state.last_owner = state.last_owner.wrapping_add(1).max(NOBODY + 1);
        state.last_owner
    }

    /// Hands `batch` over, once there is room.
    pub(super) fn submit<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        owner: Owner,
        batch: &Batch,
    ) -> Result<(), UnitError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut state = self.room(control, mem, batch.len() as u64)?;
        for (kind, words) in batch {
            control.counters.add(*kind);
            let position = state.tail;
            self.write(mem, position, *words);
            self.own(&mut state, position, owner);
            state.tail += 1;
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
    ) -> Result<Ticket, UnitError> {
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
        self.write(mem, position, wait_words(address, data));
        self.own(&mut state, position, owner);
        state.tail += 1;
        self.publish(control, mem, state.tail);
        Ok(Ticket(position))
    }

    /// Waits for `ticket` of `owner`.
    pub(super) fn wait<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
        owner: Owner,
        ticket: Ticket,
    ) -> Result<(), UnitError> {
        let look = || {
            if self.done(mem, ticket) {
                return Some(Ok(()));
            }
            if let Err(error) = self.repair(control, mem) {
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
        let waited = poll(&control.clock, control.limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }));
        let refusal = self.leave(owner);
        match refusal {
            Some(code) => Err(UnitError::Refused { code }),
            None => waited,
        }
    }

    /// Forgets what is kept for `owner`; returns what was refused of it.
    pub(super) fn leave(&self, owner: Owner) -> Option<u32> {
        let mut state = self.state.lock();
        state.active.retain(|(of, _)| *of != owner);
        let code = state.refusals.iter().find(|(of, _)| *of == owner);
        let code = code.map(|(_, code)| *code);
        state.refusals.retain(|(of, _)| *of != owner);
        let left = state.refusals.len() as u64;
        self.refused.store(left, Ordering::Release);
        code
    }

    /// Notes whose the descriptor at `position` is.
    fn own(&self, state: &mut State, position: u64, owner: Owner) {
        let slot = self.slot(position) as usize;
        if let Some(of) = state.owners.get_mut(slot) {
            *of = owner;
        }
        match state.active.iter_mut().find(|(of, _)| *of == owner) {
            Some((_, last)) => *last = position,
            None => state.active.push((owner, position)),
        }
    }

    /// As [`Ring::leave`], after a failure: what is still queued of `owner` is nobody's.
    pub(super) fn abandon(&self, owner: Owner) -> Option<u32> {
        let mut state = self.state.lock();
        for of in state.owners.iter_mut().filter(|of| **of == owner) {
            *of = NOBODY;
        }
        drop(state);
        self.leave(owner)
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
    ) -> Result<Held<'_, C, State>, UnitError> {
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
        let awaited = Awaited::QueueRoom;
        poll(&control.clock, control.limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }))
    }

    /// How many descriptors the unit has fetched, as its head tells.
    fn fetched<R: Mmio>(&self, control: &Control<R, C>, state: &State) -> Result<u64, UnitError> {
        let value = control.regs.read64(reg::IQH);
        if value == u64::MAX {
            return Err(UnitError::Gone);
        }
        let index = queue::OFFSET.of(value) >> self.width.lg2_bytes();
        let ahead = self.slot(index.wrapping_sub(state.head));
        if index >= self.slots() || ahead > state.tail - state.head {
            let offset = reg::IQH;
            return Err(UnitError::Nonsense { offset, value });
        }
        Ok(state.head + ahead)
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
    /// descriptor is replaced by a wait that nobody waits for, a device's time-out is told to all
    /// whose descriptors are not known to be complete, as any of theirs may have been for that
    /// device, and any of their waits aborted; and only the bit that was dealt with is cleared.
    fn repair<R: Mmio, M: TableMem<AtomicU64>>(
        &self,
        control: &Control<R, C>,
        mem: &M,
    ) -> Result<(), UnitError> {
        let stopped = fsts::IQE | fsts::ITE | fsts::ICE;
        match control.regs.read32(reg::FSTS) {
            u32::MAX => return Err(UnitError::Gone),
            status if status & stopped == 0 => return Ok(()),
            _ => {}
        }
        let mut state = self.state.lock();
        // Somebody else may have been here since.
        let status = control.regs.read32(reg::FSTS);
        if status == u32::MAX {
            return Err(UnitError::Gone);
        }
        let code = iqercd::IQEI.of(control.regs.read64(reg::IQERCD)) as u32;
        if status & fsts::ITE != 0 {
            self.refuse_unfinished(mem, &mut state);
            control.regs.write32(reg::FSTS, fsts::ITE);
        }
        if status & fsts::ICE != 0 {
            control.regs.write32(reg::FSTS, fsts::ICE);
        }
        if status & fsts::IQE != 0 {
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
    ) -> Result<(), UnitError> {
        let head = self.fetched(control, state)?;
        if head < state.tail {
            let spare = self.status.get() + self.slots() * 8;
            self.write(mem, head, wait_words(spare, 0));
            control.counters.add(Kind::Replaced);
            let slot = self.slot(head) as usize;
            let owner = state.owners.get_mut(slot);
            let owner = owner.map_or(NOBODY, |of| core::mem::replace(of, NOBODY));
            self.refuse(state, owner, code);
            mem.clean_barrier();
        }
        state.head = head;
        control.regs.write32(reg::FSTS, fsts::IQE);
        Ok(())
    }

    fn refuse(&self, state: &mut State, owner: Owner, code: u32) {
        let known = state.refusals.iter().any(|(of, _)| *of == owner);
        if owner != NOBODY && !known {
            state.refusals.push((owner, code));
        }
        let left = state.refusals.len() as u64;
        self.refused.store(left, Ordering::Release);
    }

    /// Refuses what is under way, but not to those whose last wait is complete.
    fn refuse_unfinished<M: TableMem<AtomicU64>>(&self, mem: &M, state: &mut State) {
        let unfinished = |(_, last): &&(Owner, u64)| !self.done(mem, Ticket(*last));
        let active = state.active.iter().filter(unfinished);
        let owners: Vec<Owner> = active.map(|(owner, _)| *owner).collect();
        for owner in owners {
            self.refuse(state, owner, refusal::DEVICE_TLB);
        }
    }

    /// Whether the unit has fetched everything.
    pub(super) fn drained<R: Mmio>(&self, control: &Control<R, C>) -> Result<bool, UnitError> {
        let state = self.state.lock();
        Ok(self.fetched(control, &state)? == state.tail)
    }
}
