//! A driver of NVMe controllers: polled, with a queue for each CPU.
//!
//! [`Nvme::start`] resets the controller and looks at its namespace, `Queue` reads and writes, `ring`
//! has the rings for both. All memory that the controller reaches is a `Mapping` or a `Coherent` of its
//! device. Nothing that it says is believed: a command that it makes up is an error, and so is one that
//! it does not complete in time.
//!
//! NVM Express base specification 2.0, sections 3.1 (registers), 3.5 (initialisation), 5 (admin
//! commands); NVM command set specification 1.0, section 4.1.5.1 (namespaces). Not supported:
//! interrupts, namespaces but the first, metadata, pages of other sizes than 4 KiB.
//!
//! *Context.* Task: memory is mapped, and the controller waited for.

mod queue;
mod ring;
pub mod spec;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use portolan::dma::{Coherent, Device, MapError};
use portolan::platform::{Mmio, Nanos, poll};
use thiserror::Error;

use crate::pci::Function;
use crate::{Machine, Registers};
pub use queue::{Data, Queue};
use ring::{ENTRIES, Ring};
pub use spec::Operation;
use spec::{
    CAP_NVM, CC_ENABLED, CSTS_FATAL, CSTS_READY, Command, Described, NUMBER_OF_QUEUES, PAGE,
    SET_FEATURES, doorbells,
    reg::{ACQ, AQA, ASQ, CAP, CC, CSTS},
};

/// Registers that are mapped.
const WINDOW: usize = 0x2000;
/// The timeout in CAP counts half seconds.
const TIMEOUT_UNIT_MILLIS: u64 = 500;

/// Reason why a controller does not do its work.
#[derive(Clone, Copy, Debug, Error)]
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

/// Blocks of the namespace.
#[derive(Clone, Copy, Default)]
struct Blocks {
    count: u64,
    /// Bytes of one, as an exponent.
    bytes_lg2: u32,
    /// Most bytes of a command.
    most_bytes: u64,
}

/// A controller that runs.
pub struct Nvme {
    machine: Machine,
    registers: Registers,
    device: Arc<Device<Machine>>,
    admin: Ring,
    blocks: Blocks,
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
        let capabilities = registers.read64(CAP);
        let (entries, least_page) = (capabilities & 0xffff, capabilities >> 48 & 0xf);
        if capabilities == u64::MAX
            || capabilities & CAP_NVM == 0
            || least_page != 0
            || entries + 1 < ENTRIES.into()
        {
            return Err(NvmeError::Unsupported { capabilities });
        }
        let admin = Ring::new(machine, &device, registers, doorbells(capabilities, 0))?;
        let mut nvme = Self {
            machine,
            registers,
            device,
            admin,
            blocks: Blocks::default(),
            queues: 0,
            most_queues: 0,
        };
        nvme.enable()?;
        nvme.blocks = nvme.namespace()?;
        nvme.most_queues = nvme.grant(queues.max(1))?;
        Ok(nvme)
    }

    fn enable(&self) -> Result<(), NvmeError> {
        self.stop()?;
        let last = u32::from(ENTRIES) - 1;
        let [commands, completions] = self.admin.places();
        self.registers.write32(AQA, last << 16 | last);
        self.registers.write64(ASQ, commands.get());
        self.registers.write64(ACQ, completions.get());
        self.registers.write32(CC, CC_ENABLED);
        self.wait_until(CSTS_READY)
    }

    /// Has the controller stop: once it says so, it reaches no memory any more.
    ///
    /// # Errors
    /// [`NvmeError::TimedOut`].
    pub fn stop(&self) -> Result<(), NvmeError> {
        self.registers.write32(CC, 0);
        self.wait_until(0)
    }

    /// Waits until the controller is ready, or is not, as long as it says that it may take.
    fn wait_until(&self, ready: u32) -> Result<(), NvmeError> {
        let units = (self.registers.read64(CAP) >> 24 & 0xff).max(1);
        let limit = Nanos::from_millis(units * TIMEOUT_UNIT_MILLIS);
        let look = || {
            let status = self.registers.read32(CSTS);
            if ready != 0 && status & CSTS_FATAL != 0 {
                return Some(Err(NvmeError::Fatal { status }));
            }
            (status & CSTS_READY == ready).then_some(Ok(()))
        };
        let status = || self.registers.read32(CSTS);
        let done = poll(&self.machine, limit, look);
        done.map_err(|_| NvmeError::TimedOut { status: status() })?
    }

    /// Asks the controller for its description, and for that of its namespace.
    fn namespace(&mut self) -> Result<Blocks, NvmeError> {
        let controller = self.identify(Described::Controller)?;
        let most_bytes = match byte(&controller, 77) {
            0 => u64::MAX,
            pages_lg2 => PAGE.checked_shl(pages_lg2.into()).unwrap_or(u64::MAX),
        };
        let namespace = self.identify(Described::Namespace)?;
        let count = (0..8).map(|at| u64::from(byte(&namespace, at)) << (8 * at));
        let format = byte(&namespace, 26);
        let format = 128 + 4 * usize::from(format & 0xf | (format >> 5 & 3) << 4);
        match [0, 1, 2].map(|at| byte(&namespace, format + at)) {
            // No metadata, and blocks of which a page has some.
            [0, 0, bytes_lg2 @ 9..=12] => {
                Ok(Blocks { count: count.sum(), bytes_lg2: bytes_lg2.into(), most_bytes })
            }
            [low, high, bytes_lg2] => {
                Err(NvmeError::Format { metadata: u16::from_le_bytes([low, high]), bytes_lg2 })
            }
        }
    }

    /// The 4,096 bytes that describe something.
    fn identify(&mut self, what: Described) -> Result<Coherent<Machine>, NvmeError> {
        let memory = self.device.coherent(PAGE)?;
        let identify = Command::identify(what, memory.iova());
        self.admin.execute(&identify)?;
        Ok(memory)
    }

    /// Asks for so many I/O queues; returns the number that there may be.
    fn grant(&mut self, queues: u32) -> Result<u16, NvmeError> {
        let wanted = (queues - 1).min(0xfffe);
        let granted = self.admin.execute(&Command {
            opcode: SET_FEATURES,
            words: [NUMBER_OF_QUEUES, wanted << 16 | wanted, 0],
            ..Command::default()
        })?;
        let granted = wanted.min(granted & 0xffff).min(granted >> 16);
        Ok(granted as u16 + 1)
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
        let bells = doorbells(self.registers.read64(CAP), number);
        let ring = Ring::new(self.machine, &self.device, self.registers, bells)?;
        let [commands, completions] = ring.places();
        let completions = Command::create_completions(number, ENTRIES, completions, 0);
        self.admin.execute(&completions)?;
        let commands = Command::create_commands(number, ENTRIES, commands);
        self.admin.execute(&commands)?;
        self.queues = number;
        Queue::new(&self.device, ring, self.blocks)
    }

    /// Bytes of a block, as an exponent.
    pub fn block_lg2(&self) -> u32 {
        self.blocks.bytes_lg2
    }
}

/// A byte that the controller wrote.
fn byte(of: &Coherent<Machine>, at: usize) -> u8 {
    let word = of.words().get(at / 8);
    let word = word.map_or(0, |word| word.load(Ordering::Relaxed));
    word.to_ne_bytes()[at % 8]
}
