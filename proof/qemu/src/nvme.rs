//! A minimal driver of QEMU's NVMe controller: real reads and writes through the IOMMU.
//!
//! NVM Express 1.4: registers (section 3.1), queues (4.1), PRPs (4.3), Identify (5.15), Create I/O
//! queues (5.3, 5.4), Read and Write (6.9, 6.15). One pair of admin queues and one of I/O queues,
//! of [`ENTRIES`] entries, polled; one command at a time. No interrupts, no SGLs, one namespace.
//!
//! A command whose DMA is blocked may still complete without error: compare the data. A blocked
//! fetch from a submission queue sets CSTS.CFS, which is reported as [`NvmeError::Fatal`]; a
//! blocked write of a completion shows as [`NvmeError::TimedOut`]. After either
//! [`Nvme::start`] resets the controller.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan::addr::{Iova, PhysAddr};
use portolan::platform::Mmio;
pub use portolan_bare::nvme::spec::PAGE;
use portolan_bare::nvme::spec::{
    CC_ENABLED, COMMAND, COMPLETION, CSTS_FATAL, CSTS_READY, Command, Completion, Described,
    Operation, doorbells,
    reg::{ACQ, AQA, ASQ, CC, CSTS},
};
use thiserror::Error;

use crate::dma::{Direction, DmaArea, poll};
use crate::mmio::Registers;
use crate::pci::{Function, PciError};
use crate::qtest::QtestError;
use crate::ram::{GuestRam, OutsideRam};

/// Vendor and device.
pub const ID: (u16, u16) = (0x1b36, 0x0010);
/// Entries of each queue: as many submissions as a page holds.
pub const ENTRIES: u16 = 64;
/// Bytes of a block of QEMU's namespace.
pub const BLOCK: u64 = 512;
const ADMIN: usize = 0;
const IO: usize = 1;

/// Reason why a command did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NvmeError {
    /// QEMU did not answer.
    #[error(transparent)]
    Qtest(#[from] QtestError),
    /// An unexpected device.
    #[error(transparent)]
    Pci(#[from] PciError),
    /// A queue is not in guest RAM.
    #[error(transparent)]
    Ram(#[from] OutsideRam),
    /// The controller did not become ready, or did not complete a command, in time.
    #[error("no completion within {limit:?}")]
    TimedOut {
        /// The time it had.
        limit: Duration,
    },
    /// The registers read as ones.
    #[error("the controller is gone")]
    Gone,
    /// CSTS.CFS: the controller could not reach a queue.
    #[error("the controller reports a fatal error (CSTS {csts:#x})")]
    Fatal {
        /// The status register.
        csts: u32,
    },
    /// The command completed with an error.
    #[error("status {status:#x}")]
    Status {
        /// Status field without the phase bit: code type in bits 10:8, code in bits 7:0.
        status: u16,
    },
    /// A completion of no command that was sent.
    #[error("completion of command {command}, sent was {wanted}")]
    Stray {
        /// Number in the completion.
        command: u16,
        /// Number of the command that was sent.
        wanted: u16,
    },
    /// No blocks, or more than 65536.
    #[error("{blocks} blocks are not a transfer")]
    Length {
        /// Number of blocks.
        blocks: u32,
    },
}

/// Memory of the queues: a page each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeQueues {
    /// Admin submissions.
    pub admin_submission: DmaArea,
    /// Admin completions.
    pub admin_completion: DmaArea,
    /// I/O submissions.
    pub io_submission: DmaArea,
    /// I/O completions.
    pub io_completion: DmaArea,
}

/// Addresses of a command's data, for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prp {
    /// Within one page; may begin anywhere in it.
    One(Iova),
    /// Reaches into a second page; the second address is a multiple of the page.
    Two(Iova, Iova),
    /// First page, and a page with the addresses of all others, of eight bytes each.
    List(Iova, Iova),
}

