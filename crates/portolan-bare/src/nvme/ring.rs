//! A pair of rings: commands one way, completions the other.
//!
//! NVM Express base specification 2.0, sections 3.1.2 (doorbells), 3.3.1.2 and 3.3.3 (queues, entries, phase).

use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::Iova;
use portolan::dma::Coherent;
use portolan::platform::{Clock, Mmio, Nanos, Platform, poll};

use super::NvmeError;
use super::spec::{
    COMMAND, COMPLETION, CSTS_FATAL, Command, Completion, doorbells,
    reg::{CAP, CSTS},
};

/// Most entries of a ring: as many as the admin queues can have.
const MOST_ENTRIES: usize = 4096;

/// Memory that a driver and its controller share.
pub trait RingMemory {
    /// Address of the first byte, for the controller.
    fn iova(&self) -> Iova;

    /// The words: the same ones at each call.
    fn words(&self) -> &[AtomicU64];
}

impl<P: Platform> RingMemory for Coherent<P> {
    fn iova(&self) -> Iova {
        self.iova()
    }

    fn words(&self) -> &[AtomicU64] {
        self.words()
    }
}

/// Registers of a controller, with the clock and the limit of waits for it.
#[derive(Clone, Debug)]
pub struct Access<R, C> {
    /// Registers: the start of BAR 0.
    pub registers: R,
    /// Clock of waits.
    pub clock: C,
    /// Longest time that a command may take.
    pub limit: Nanos,
}

impl<R: Mmio, C: Clock> Access<R, C> {
    /// The status register CSTS.
    ///
    /// # Errors
    /// [`NvmeError::Gone`].
    pub fn status(&self) -> Result<u32, NvmeError> {
        match self.registers.read32(CSTS) {
            u32::MAX => Err(NvmeError::Gone),
            status => Ok(status),
        }
    }

    /// Fails if the controller cannot go on.
    ///
    /// # Errors
    /// [`NvmeError::Gone`], [`NvmeError::Fatal`].
    pub fn check(&self) -> Result<(), NvmeError> {
        match self.status()? {
            status if status & CSTS_FATAL != 0 => Err(NvmeError::Fatal { status }),
            _ => Ok(()),
        }
    }

    /// Waits until `look` finds something or fails, no longer than `limit`.
    pub(super) fn wait<T>(
        &self,
        limit: Nanos,
        mut look: impl FnMut() -> Result<Option<T>, NvmeError>,
    ) -> Result<T, NvmeError> {
        match poll(&self.clock, limit, || look().transpose()) {
            Ok(found) => found,
            Err(_) => Err(NvmeError::TimedOut { status: self.status()? }),
        }
    }
}

/// Progress of a pair of rings, with which another kernel goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// Number of the queues.
    pub number: u16,
    /// Index of the next command.
    pub tail: u16,
    /// Index of the next completion.
    pub head: u16,
    /// The phase bit that it will have.
    pub phase: bool,
}

/// A queue of commands and the queue of their completions.
#[derive(Debug)]
pub struct Ring<R, C, M> {
    access: Access<R, C>,
    number: u16,
    /// Offset of the doorbell for commands, and of that for completions.
    bells: [usize; 2],
    commands: M,
    completions: M,
    /// Entries of each.
    entries: u16,
    /// Index of the next command.
    tail: u16,
    /// Index of the next completion.
    head: u16,
    /// The phase bit that it will have: it changes from one round to the next.
    phase: u64,
}

impl<R: Mmio, C: Clock, M: RingMemory> Ring<R, C, M> {
    /// Queues of this number in `commands` and `completions`, with as many entries as both have room for. The
    /// controller does not know them yet.
    pub(super) fn new(
        access: Access<R, C>,
        number: u16,
        memory: [M; 2],
    ) -> Result<Self, NvmeError> {
        let state = RingState { number, tail: 0, head: 0, phase: true };
        let ring = Self::resume(access, memory, state)?;
        // No entry of before has the phase of a new one.
        let used = usize::from(ring.entries) * COMPLETION;
        let words = ring.completions.words().iter().take(used);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(ring)
    }

