//! A pair of rings: commands one way, completions the other.
//!
//! NVM Express base specification 2.0, sections 3.1.2 (doorbells), 3.3.1.2 and 3.3.3 (queues, entries, phase).

use core::sync::atomic::Ordering;

use portolan::addr::Iova;
use portolan::dma::{Coherent, Device, MapError};
use portolan::platform::{Mmio, Nanos, poll};

use super::NvmeError;
use super::spec::{COMMAND, COMPLETION, Command, Completion, reg::CSTS};
use crate::{Machine, Registers};

/// Entries of each ring: the number of commands in a page.
pub const ENTRIES: u16 = 64;
/// Commands that can be under way: a full ring would look like an empty one.
pub const ROOM: usize = SLOTS - 1;
/// Entries of each ring.
const SLOTS: usize = ENTRIES as usize;
/// Longest time that a command may take.
const LIMIT: Nanos = Nanos::from_millis(10_000);

/// Completed command, with its result if that fits in a completion.
pub struct Completed {
    pub id: u16,
    pub result: Result<u32, NvmeError>,
}

pub struct Ring {
    machine: Machine,
    registers: Registers,
    /// Offset of the doorbell for commands, and of that for completions.
    bells: [usize; 2],
    commands: Coherent<Machine>,
    completions: Coherent<Machine>,
    /// Index of the next command.
    tail: usize,
    /// Index of the next completion.
    head: usize,
    /// The phase bit that it will have: it changes from one round to the next.
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
            commands: device.coherent((SLOTS * COMMAND * 8) as u64)?,
            completions: device.coherent((SLOTS * COMPLETION * 8) as u64)?,
            tail: 0,
            head: 0,
            phase: 1,
        })
    }

    /// Addresses at which the controller sees the commands, and the completions.
    pub fn places(&self) -> [Iova; 2] {
        [self.commands.iova(), self.completions.iova()]
    }

    /// Hands a command to the controller. No more than [`ROOM`] are under way.
    pub fn push(&mut self, id: u16, command: &Command) {
        let entry = self.commands.words().iter().skip(self.tail * COMMAND);
        for (word, value) in entry.zip(command.encode(id)) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % SLOTS;
        // A register is written after the stores before it are visible to the device.
        self.registers.write32(self.bells[0], self.tail as u32);
    }

    /// The next completion, if it is there.
    fn pop(&mut self) -> Option<Completed> {
        let mut entry = self.completions.words().iter().skip(self.head * COMPLETION);
        let (first, second) = (entry.next()?, entry.next()?);
        // The command's data is read after the phase.
        let second = u64::from_le(second.load(Ordering::Acquire));
        if Completion::phase(second) != self.phase {
            return None;
        }
        let first = u64::from_le(first.load(Ordering::Relaxed));
        self.head = (self.head + 1) % SLOTS;
        if self.head == 0 {
            self.phase ^= 1;
        }
        self.registers.write32(self.bells[1], self.head as u32);
        let Completion { id, result, status } = Completion::decode([first, second]);
        let result = match status {
            0 => Ok(result),
            _ => Err(NvmeError::Command { status }),
        };
        Some(Completed { id, result })
    }

    /// Waits for the next completion.
    pub fn wait(&mut self) -> Result<Completed, NvmeError> {
        let machine = self.machine;
        poll(&machine, LIMIT, || self.pop())
            .map_err(|_| NvmeError::TimedOut { status: self.registers.read32(CSTS) })
    }

    /// Carries out one command while no other is under way, and returns its result.
    pub fn execute(&mut self, command: &Command) -> Result<u32, NvmeError> {
        self.push(0, command);
        match self.wait()? {
            Completed { id: 0, result } => result,
            Completed { id, .. } => Err(NvmeError::Stray { id }),
        }
    }
}