impl Prp {
    fn entries(self) -> [u64; 2] {
        match self {
            Self::One(first) => [first.get(), 0],
            Self::Two(first, second) | Self::List(first, second) => [first.get(), second.get()],
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    number: u16,
    submission: DmaArea,
    completion: DmaArea,
    tail: u16,
    head: u16,
    /// Phase bit of new completions.
    phase: u16,
}

impl Queue {
    const fn new(number: u16, submission: DmaArea, completion: DmaArea) -> Self {
        Self { number, submission, completion, tail: 0, head: 0, phase: 1 }
    }
}

/// Memory that queues are in.
pub trait QueueMemory {
    /// `count` words at `at`.
    ///
    /// # Errors
    /// [`OutsideRam`].
    fn words(&self, at: PhysAddr, count: usize) -> Result<&[AtomicU64], OutsideRam>;
}

impl QueueMemory for GuestRam {
    fn words(&self, at: PhysAddr, count: usize) -> Result<&[AtomicU64], OutsideRam> {
        self.words64(at, count)
    }
}

/// A running controller: of a machine that is driven over qtest, or by its registers and memory.
#[derive(Debug)]
pub struct Nvme<R = Registers, M = GuestRam> {
    registers: R,
    memory: M,
    queues: [Queue; 2],
    limit: Duration,
    next: u16,
}

impl Nvme {
    /// Starts like [`Nvme::on`], on a function that does not reach memory yet.
    ///
    /// # Errors
    /// As [`Nvme::on`].
    pub fn start(
        function: &Function,
        ram: &GuestRam,
        queues: &NvmeQueues,
        limit: Duration,
    ) -> Result<Self, NvmeError> {
        let registers = function.bar(0)?;
        function.enable()?;
        Self::on(registers, ram.clone(), queues, limit)
    }
}

impl<R: Mmio, M: QueueMemory> Nvme<R, M> {
    /// Resets the controller behind `registers`, BAR 0, gives it the queues, and creates the I/O queues.
    ///
    /// `limit` is the longest wait for a reset and for each command.
    ///
    /// # Errors
    /// [`NvmeError`]. The controller is left as it is; starting again resets it.
    pub fn on(
        registers: R,
        memory: M,
        places: &NvmeQueues,
        limit: Duration,
    ) -> Result<Self, NvmeError> {
        let areas = [
            places.admin_submission,
            places.admin_completion,
            places.io_submission,
            places.io_completion,
        ];
        for area in areas {
            let words = memory.words(area.phys, PAGE as usize / 8)?;
            words.iter().for_each(|word| word.store(0, Ordering::Release));
        }
        let queues = [
            Queue::new(0, places.admin_submission, places.admin_completion),
            Queue::new(1, places.io_submission, places.io_completion),
        ];
        let mut nvme = Self { registers, memory, queues, limit, next: 0 };
        nvme.reset(places)?;
        nvme.create_io(places)?;
        Ok(nvme)
    }

    fn reset(&self, memory: &NvmeQueues) -> Result<(), NvmeError> {
        self.registers.write32(CC, 0);
        self.wait_ready(0)?;
        let last = u32::from(ENTRIES - 1);
        self.registers.write32(AQA, last << 16 | last);
        self.registers.write64(ASQ, memory.admin_submission.iova.get());
        self.registers.write64(ACQ, memory.admin_completion.iova.get());
        self.registers.write32(CC, CC_ENABLED);
        self.wait_ready(CSTS_READY)
    }

    fn create_io(&mut self, memory: &NvmeQueues) -> Result<(), NvmeError> {
        let completions = memory.io_completion.iova;
        self.execute(ADMIN, Command::create_completions(1, ENTRIES, completions, 0))?;
        let commands = memory.io_submission.iova;
        self.execute(ADMIN, Command::create_commands(1, ENTRIES, commands))
    }

    fn wait_ready(&self, wanted: u32) -> Result<(), NvmeError> {
        let limit = self.limit;
        let ready = poll(limit, || {
            let csts = self.status()?;
            if wanted != 0 && csts & CSTS_FATAL != 0 {
                return Err(NvmeError::Fatal { csts });
            }
            Ok((csts & CSTS_READY == wanted).then_some(()))
        })?;
        ready.ok_or(NvmeError::TimedOut { limit })
    }

    /// The status register CSTS.
    ///
    /// # Errors
    /// [`NvmeError::Gone`].
    pub fn status(&self) -> Result<u32, NvmeError> {
        match self.registers.read32(CSTS) {
            u32::MAX => Err(NvmeError::Gone),
            csts => Ok(csts),
        }
    }

    /// Lets the device write its 4096 bytes of identification at `data`, the start of a page.
    ///
    /// # Errors
    /// [`NvmeError`].
    pub fn identify(&mut self, data: Iova) -> Result<(), NvmeError> {
        self.execute(ADMIN, Command::identify(Described::Controller, data))
    }

    /// Reads or writes `blocks` blocks of 512 bytes from block `first` of namespace 1.
    ///
    /// # Errors
    /// [`NvmeError::Status`] for blocks past the end; otherwise as said.
    pub fn transfer(
        &mut self,
        direction: Direction,
        first: u64,
        blocks: u32,
        data: Prp,
    ) -> Result<(), NvmeError> {
        if !(1..=0x1_0000).contains(&blocks) {
            return Err(NvmeError::Length { blocks });
        }
        let what = match direction {
            Direction::ToDevice => Operation::Write,
            Direction::FromDevice => Operation::Read,
        };
        self.execute(IO, Command::transfer(what, first, blocks, data.entries()))
    }

    /// Submits one command and waits for its completion.
    fn execute(&mut self, index: usize, command: Command) -> Result<(), NvmeError> {
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        let Some(queue) = self.queues.get_mut(index) else {
            return Ok(());
        };
        let at = queue.submission.phys_at(u64::from(queue.tail) * 8 * COMMAND as u64)?;
        for (word, value) in self.memory.words(at, COMMAND)?.iter().zip(command.encode(id)) {
            word.store(value, Ordering::Release);
        }
        queue.tail = (queue.tail + 1) % ENTRIES;
        let queue = *queue;
        // QEMU's doorbells have a stride of four bytes.
        let [doorbell, taken] = doorbells(0, queue.number);
        self.registers.write32(doorbell, queue.tail.into());

        let at = queue.completion.phys_at(u64::from(queue.head) * 8 * COMPLETION as u64)?;
        let limit = self.limit;
        let done = poll(limit, || {
            if let [first, second] = self.memory.words(at, COMPLETION)? {
                let second = second.load(Ordering::Acquire);
                if Completion::phase(second) == queue.phase.into() {
                    let first = first.load(Ordering::Relaxed);
                    return Ok(Some(Completion::decode([first, second])));
                }
            }
            // This also lets QEMU's main loop run on.
            let csts = self.status()?;
            if csts & CSTS_FATAL != 0 {
                return Err(NvmeError::Fatal { csts });
            }
            Ok(None)
        })?;
        let completion = done.ok_or(NvmeError::TimedOut { limit })?;
        self.consume(index, taken);
        if completion.id != id {
            return Err(NvmeError::Stray { command: completion.id, wanted: id });
        }
        match completion.status {
            0 => Ok(()),
            status => Err(NvmeError::Status { status }),
        }
    }

    fn consume(&mut self, index: usize, doorbell: usize) {
        let Some(queue) = self.queues.get_mut(index) else {
            return;
        };
        queue.head = (queue.head + 1) % ENTRIES;
        if queue.head == 0 {
            queue.phase ^= 1;
        }
        self.registers.write32(doorbell, queue.head.into());
    }
}
