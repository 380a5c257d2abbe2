//! The command queue, with many producers.
//!
//! IHI 0070, sections 3.5 (queues), 4.8 (CMD_SYNC) and 7.1 (command queue errors).
//!
//! Commands are written under a lock that is never held across a wait: a producer that finds no
//! room lets go of it and polls. When several producers are at work, one sync serves all whose
//! commands came before it. Each waits for its sync by the consumer index, or by the message that
//! the sync writes to memory.
//!
//! A refused command is replaced by a sync, the error acknowledged, and the refusal reported to
//! the producer of that command and to nobody else. A device that does not answer an invalidation
//! is reported to everybody whose commands it may have been among.

use super::command::{self, Counters};
use super::features::Has;
use super::machine::{Block, Machine};
use super::spec::command::{Words, error};
use super::spec::reg;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use portolan::addr::PhysAddr;
use portolan::platform::{Cpus, Guarded, Mmio, TableMem};
use portolan::unit::{Awaited, UnitError};

/// Commands written under one turn of the lock.
const CHUNK: usize = 64;
/// Refusals remembered for producers that have not asked yet.
const FAILURES: usize = 32;
/// Words that syncs write to, used in turn.
const MESSAGES: u64 = 512;
/// Looks at a message between two looks at the registers.
const LOOKS: u32 = 256;

/// A refused command.
#[derive(Clone, Copy, Debug)]
struct Failure {
    position: u64,
    code: u32,
    /// Whose it was; `None` if it may have been anybody's before.
    owner: Option<u64>,
}

/// What the lock protects. Positions count commands since the start.
#[derive(Debug)]
struct Ring {
    produced: u64,
    consumed: u64,
    /// Producer of each slot's command.
    owners: Vec<u64>,
    next_owner: u64,
    /// Position behind the last sync, and its number.
    synced: u64,
    syncs: u32,
    failures: ArrayVec<Failure, FAILURES>,
    /// The youngest failure that had to be dropped from the list.
    forgotten: Option<Failure>,
}

/// One producer's commands.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    owner: u64,
    first: u64,
    /// Position behind the last of them.
    end: u64,
    /// [`CommandQueue::failed`] when they began.
    failed: u64,
}

/// What to wait for.
#[derive(Clone, Copy, Debug)]
struct Waited {
    position: u64,
    sync: u32,
}

/// What follows some commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// More of them.
    More,
    /// A sync.
    Sync,
}

const RUNNING: u8 = 0;
const OFF: u8 = 1;
const STOPPED: u8 = 2;

