//! Attachments of streams, and the tables that give them to the unit.

use alloc::collections::BTreeMap;
use core::sync::atomic::AtomicU64;

use portolan::iommu::AttachError;
use portolan::platform::TableMem;

use super::command::{self, Counted};
use super::directory::Directory;
use super::messages::Messages;
use super::remotes::Remotes;
use super::streams::{Tag, process};
use crate::chassis::book;
use crate::chassis::entry::{At, Words};

/// Tables that give the attachments of streams to the unit.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) directory: Directory,
    /// MSI page tables, where messages go through such.
    pub(super) messages: Option<Messages>,
    /// Process directories, of streams with PASIDs.
    pub(super) processes: BTreeMap<u32, Directory>,
    /// Devices with translations of their own.
    pub(super) remotes: Remotes,
}

/// A stream, and one of its address spaces: 0 is that of its requests without a PASID.
pub(super) type Key = (u32, u32);

/// Place of the context of an address space, and its words.
pub(super) struct Place {
    pub(super) at: At,
    pub(super) words: Words,
}

impl Tables {
    /// The command by which the unit forgets the context of an address space.
    pub(super) fn forget(&self, (stream, pasid): Key) -> Counted {
        match self.processes.contains_key(&stream) {
            true => command::process(stream, pasid),
            false => command::context_of(stream),
        }
    }

    /// Checks that a stream has that address space.
    pub(super) fn has(&self, (stream, pasid): Key) -> Result<(), AttachError> {
        let lg2 = self.processes.get(&stream).map_or(0, Directory::lg2);
        match u64::from(pasid) >> lg2 == 0 {
            true => Ok(()),
            false => Err(AttachError::Mismatch),
        }
    }

    /// The place of the context of an address space that the stream has, and its words: those that
    /// mean for it the same as `words` for a whole stream.
    pub(super) fn place(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        (stream, pasid): Key,
        words: &Words,
    ) -> Result<Place, AttachError> {
        let (at, words) = match self.processes.get_mut(&stream) {
            Some(directory) => {
                let words = process(words).ok_or(AttachError::Mismatch)?;
                (directory.place(mem, pasid)?, words)
            }
            None => (self.directory.place(mem, stream)?, *words),
        };
        Ok(Place { at, words })
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        self.directory.free(mem);
        self.remotes.free(mem);
        for (_, mut directory) in core::mem::take(&mut self.processes) {
            directory.free(mem);
        }
        if let Some(messages) = &mut self.messages {
            messages.free(mem);
        }
    }
}

/// Attachments of streams, and the tables that give them to the unit.
pub(super) type Streams = book::Streams<Key, Option<Tag>, Tables>;
