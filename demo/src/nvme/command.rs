//! Commands and completions, as they lie in rings.
//!
//! NVM Express base specification 2.0, sections 3.3.3 (queue entries) and 4.1.1 (PRPs).

use core::error::Error;
use core::fmt;

use super::prp::Prps;

/// Eight-byte words of a submission queue entry, and of a completion queue entry.
pub const SUBMISSION: usize = 8;
pub const COMPLETION: usize = 2;

/// Opcodes of admin commands.
pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
pub const IDENTIFY: u8 = 0x06;
pub const SET_FEATURES: u8 = 0x09;

/// A command, as far as this driver uses one.
#[derive(Clone, Copy)]
pub struct Command {
    pub opcode: u8,
    pub namespace: u32,
    pub data: Prps,
    /// Command words 10, 11 and 12.
    pub words: [u32; 3],
}

impl Command {
    pub fn new(opcode: u8) -> Self {
        Self {
            opcode,
            namespace: 0,
            data: Prps::default(),
            words: [0; 3],
        }
    }

    /// The entry of this command, whose completion names `id`.
    pub fn encode(&self, id: u16) -> [u64; SUBMISSION] {
        let [ten, eleven, twelve] = self.words.map(u64::from);
        let head = u64::from(self.opcode) | u64::from(id) << 16 | u64::from(self.namespace) << 32;
        let Prps { first, second } = self.data;
        [head, 0, 0, first, second, ten | eleven << 32, twelve, 0]
    }
}

/// What a completion says of its command.
#[derive(Clone, Copy)]
pub struct Completion {
    pub id: u16,
    pub status: Result<(), Status>,
    /// What the command asked for, if that fits here.
    pub result: u32,
}

impl Completion {
    /// The phase bit of an entry's second word: it changes from one round of the ring to the next.
    pub const fn phase(second: u64) -> u64 {
        second >> 48 & 1
    }

    pub fn decode(first: u64, second: u64) -> Self {
        // The kind of status and its code, without the bits that say what to do about it.
        let status = (second >> 49) as u16 & 0x7ff;
        Self {
            id: (second >> 32) as u16,
            status: if status == 0 {
                Ok(())
            } else {
                Err(Status(status))
            },
            result: first as u32,
        }
    }
}

/// Why a command was not carried out: its kind of status in bits 10:8, the code below.
#[derive(Clone, Copy, Debug)]
pub struct Status(pub u16);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the controller completed a command with status {:#x}",
            self.0
        )
    }
}

impl Error for Status {}
