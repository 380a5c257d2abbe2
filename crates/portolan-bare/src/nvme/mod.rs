//! A driver of NVMe controllers: polled, with a queue for each CPU.
//!
//! [`Nvme::start`] has a [`Controller`] of this machine reset and describe itself, [`Queue`] reads and
//! writes. All memory that the controller reaches is a `Mapping` or a `Coherent` of its device.
//! [`Controller`] and [`Ring`] are for any registers, clock and memory: also those of a process, and of a
//! machine that is seen from outside. Nothing that the controller says is believed: a command that it makes
//! up is an error, and so is one that it does not complete in time.
//!
//! NVM Express base specification 2.0, sections 3.1 (registers), 3.5 (initialisation), 5 (admin
//! commands); NVM command set specification 1.0, section 4.1.5.1 (namespaces). Not supported:
//! interrupts, namespaces but the first, metadata, pages of other sizes than 4 KiB.
//!
//! *Context.* Task: memory is mapped, and the controller waited for.

mod controller;
mod queue;
mod ring;
pub mod spec;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;

use portolan::dma::{Coherent, Device, MapError};
use portolan::platform::Nanos;
use thiserror::Error;

use crate::pci::Function;
use crate::{Machine, Registers};
pub use controller::{Controller, Description};
pub use queue::{Data, Queue};
pub use ring::{Access, Ring, RingMemory, RingState};
pub use spec::Operation;
use spec::{COMMAND, COMPLETION, Command, NUMBER_OF_QUEUES, PAGE, SET_FEATURES};

/// Registers that are mapped.
const WINDOW: usize = 0x2000;
/// Entries of each ring: the number of commands in a page.
const ENTRIES: u64 = 64;
/// Longest time that a command may take.
const LIMIT: Nanos = Nanos::from_millis(10_000);

/// Reason why a controller does not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NvmeError {
    /// Memory for the controller was not mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The function has no registers in memory.
    #[error("the NVMe controller has no registers")]
    NoRegisters,
    /// The controller lacks an ability that this driver needs.
    #[error("a controller of capabilities {capabilities:#x} is not supported")]
    Unsupported {
        /// Its capabilities register.
        capabilities: u64,
    },
    /// The namespace has blocks that this driver does not know.
    #[error("blocks of 2^{bytes_lg2} bytes with {metadata} bytes of metadata are not supported")]
    Format {
        /// Bytes of metadata of a block.
        metadata: u16,
        /// Bytes of a block, as an exponent.
        bytes_lg2: u8,
    },
    /// A queue has too few entries: its memory is short, or the controller allows no more.
    #[error("a queue of {entries} entries has no room for a command")]
    ShortQueue {
        /// Entries that there would be.
        entries: u16,
    },
    /// The registers read as ones.
    #[error("the controller is gone")]
    Gone,
    /// All I/O queues are in use.
    #[error("the controller has no I/O queue left")]
    NoQueue,
    /// Something was not done in time.
    #[error("the controller took too long; its status is {status:#x}")]
    TimedOut {
        /// The controller's status register.
        status: u32,
    },
    /// The controller has given up.
    #[error("the controller gave up: status {status:#x}")]
    Fatal {
        /// Its status register.
        status: u32,
    },
    /// A command failed.
    #[error("the controller completed a command with status {status:#x}")]
    Command {
        /// The kind of status in bits 10:8, the code below.
        status: u16,
    },
    /// The controller says that it has completed a command that it was not given.
    #[error("command {id} was completed, and is not under way")]
    Stray {
        /// The command's number.
        id: u16,
    },
    /// As many commands are under way as can be.
    #[error("as many commands are under way as can be")]
    Full,
    /// The data is not that of blocks that there are.
    #[error("there are no such blocks")]
    NoSuchBlocks,
    /// The data has more bytes than a command can have.
    #[error("the data is too long for one command")]
    TooLong,
    /// The data has a gap inside of a page.
    #[error("the data has a gap inside of a page")]
    Gap,
}

/// Two rings of this machine.
type MachineRing = Ring<Registers, Machine, Coherent<Machine>>;

/// A controller that runs.
pub struct Nvme {
    device: Arc<Device<Machine>>,
    controller: Controller<Registers, Machine, Coherent<Machine>>,
    description: Description,
    /// I/O queues that there are, and that may be.
    queues: u16,
    most_queues: u16,
}

impl Nvme {
    /// Resets the controller, and starts it with so many I/O queues at most.
    ///
    /// # Errors
    /// See [`NvmeError`].
    pub fn start(
        machine: Machine,
        function: &Function,
        device: Arc<Device<Machine>>,
        queues: u32,
    ) -> Result<Self, NvmeError> {
        function.start();
        let registers = function.window(&machine, WINDOW as u64);
        let registers = registers.ok_or(NvmeError::NoRegisters)?;
        let access = Access { registers, clock: machine, limit: LIMIT };
        let mut controller = Controller::start(access, memory(&device)?)?;
        let description = controller.describe(&device.coherent(PAGE)?)?;
        let most_queues = grant(&mut controller, queues.max(1))?;
        Ok(Self { device, controller, description, queues: 0, most_queues })
    }

    /// Has the controller stop: once it says so, it reaches no memory any more.
    ///
    /// # Errors
    /// [`NvmeError::TimedOut`], [`NvmeError::Gone`].
    pub fn stop(&self) -> Result<(), NvmeError> {
        self.controller.stop()
    }

    /// An I/O queue more.
    ///
    /// # Errors
    /// See [`NvmeError`].
    pub fn queue(&mut self) -> Result<Queue, NvmeError> {
        if self.queues >= self.most_queues {
            return Err(NvmeError::NoQueue);
        }
        let number = self.queues + 1;
        let ring = self.controller.queue(number, memory(&self.device)?, None)?;
        self.queues = number;
        Queue::new(&self.device, ring, self.description)
    }

    /// Bytes of a block, as an exponent.
    pub fn block_lg2(&self) -> u32 {
        self.description.block_lg2
    }
}

/// Memory of commands, and of completions.
fn memory(device: &Device<Machine>) -> Result<[Coherent<Machine>; 2], MapError> {
    let memory = |words: usize| device.coherent(ENTRIES * words as u64 * 8);
    Ok([memory(COMMAND)?, memory(COMPLETION)?])
}

/// Asks for so many I/O queues; returns the number that there may be.
fn grant(
    controller: &mut Controller<Registers, Machine, Coherent<Machine>>,
    queues: u32,
) -> Result<u16, NvmeError> {
    let wanted = (queues - 1).min(0xfffe);
    let granted = controller.execute(&Command {
        opcode: SET_FEATURES,
        words: [NUMBER_OF_QUEUES, wanted << 16 | wanted, 0],
        ..Command::default()
    })?;
    let granted = wanted.min(granted & 0xffff).min(granted >> 16);
    Ok(granted as u16 + 1)
}
