//! The command queue, with many producers.
//!
//! IHI 0070, sections 3.5 (queues), 4.8 (CMD_SYNC) and 7.1 (command queue errors).
//!
//! Commands are written under a lock that is never held across a wait: a producer that finds no
//! room lets go of it and polls. When several producers are at work, one sync serves all whose
//! commands came before it. Each waits for its sync by the consumer index, or by the message that
//! the sync writes to memory. Nobody waits for another producer: an interrupt handler that strikes
//! between two turns of the lock writes its own commands and its own sync.
//!
//! Under the lock there are stores to the queue, register accesses and cache maintenance, which do
//! not wait (the contracts of `Mmio` and `TableMem`), no heap and no other lock but that of
//! `Machine`'s error bits, which is a leaf.
//!
//! A refused command is replaced by a sync, the error acknowledged, and the refusal reported to
//! the producer of that command and to nobody else. A device that does not answer an invalidation
//! is reported to everybody whose device it may have been, and to nobody who asked no device.

mod errors;
mod waits;

use super::command::{self, Counters};
use super::features::Has;
use super::machine::{Block, Machine};
use super::spec::command::{self as layout, Words, op};
use super::spec::reg;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use errors::{FAILURES, Failure};
use portolan::addr::PhysAddr;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Guarded, Mmio, TableMem};

/// Commands written under one turn of the lock.
const CHUNK: usize = 64;
/// Words that syncs write to, used in turn.
const MESSAGES: u64 = 512;
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
    /// Whether devices were asked to forget translations.
    devices: Has,
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
///
/// *Context.* Interrupt, but for [`CommandQueue::run`], which waits for the unit (atomic), and
/// [`CommandQueue::new`], which takes heap memory (task).
#[derive(Debug)]
pub(super) struct CommandQueue<R, M: TableMem<AtomicU64>, C: Cpus> {
    machine: Arc<Machine<R, M, C>>,
    block: Block,
    lg2: u32,
    /// Most commands between two syncs.
    most_unsynced: u64,
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
    /// A queue of `2^lg2` commands, with a sync at least after every `most_unsynced`; syncs write
    /// messages if `messages` says so.
    pub fn new(
        machine: Arc<Machine<R, M, C>>,
        lg2: u32,
        most_unsynced: u64,
        messages: Has,
    ) -> Result<Self, IommuError> {
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
            most_unsynced,
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
    pub fn service(&self) -> Result<(), IommuError> {
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
    pub fn running(&self) -> Result<(), IommuError> {
        match self.state.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            _ => Err(IommuError::Stopped),
        }
    }

    /// Writes `commands` and a sync, and waits until they are complete.
    pub fn run(&self, commands: &mut dyn Iterator<Item = Words>) -> Result<(), IommuError> {
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
    ) -> Result<Option<Waited>, IommuError> {
        let mut rest = commands;
        loop {
            let (placed, waited) = self.with_ring(|ring| {
                self.running()?;
                let ticket = ticket.get_or_insert_with(|| ring.ticket(&self.failed));
                let before = ring.produced;
                let mut room = self.room(ring)?;
                while let [words, later @ ..] = rest {
                    let sync = ring.produced - ring.synced >= self.most_unsynced;
                    if room <= usize::from(sync) {
                        break;
                    }
                    if sync {
                        self.put_sync(ring, ticket.owner);
                    }
                    if layout::OP.get(words) == op::ATC_INV {
                        ticket.devices = Has::Yes;
                    }
                    self.put(ring, words, ticket.owner);
                    room -= 1 + usize::from(sync);
                    rest = later;
                }
                ticket.end = ring.produced;
                let alone = self.waiting.load(Ordering::Relaxed) == 0;
                let end = ending == Ending::Sync && rest.is_empty();
                let waited = (end && alone && room > 0).then(|| {
                    self.put_sync(ring, ticket.owner);
                    ring.waited()
                });
                if ring.produced != before {
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

    /// Writes one command if there is room for it at once, and waits for nothing; whether there
    /// was. Only for commands that need no sync (4.6: answers to stalls and page requests).
    pub fn post(&self, words: &Words) -> Result<Has, IommuError> {
        if self.state.load(Ordering::Acquire) == OFF {
            return Ok(Has::Yes);
        }
        self.with_ring(|ring| {
            self.running()?;
            let sync = ring.produced - ring.synced >= self.most_unsynced;
            if self.room(ring)? <= usize::from(sync) {
                return Ok(Has::No);
            }
            let owner = ring.ticket(&self.failed).owner;
            if sync {
                self.put_sync(ring, owner);
            }
            self.put(ring, words, owner);
            self.publish(ring);
            Ok(Has::Yes)
        })
    }

    /// A sync behind the commands of `ticket`: somebody else's, if one came meanwhile.
    fn sync(&self, ticket: Option<&Ticket>) -> Result<Waited, IommuError> {
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

    fn with_ring<T>(
        &self,
        work: impl FnOnce(&mut Ring) -> Result<T, IommuError>,
    ) -> Result<T, IommuError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut ring = self.ring.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        work(&mut ring)
    }

    /// Free slots as far as is known.
    fn free(&self, ring: &Ring) -> u64 {
        (1 << self.lg2) - (ring.produced - ring.consumed)
    }

    /// Slots that one more command may need: its own, and that of a sync before it.
    fn needed(&self) -> u64 {
        1 + u64::from(self.most_unsynced != u64::MAX)
    }

    /// Free slots; looks at the unit only if too few are known for one command.
    fn room(&self, ring: &mut Ring) -> Result<usize, IommuError> {
        if self.free(ring) < self.needed() {
            self.observe(ring)?;
        }
        Ok(self.free(ring) as usize)
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
}

impl<R, M: TableMem<AtomicU64>, C: Cpus> Drop for CommandQueue<R, M, C> {
    /// Gives the memory back if the unit is known to be disabled. *Context.* Task.
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
            devices: Has::No,
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
