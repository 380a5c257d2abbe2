//! A pair of rings: commands one way, completions the other.
//!
//! NVM Express base specification 2.0, sections 3.1.2 (doorbells), 3.3.1.2 and 3.3.3.2 (queues, phase).

use core::sync::atomic::Ordering;

use portolan::dma::{Coherent, Device, MapError};
use portolan::platform::{Mmio, Nanos, poll};
use portolan_bare::{Machine, Registers};

use super::command::{COMPLETION, Command, Completion, SUBMISSION};
use super::{CSTS, NvmeError};

/// Entries of each ring: what a page holds of commands.
pub const ENTRIES: usize = 64;
/// Commands that can be under way: a full ring would look like an empty one.
pub const ROOM: usize = ENTRIES - 1;
/// How long a command may take.
const LIMIT: Nanos = Nanos::from_millis(10_000);

pub struct Ring {
    machine: Machine,
    registers: Registers,
    /// Where the doorbell for commands is, and that for completions.
    bells: [usize; 2],
    commands: Coherent<Machine>,
    completions: Coherent<Machine>,
    /// Where the next command goes.
    tail: usize,
    /// Where the next completion comes.
    head: usize,
    /// The phase bit that it will have.
    phase: u64,
}

impl Ring {
    /// Rings that the controller does not know yet.
    pub fn new(
        machine: Machine,
        device: &Device<Machine>,
        registers: Registers,
        bells: [usize; 2],
    ) -> Result<Self, MapError> {
        Ok(Self {
            machine,
            registers,
            bells,
            commands: device.coherent((ENTRIES * SUBMISSION * 8) as u64)?,
            completions: device.coherent((ENTRIES * COMPLETION * 8) as u64)?,
            tail: 0,
            head: 0,
            phase: 1,
        })
    }

    /// Where the controller sees the commands, and the completions.
    pub fn places(&self) -> [u64; 2] {
        [self.commands.iova().get(), self.completions.iova().get()]
    }

    /// Hands a command to the controller. No more than [`ROOM`] are under way.
    pub fn push(&mut self, id: u16, command: &Command) {
        let entry = self.commands.words().iter().skip(self.tail * SUBMISSION);
        for (word, value) in entry.zip(command.encode(id)) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % ENTRIES;
        // A register is written after the stores before it are visible to the device.
        self.registers.write32(self.bells[0], self.tail as u32);
    }

    /// The next completion, if it is there.
    pub fn pop(&mut self) -> Option<Completion> {
        let mut entry = self.completions.words().iter().skip(self.head * COMPLETION);
        let (first, second) = (entry.next()?, entry.next()?);
        // What the command wrote is read after the phase.
        let second = u64::from_le(second.load(Ordering::Acquire));
        if Completion::phase(second) != self.phase {
            return None;
        }
        let first = u64::from_le(first.load(Ordering::Relaxed));
        self.head = (self.head + 1) % ENTRIES;
        if self.head == 0 {
            self.phase ^= 1;
        }
        self.registers.write32(self.bells[1], self.head as u32);
        Some(Completion::decode(first, second))
    }

    /// Waits for the next completion.
    pub fn wait(&mut self) -> Result<Completion, NvmeError> {
        let machine = self.machine;
        poll(&machine, LIMIT, || self.pop()).map_err(|_| NvmeError::TimedOut {
            status: self.registers.read32(CSTS),
        })
    }

    /// Carries out one command while no other is under way, and returns its result.
    pub fn execute(&mut self, command: &Command) -> Result<u32, NvmeError> {
        const ID: u16 = 0;
        self.push(ID, command);
        let done = self.wait()?;
        match done.id {
            ID => Ok(done.status.map(|()| done.result)?),
            id => Err(NvmeError::Stray { id }),
        }
    }
}
