//! A pair of rings: commands one way, completions the other.
//!
//! NVM Express base specification 2.0, sections 3.1.2 (doorbells), 3.3.1.2 and 3.3.3 (queues, entries, phase).

use core::sync::atomic::Ordering;

use portolan::dma::{Coherent, Device, MapError};
use portolan::platform::{Mmio, Nanos, poll};

use super::{CSTS, NvmeError};
use crate::{Machine, Registers};

/// Entries of each ring: what a page holds of commands.
pub const ENTRIES: usize = 64;
/// Commands that can be under way: a full ring would look like an empty one.
pub const ROOM: usize = ENTRIES - 1;
/// Eight-byte words of a command, and of a completion.
const COMMAND: usize = 8;
const COMPLETION: usize = 2;
/// How long a command may take.
const LIMIT: Nanos = Nanos::from_millis(10_000);

/// A command, as far as this driver uses one.
#[derive(Clone, Copy, Default)]
pub struct Command {
    pub opcode: u8,
    pub namespace: u32,
    /// Where its data is: two physical region pages.
    pub data: [u64; 2],
    /// Command words 10, 11 and 12.
    pub words: [u32; 3],
}

impl Command {
    /// The entry of this command, whose completion names `id`.
    fn encode(&self, id: u16) -> [u64; COMMAND] {
        let [ten, eleven, twelve] = self.words.map(u64::from);
        let head = u64::from(self.opcode) | u64::from(id) << 16 | u64::from(self.namespace) << 32;
        let [first, second] = self.data;
        [head, 0, 0, first, second, ten | eleven << 32, twelve, 0]
    }
}

/// What a completion says of its command: what the command asked for, if that fits there.
pub struct Completion {
    pub id: u16,
    pub result: Result<u32, NvmeError>,
}

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
            commands: device.coherent((ENTRIES * COMMAND * 8) as u64)?,
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
        let entry = self.commands.words().iter().skip(self.tail * COMMAND);
        for (word, value) in entry.zip(command.encode(id)) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % ENTRIES;
        // A register is written after the stores before it are visible to the device.
        self.registers.write32(self.bells[0], self.tail as u32);
    }

    /// The next completion, if it is there.
    fn pop(&mut self) -> Option<Completion> {
        let mut entry = self.completions.words().iter().skip(self.head * COMPLETION);
        let (first, second) = (entry.next()?, entry.next()?);
        // What the command wrote is read after the phase.
        let second = u64::from_le(second.load(Ordering::Acquire));
        if second >> 48 & 1 != self.phase {
            return None;
        }
        let first = u64::from_le(first.load(Ordering::Relaxed));
        self.head = (self.head + 1) % ENTRIES;
        if self.head == 0 {
            self.phase ^= 1;
        }
        self.registers.write32(self.bells[1], self.head as u32);
        // The kind of status and its code, without the bits that say what to do about it.
        let status = (second >> 49) as u16 & 0x7ff;
        Some(Completion {
            id: (second >> 32) as u16,
            result: match status {
                0 => Ok(first as u32),
                _ => Err(NvmeError::Command { status }),
            },
        })
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
        self.push(0, command);
        match self.wait()? {
            Completion { id: 0, result } => result,
            Completion { id, .. } => Err(NvmeError::Stray { id }),
        }
    }
}