    /// Goes on with queues that the controller knows, in the memory that it knows of them, from `state` on.
    ///
    /// # Errors
    /// [`NvmeError::ShortQueue`], also of a `state` that is not one of these queues.
    pub fn resume(
        access: Access<R, C>,
        [commands, completions]: [M; 2],
        state: RingState,
    ) -> Result<Self, NvmeError> {
        let RingState { number, tail, head, phase } = state;
        let capabilities = access.registers.read64(CAP);
        let room = commands.words().len() / COMMAND;
        let room = room.min(completions.words().len() / COMPLETION);
        let entries = room.min(MOST_ENTRIES).min((capabilities & 0xffff) as usize + 1) as u16;
        if entries < 2 || tail >= entries || head >= entries {
            return Err(NvmeError::ShortQueue { entries });
        }
        let bells = doorbells(capabilities, number);
        let phase = phase.into();
        Ok(Self { access, number, bells, commands, completions, entries, tail, head, phase })
    }

    /// Progress so far, for [`Ring::resume`] of another kernel.
    pub fn state(&self) -> RingState {
        let Self { number, tail, head, .. } = *self;
        RingState { number, tail, head, phase: self.phase != 0 }
    }

    /// Addresses at which the controller sees the commands, and the completions.
    pub(super) fn places(&self) -> [Iova; 2] {
        [self.commands.iova(), self.completions.iova()]
    }

    /// Entries of each queue.
    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// Most commands that can be under way: a full ring would look like an empty one.
    pub fn room(&self) -> u16 {
        self.entries - 1
    }

    /// Registers of the controller.
    pub fn access(&self) -> &Access<R, C> {
        &self.access
    }

    /// Puts a command into the queue, which the controller sees after [`Ring::announce`]. No more than
    /// [`Ring::room`] are under way.
    pub fn put(&mut self, id: u16, command: &Command) {
        let entry = self.commands.words().iter().skip(usize::from(self.tail) * COMMAND);
        for (word, value) in entry.zip(command.encode(id)) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % self.entries;
    }

    /// Tells the controller of the commands that were put.
    pub fn announce(&self) {
        // A register is written after the stores before it are visible to the device.
        self.access.registers.write32(self.bells[0], self.tail.into());
    }

    /// The next completion, if it is there.
    fn next(&self) -> Option<Completion> {
        let mut entry = self.completions.words().iter().skip(usize::from(self.head) * COMPLETION);
        let (first, second) = (entry.next()?, entry.next()?);
        // The command's data is read after the phase.
        let second = u64::from_le(second.load(Ordering::Acquire));
        if Completion::phase(second) != self.phase {
            return None;
        }
        let first = u64::from_le(first.load(Ordering::Relaxed));
        Some(Completion::decode([first, second]))
    }

    /// Takes the next completion, if it is there.
    pub fn take(&mut self) -> Option<Completion> {
        let next = self.next()?;
        self.advance();
        Some(next)
    }

    fn advance(&mut self) {
        self.head = (self.head + 1) % self.entries;
        self.phase ^= u64::from(self.head == 0);
    }

    /// Tells the controller that completions were taken.
    pub fn release(&self) {
        self.access.registers.write32(self.bells[1], self.head.into());
    }

    /// Waits for the next completion.
    ///
    /// # Errors
    /// [`NvmeError::Gone`], [`NvmeError::Fatal`], [`NvmeError::TimedOut`].
    pub fn wait(&mut self) -> Result<Completion, NvmeError> {
        let look = || match self.next() {
            None => self.access.check().map(|()| None),
            done => Ok(done),
        };
        let done = self.access.wait(self.access.limit, look)?;
        self.advance();
        self.release();
        Ok(done)
    }

    /// Carries out one command while no other is under way, and returns its result.
    ///
    /// # Errors
    /// As [`Ring::wait`]; [`NvmeError::Command`], [`NvmeError::Stray`].
    pub fn execute(&mut self, command: &Command) -> Result<u32, NvmeError> {
        let id = self.tail;
        self.put(id, command);
        self.announce();
        match self.wait()? {
            done if done.id == id => done.result(),
            Completion { id, .. } => Err(NvmeError::Stray { id }),
        }
    }
}
