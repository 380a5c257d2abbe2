//! Reads and writes of one CPU: many under way at once, each with the mapping of its buffer.
//!
//! NVM Express NVM command set specification 1.0, sections 3.2.4 (Read) and 3.2.6 (Write).

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::Iova;
use portolan::dma::{Coherent, Device, Failed, Mapping};
use portolan_bare::{Machine, Pages};

use super::NvmeError;
use super::command::{Command, Status};
use super::prp::{PAGE, Prps};
use super::ring::{ROOM, Ring};

/// A buffer that the controller reaches.
pub type Data = Mapping<Machine, Pages>;

/// Entries of the list that each command has: with the first page, 260 KiB of data.
const LIST: usize = 64;
const LIST_BYTES: usize = LIST * 8;

/// What is done; the value is the opcode.
#[derive(Clone, Copy)]
pub enum Operation {
    Write = 0x01,
    Read = 0x02,
}

/// Blocks of the namespace.
#[derive(Clone, Copy)]
pub struct Blocks {
    pub count: u64,
    /// Bytes of one, as an exponent.
    pub bytes_lg2: u32,
    /// Most bytes of a command.
    pub most_bytes: u64,
}

/// A command that is done.
pub struct Done {
    /// The first block.
    pub first: u64,
    pub status: Result<(), Status>,
    pub data: Data,
}

/// A queue for the use of one CPU.
pub struct Queue {
    ring: Ring,
    lists: Coherent<Machine>,
    blocks: Blocks,
    /// What is under way, by the number of the command.
    under_way: Vec<Option<(u64, Data)>>,
}

impl Queue {
    /// A queue over `ring`, which the controller knows.
    pub fn new(
        device: &Arc<Device<Machine>>,
        ring: Ring,
        blocks: Blocks,
    ) -> Result<Self, NvmeError> {
        Ok(Self {
            ring,
            lists: device.coherent((ROOM * LIST_BYTES) as u64)?,
            blocks,
            under_way: (0..ROOM).map(|_| None).collect(),
        })
    }

    /// Reads or writes the blocks from `first` on, as many as `data` has room for.
    ///
    /// # Errors
    /// With the data, which the controller was not told of.
    pub fn submit(
        &mut self,
        operation: Operation,
        first: u64,
        data: Data,
    ) -> Result<(), Failed<Data, NvmeError>> {
        let free = self.under_way.iter().position(Option::is_none);
        let command = free.ok_or(NvmeError::Full).and_then(|slot| {
            let command = self.command(slot, operation, first, &data)?;
            Ok((slot, command))
        });
        match command {
            Ok((slot, command)) => {
                self.under_way[slot] = Some((first, data));
                self.ring.push(slot as u16, &command);
                Ok(())
            }
            Err(error) => Err(Failed { error, value: data }),
        }
    }

    fn command(
        &self,
        slot: usize,
        operation: Operation,
        first: u64,
        data: &Data,
    ) -> Result<Command, NvmeError> {
        let bytes: u64 = data.segments().map(|segment| segment.bytes.get()).sum();
        let Blocks {
            count,
            bytes_lg2,
            most_bytes,
        } = self.blocks;
        let blocks = bytes >> bytes_lg2;
        let after = first.checked_add(blocks).filter(|after| *after <= count);
        if bytes == 0 || blocks << bytes_lg2 != bytes || after.is_none() {
            return Err(NvmeError::NoSuchBlocks);
        }
        // The command has sixteen bits for the number of blocks but one.
        if bytes > most_bytes || blocks > 1 << 16 {
            return Err(NvmeError::TooLong);
        }
        let words = self.lists.words();
        let list = words
            .get(slot * LIST..(slot + 1) * LIST)
            .unwrap_or_default();
        let list_at = self.lists.iova().get() + (slot * LIST_BYTES) as u64;
        let mut command = Command::new(operation as u8);
        command.namespace = super::NAMESPACE;
        command.data = Prps::new(data.segments(), list, Iova::new(list_at))?;
        command.words = [first as u32, (first >> 32) as u32, (blocks - 1) as u32];
        Ok(command)
    }

    /// Waits for one of the commands that are under way.
    ///
    /// # Errors
    /// If none is done in time, or the controller makes no sense: it should be stopped then.
    pub fn wait(&mut self) -> Result<Done, NvmeError> {
        let done = self.ring.wait()?;
        let id = done.id;
        let slot = self.under_way.get_mut(usize::from(id));
        let (first, data) = slot.and_then(Option::take).ok_or(NvmeError::Stray { id })?;
        let status = done.status;
        Ok(Done {
            first,
            status,
            data,
        })
    }
}

// The list of a command lies in one page.
const _: () = assert!((PAGE as usize).is_multiple_of(LIST_BYTES));
