//! Interface between an NVMe controller and its driver: registers, commands, completions.
//!
//! NVM Express base specification 2.0, sections 3.1 (registers), 3.3.3 (entries of queues) and 5 (admin
//! commands); NVM command set specification 1.0, section 3.2 (Read and Write). Not supported: scatter-gather
//! lists, metadata, pages of other sizes than 4 KiB.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::Iova;

use super::NvmeError;

/// Bytes of a page: the memory that one entry of a command stands for.
pub const PAGE: u64 = 4096;
/// Eight-byte words of a command.
pub const COMMAND: usize = 8;
/// Eight-byte words of a completion.
pub const COMPLETION: usize = 2;

/// Registers, by their offsets.
pub mod reg {
    /// Capabilities, 8 bytes.
    pub const CAP: usize = 0x00;
    /// Configuration.
    pub const CC: usize = 0x14;
    /// Status.
    pub const CSTS: usize = 0x1c;
    /// Entries of the admin queues but one: completions from bit 16, commands from bit 0.
    pub const AQA: usize = 0x24;
    /// Address of the admin commands, 8 bytes.
    pub const ASQ: usize = 0x28;
    /// Address of the admin completions, 8 bytes.
    pub const ACQ: usize = 0x30;
    /// The first doorbell.
    pub const DOORBELLS: usize = 0x1000;
}

/// CAP: the NVM command set is there.
pub const CAP_NVM: u64 = 1 << 37;
/// CC: enabled, with entries of 64 and 16 bytes, the NVM command set and pages of 4 KiB.
pub const CC_ENABLED: u32 = 1 | 6 << 16 | 4 << 20;
/// CSTS: ready.
pub const CSTS_READY: u32 = 1;
/// CSTS: the controller has given up.
pub const CSTS_FATAL: u32 = 2;

/// Opcode of admin commands: a queue of commands is created.
pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
/// The same of completions.
pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
/// A description is asked for.
pub const IDENTIFY: u8 = 0x06;
/// A feature is set.
pub const SET_FEATURES: u8 = 0x09;
/// The feature with the number of queues.
pub const NUMBER_OF_QUEUES: u32 = 0x07;
/// A queue is in one piece of memory.
pub const CONTIGUOUS: u32 = 1;
/// A queue of completions raises interrupts.
pub const INTERRUPTS_ENABLED: u32 = 1 << 1;
/// The namespace that is used.
pub const NAMESPACE: u32 = 1;

/// Operation on the disk; the value is the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Memory is written to the disk.
    Write = 0x01,
    /// The disk is read to memory.
    Read = 0x02,
}

/// Object that describes itself; the value is the command's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Described {
    /// The namespace.
    Namespace = 0,
    /// The controller.
    Controller = 1,
}

/// A command, as far as drivers here use one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// To which namespace; 0 for none.
    pub namespace: u32,
    /// Addresses of its data: two physical region pages.
    pub data: [u64; 2],
    /// Command words 10, 11 and 12.
    pub words: [u32; 3],
}

impl Command {
    /// Asks for the 4,096 bytes that describe something, at the start of a page.
    pub const fn identify(what: Described, at: Iova) -> Self {
        Self {
            opcode: IDENTIFY,
            namespace: match what {
                Described::Namespace => NAMESPACE,
                Described::Controller => 0,
            },
            data: [at.get(), 0],
            words: [what as u32, 0, 0],
        }
    }

    /// Creates queue `number` of completions; `interrupt` has the bits of command word 11 beside the one that
    /// it is in one piece.
    pub const fn create_completions(number: u16, entries: u16, at: Iova, interrupt: u32) -> Self {
        let word = interrupt | CONTIGUOUS;
        Self::create(CREATE_COMPLETION_QUEUE, number, entries, at, word)
    }

    /// Creates queue `number` of commands, whose completions come in the queue of the same number.
    pub const fn create_commands(number: u16, entries: u16, at: Iova) -> Self {
        let word = (number as u32) << 16 | CONTIGUOUS;
        Self::create(CREATE_SUBMISSION_QUEUE, number, entries, at, word)
    }

    const fn create(opcode: u8, number: u16, entries: u16, at: Iova, word: u32) -> Self {
        let shape = (entries.saturating_sub(1) as u32) << 16 | number as u32;
        Self { opcode, namespace: 0, data: [at.get(), 0], words: [shape, word, 0] }
    }

    /// Reads or writes `blocks` blocks, 1 to 65,536, from block `first` on.
    pub const fn transfer(what: Operation, first: u64, blocks: u32, data: [u64; 2]) -> Self {
        Self {
            opcode: what as u8,
            namespace: NAMESPACE,
            data,
            words: [first as u32, (first >> 32) as u32, blocks.wrapping_sub(1)],
        }
    }

    /// The entry of this command, whose completion names `id`.
    pub fn encode(&self, id: u16) -> [u64; COMMAND] {
        let [ten, eleven, twelve] = self.words.map(u64::from);
        let head = u64::from(self.opcode) | u64::from(id) << 16 | u64::from(self.namespace) << 32;
        let [first, second] = self.data;
        [head, 0, 0, first, second, ten | eleven << 32, twelve, 0]
    }
}

/// Contents of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of the command.
    pub id: u16,
    /// Result of the command, if it fits here.
    pub result: u32,
    /// The kind of status in bits 10:8, the code below; 0 if it went well.
    pub status: u16,
}

impl Completion {
    /// The phase bit of an entry, by its second word: it changes from one round to the next.
    pub const fn phase(second: u64) -> u64 {
        second >> 48 & 1
    }

    /// Result of the command.
    ///
    /// # Errors
    /// [`NvmeError::Command`].
    pub const fn result(self) -> Result<u32, NvmeError> {
        match self.status {
            0 => Ok(self.result),
            status => Err(NvmeError::Command { status }),
        }
    }

    /// Decodes an entry, without the bits that guide the driver after an error.
    pub const fn decode([first, second]: [u64; COMPLETION]) -> Self {
        Self {
            id: (second >> 32) as u16,
            result: first as u32,
            status: (second >> 49) as u16 & 0x7ff,
        }
    }
}

/// Offsets of the doorbells of a queue: that for commands, and that for completions.
pub const fn doorbells(capabilities: u64, queue: u16) -> [usize; 2] {
    let stride = 4 << (capabilities >> 32 & 0xf);
    let commands = reg::DOORBELLS + 2 * queue as usize * stride;
    [commands, commands + stride]
}