/// The queue.
#[derive(Debug)]
pub(super) struct CommandQueue<R, M: TableMem<AtomicU64>, C: Cpus> {
    machine: Arc<Machine<R, M, C>>,
    block: Block,
    lg2: u32,
    messages: Option<Block>,
    ring: Guarded<C, Ring>,
    /// Position up to which the unit is known to have consumed.
    done: AtomicU64,
    /// Failures so far.
    failed: AtomicU64,
    /// Producers that want the lock.
    waiting: AtomicUsize,
    state: AtomicU8,
    counters: Counters,
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> CommandQueue<R, M, C> {
    /// A queue of `2^lg2` commands; syncs write messages if `messages` says so.
    pub fn new(machine: Arc<Machine<R, M, C>>, lg2: u32, messages: Has) -> Result<Self, UnitError> {
        let block = machine.alloc(lg2 + super::spec::command::LG2_BYTES)?;
        let messages = match messages {
            Has::No => None,
            Has::Yes => match machine.alloc(12) {
                Ok(block) => Some(block),
                Err(error) => {
                    machine.free(block);
                    return Err(error);
                }
            },
        };
        let ring = Ring {
            produced: 0,
            consumed: 0,
            owners: alloc::vec![0; 1 << lg2],
            next_owner: 0,
            synced: 0,
            syncs: 0,
            failures: ArrayVec::new(),
            forgotten: None,
        };
        Ok(Self {
            machine,
            block,
            lg2,
            messages,
            ring: Guarded::new(ring),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            state: AtomicU8::new(RUNNING),
            counters: Counters::default(),
        })
    }

    /// Gives the unit the queue, which must be disabled.
    pub fn install(&self) {
        let base = reg::BASE_ALLOCATE.at(1) | self.block.at.get() | u64::from(self.lg2);
        self.machine.barrier();
        self.machine.registers.write64(reg::CMDQ_BASE, base);
        self.machine.registers.write32(reg::CMDQ_PROD, 0);
        self.machine.registers.write32(reg::CMDQ_CONS, 0);
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// From now on commands are carried out.
    pub fn set_running(&self) {
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Looks how far the unit is, and puts it back to work if it stopped at a command.
    pub fn service(&self) -> Result<(), UnitError> {
        self.observe(&mut self.ring.lock())
    }

    /// From now on nothing has to be invalidated: the unit is disabled, and forgets everything
    /// when it is enabled.
    pub fn set_off(&self) {
        self.state.store(OFF, Ordering::Release);
    }

    /// From now on every command fails.
    pub fn set_stopped(&self) {
        self.state.store(STOPPED, Ordering::Release);
    }

    /// Whether commands can be written.
    pub fn running(&self) -> Result<(), UnitError> {
        match self.state.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            _ => Err(UnitError::Stopped),
        }
    }

    /// Writes `commands` and a sync, and waits until they are complete.
    pub fn run(&self, commands: &mut dyn Iterator<Item = Words>) -> Result<(), UnitError> {
        if self.state.load(Ordering::Acquire) == OFF {
            return Ok(());
        }
        let mut ticket = None;
        let waited = loop {
            let chunk: ArrayVec<Words, CHUNK> = commands.take(CHUNK).collect();
            let ending = if chunk.is_full() {
                Ending::More
            } else {
                Ending::Sync
            };
            if let Some(waited) = self.place(&chunk, ending, &mut ticket)? {
                break waited;
            }
            if ending == Ending::Sync {
                break self.sync(ticket.as_ref())?;
            }
        };
        self.complete(waited)?;
        ticket.map_or(Ok(()), |ticket| self.verdict(&ticket, waited.position))
    }

    /// Writes `commands`, a part at a time if there is little room; and at once the sync behind
    /// them, if it is their end, there is room and nobody else is at work.
    fn place(
        &self,
        commands: &[Words],
        ending: Ending,
        ticket: &mut Option<Ticket>,
    ) -> Result<Option<Waited>, UnitError> {
        let mut rest = commands;
        loop {
            let (placed, waited) = self.with_ring(|ring| {
                self.running()?;
                let ticket = ticket.get_or_insert_with(|| ring.ticket(&self.failed));
                let room = self.room(ring)?;
                let (now, later) = rest.split_at(rest.len().min(room));
                for words in now {
                    self.put(ring, words, ticket.owner);
                }
                ticket.end = ring.produced;
                rest = later;
                let alone = self.waiting.load(Ordering::Relaxed) == 0;
                let end = ending == Ending::Sync && rest.is_empty();
                let waited = (end && alone && room > now.len()).then(|| {
                    self.put_sync(ring, ticket.owner);
                    ring.waited()
                });
                if !now.is_empty() || waited.is_some() {
                    self.publish(ring);
                }
                Ok((rest.is_empty(), waited))
            })?;
            if placed {
                return Ok(waited);
            }
            self.wait_for_room()?;
        }
    }

    /// A sync behind the commands of `ticket`: somebody else's, if one came meanwhile.
    fn sync(&self, ticket: Option<&Ticket>) -> Result<Waited, UnitError> {
        let (owner, end) = ticket.map_or((0, 0), |ticket| (ticket.owner, ticket.end));
        loop {
            let found = self.with_ring(|ring| {
                self.running()?;
                if ring.synced >= end {
                    return Ok(Some(ring.waited()));
                }
                if self.room(ring)? == 0 {
                    return Ok(None);
                }
                self.put_sync(ring, owner);
                self.publish(ring);
                Ok(Some(ring.waited()))
            })?;
            match found {
                Some(waited) => return Ok(waited),
                None => self.wait_for_room()?,
            }
        }
    }

    /// The caller has seen that there is room.
    fn put_sync(&self, ring: &mut Ring, owner: u64) {
        ring.syncs = ring.syncs.wrapping_add(1);
        let words = self.message(ring.syncs).map_or_else(command::sync, |at| {
            command::sync_message(at.get(), ring.syncs)
        });
        self.put(ring, &words, owner);
        ring.synced = ring.produced;
    }

    fn complete(&self, waited: Waited) -> Result<(), UnitError> {
        let mut looks = 0u32;
        self.machine.wait(Awaited::Completion, || {
            if self.done.load(Ordering::Acquire) >= waited.position || self.told(waited.sync) {
                return Ok(Some(()));
            }
            looks = looks.wrapping_add(1);
            if self.messages.is_some() && looks % LOOKS != 0 {
                return Ok(None);
            }
            let Some(mut ring) = self.ring.try_lock() else {
                return Ok(None);
            };
            self.observe(&mut ring)?;
            Ok((ring.consumed >= waited.position).then_some(()))
        })
    }

    /// Whether a command of `ticket`, complete up to `position`, was refused.
    fn verdict(&self, ticket: &Ticket, position: u64) -> Result<(), UnitError> {
        if self.failed.load(Ordering::Acquire) == ticket.failed {
            return Ok(());
        }
        let ring = self.ring.lock();
        let dropped = ring.forgotten.filter(|f| f.position >= ticket.first);
        let mine = ring.failures.iter().find(|failure| match failure.owner {
            Some(owner) => owner == ticket.owner,
            None => (ticket.first..position).contains(&failure.position),
        });
        match mine.copied().or(dropped) {
            Some(Failure { code, .. }) => Err(UnitError::Refused { code }),
            None => Ok(()),
        }
    }

    fn wait_for_room(&self) -> Result<(), UnitError> {
        self.machine.wait(Awaited::QueueRoom, || {
            let Some(mut ring) = self.ring.try_lock() else {
                return Ok(None);
            };
            Ok((self.room(&mut ring)? != 0).then_some(()))
        })
    }

    fn with_ring<T>(
        &self,
        work: impl FnOnce(&mut Ring) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut ring = self.ring.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        work(&mut ring)
    }

    /// Free slots; looks at the unit only if none is known.
    fn room(&self, ring: &mut Ring) -> Result<usize, UnitError> {
        let entries = 1u64 << self.lg2;
        if ring.produced - ring.consumed >= entries {
            self.observe(ring)?;
        }
        Ok((entries - (ring.produced - ring.consumed)) as usize)
    }

    fn slot(&self, position: u64) -> usize {
        (position & ((1 << self.lg2) - 1)) as usize
    }

    /// The caller has seen that there is room.
    fn put(&self, ring: &mut Ring, words: &Words, owner: u64) {
        let slot = self.slot(ring.produced);
        self.fill(slot, words);
        ring.owners[slot] = owner;
        ring.produced += 1;
    }

    fn fill(&self, slot: usize, words: &Words) {
        self.machine.store(self.block, slot * 2, words[0]);
        self.machine.store(self.block, slot * 2 + 1, words[1]);
        self.counters.count(words);
    }

    /// Index with wrap bit of a position.
    fn index(&self, position: u64) -> u32 {
        (position & ((2 << self.lg2) - 1)) as u32
    }

    fn publish(&self, ring: &Ring) {
        self.machine.barrier();
        let index = self.index(ring.produced);
        self.machine.registers.write32(reg::CMDQ_PROD, index);
    }

    fn message(&self, sync: u32) -> Option<PhysAddr> {
        let block = self.messages?;
        block.at.checked_add(u64::from(sync) % MESSAGES * 8)
    }

    /// Whether the message of a sync, or of a later one to the same word, has arrived.
    fn told(&self, sync: u32) -> bool {
        self.messages.is_some_and(|block| {
            let word = (u64::from(sync) % MESSAGES) as usize;
            let last = self.machine.load(block, word) as u32;
            last.wrapping_sub(sync) < 1 << 31
        })
    }

    /// Reads how far the unit is, and puts it back to work if it stopped at a command.
    fn observe(&self, ring: &mut Ring) -> Result<(), UnitError> {
        let value = self.machine.read(reg::CMDQ_CONS)?;
        let mask = (2u64 << self.lg2) - 1;
        let left = ring.produced.wrapping_sub(value.into()) & mask;
        if left > ring.produced - ring.consumed {
            let offset = reg::CMDQ_CONS;
            let value = value.into();
            return Err(UnitError::Nonsense { offset, value });
        }
        ring.consumed = ring.produced - left;
        self.done.fetch_max(ring.consumed, Ordering::Release);
        let code = reg::CONS_ERR.of(value.into()) as u32;
        if left == 0 || code == 0 {
            return Ok(());
        }
        let errors = self.machine.errors()?;
        if errors & reg::gerror::SFM != 0 {
            self.set_stopped();
            return Err(UnitError::Stopped);
        }
        if errors & reg::gerror::CMDQ != 0 {
            self.recover(ring, code)?;
        }
        Ok(())
    }

    /// The unit stopped at the command at `ring.consumed`.
    fn recover(&self, ring: &mut Ring, code: u32) -> Result<(), UnitError> {
        let position = ring.consumed;
        let slot = self.slot(position);
        let owner = match code {
            // It will be fetched again; if that never works, the wait ends.
            error::ABT => return self.machine.acknowledge(reg::gerror::CMDQ),
            // The sync is done again; whoever waits behind it is told.
            error::ATC_INV_SYNC => None,
            _ => {
                self.fill(slot, &command::sync());
                self.machine.barrier();
                Some(ring.owners[slot])
            }
        };
        let known = ring.failures.iter().any(|f| f.position == position);
        if !known {
            if ring.failures.is_full() {
                ring.forgotten = ring.failures.pop_at(0);
            }
            ring.failures.push(Failure {
                position,
                code,
                owner,
            });
            self.failed.fetch_add(1, Ordering::Release);
        }
        self.machine.acknowledge(reg::gerror::CMDQ)
    }
}

impl<R, M: TableMem<AtomicU64>, C: Cpus> Drop for CommandQueue<R, M, C> {
    /// Gives the memory back if the unit is known to be disabled.
    fn drop(&mut self) {
        if *self.state.get_mut() == OFF {
            for block in [Some(self.block), self.messages].into_iter().flatten() {
                self.machine.mem.free(block.at, block.size);
            }
        }
    }
}

impl Ring {
    fn ticket(&mut self, failed: &AtomicU64) -> Ticket {
        self.next_owner += 1;
        Ticket {
            owner: self.next_owner,
            first: self.produced,
            end: self.produced,
            failed: failed.load(Ordering::Acquire),
        }
    }

    fn waited(&self) -> Waited {
        Waited {
            position: self.synced,
            sync: self.syncs,
        }
    }
}

#[cfg(test)]
mod tests;
