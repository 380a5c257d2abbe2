//! Which stream is attached to what, and the tables that say so to the unit.

use core::sync::atomic::AtomicU64;

use portolan::platform::TableMem;

use super::directory::Directory;
use super::messages::Messages;
use super::streams::Tag;
use crate::chassis::book;

/// What says to the unit where streams are attached.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) directory: Directory,
    /// MSI page tables, where messages go through such.
    pub(super) messages: Option<Messages>,
}

impl Tables {
    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free<M: TableMem<AtomicU64>>(&mut self, mem: &M) {
        self.directory.free(mem);
        if let Some(messages) = &mut self.messages {
            messages.free(mem);
        }
    }
}

/// Which stream is attached to what, and the tables that say so to the unit.
pub(super) type Streams = book::Streams<u32, Option<Tag>, Tables>;
