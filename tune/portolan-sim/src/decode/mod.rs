//! Table walkers that share nothing with the library's: one naive step a level, as hardware does it.
//!
//! Levels count from the leaf (0), other than in some architectures' manuals. Any content of a table is answered with
//! a translation or a [`WalkFault`], never with a panic; a walk takes at most as many steps as the format has levels.

mod amd;
mod armv8;
mod format;
mod memory;
mod riscv;
mod tegra;
#[cfg(test)]
mod tests;
mod vtd;

pub(crate) use format::EntryLayout;
pub use format::{FormatError, TableFormat};
pub use memory::{TableReader, WalkMemory};
pub use memory::{read_u32, read_u64};

use portolan::addr::{Iova, PageSize, PhysAddr};

/// Kinds of accesses that go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permissions {
    read: bool,
    write: bool,
}

impl Permissions {
    /// Reads and writes.
    pub const ALL: Self = Self { read: true, write: true };
    /// No access.
    pub const NONE: Self = Self { read: false, write: false };
    /// Reads.
    pub const READ: Self = Self { read: true, write: false };
    /// Writes.
    pub const WRITE: Self = Self { read: false, write: true };

    /// Tells if `access` goes through.
    pub const fn allow(self, access: AccessKind) -> bool {
        match access {
            AccessKind::Read => self.read,
            AccessKind::Write => self.write,
        }
    }

    /// Accesses that go through both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { read: self.read && other.read, write: self.write && other.write }
    }

    /// Accesses that go through either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self { read: self.read || other.read, write: self.write || other.write }
    }

    /// Returns `self` if `condition` holds, otherwise [`Self::NONE`].
    const fn given(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }
}

/// Kind of a device's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessKind {
    /// Read memory.
    Read,
    /// Write memory.
    Write,
}

/// A table: its address and its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableRoot {
    /// Address of the root table.
    pub root: PhysAddr,
    /// Its format.
    pub format: TableFormat,
}

/// Meaning of one entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A table one level down; permissions apply to all below.
    Table {
        /// Address of the table.
        next: PhysAddr,
        /// Accesses that the entry lets through.
        permissions: Permissions,
    },
    /// A page or a block.
    Leaf {
        /// Address of the page.
        pa: PhysAddr,
        /// Accesses that the entry lets through.
        permissions: Permissions,
    },
    /// A leaf that is one part of a larger page.
    Part {
        /// Address of that page.
        pa: PhysAddr,
        /// Its size.
        size: PageSize,
        /// Accesses that the entry lets through.
        permissions: Permissions,
    },
    /// No translation.
    Nothing,
    /// An encoding that the architecture reserves or forbids here.
    Bad,
}

/// A translation that a walk has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leaf {
    /// Address of the page in memory.
    pub pa: PhysAddr,
    /// Its size.
    pub size: PageSize,
    /// Accesses that all levels together let through.
    pub permissions: Permissions,
}

impl Leaf {
    /// Memory address of `iova`, which is in the page.
    pub const fn address(self, iova: Iova) -> PhysAddr {
        PhysAddr::new(self.pa.get() | (iova.get() & (self.size.bytes() - 1)))
    }
}

/// Reason why a walk ended without a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalkFault {
    /// The entry of this level is not present. An address beyond the table's width counts as not
    /// present at the root.
    NoTranslation {
        /// Level of the entry.
        level: u8,
    },
    /// The entry is not in readable memory.
    Unreadable {
        /// Address of the entry.
        entry: PhysAddr,
        /// Its level.
        level: u8,
    },
    /// The entry is reserved or forbidden at this level.
    BadEntry {
        /// Its level.
        level: u8,
        /// Its value.
        raw: u64,
    },
}

/// Point at which a walk goes on: at a table of some level, with the permissions of the levels above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The table.
    pub table: PhysAddr,
    /// Level of the table's entries.
    pub level: u8,
    /// Accesses that the levels above let through.
    pub permissions: Permissions,
}

impl Cursor {
    /// The start of a walk.
    pub fn top(table: &TableRoot) -> Self {
        Self {
            table: table.root,
            level: table.format.levels().saturating_sub(1),
            permissions: Permissions::ALL,
        }
    }
}

/// Result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// The next table.
    Down(Cursor),
    /// A leaf.
    Found(Leaf),
}

/// Reads the entry for `iova` in the table at `at`.
///
/// # Errors
/// [`WalkFault`] if it does not lead on.
pub fn step<M: WalkMemory + ?Sized>(
    memory: &M,
    format: TableFormat,
    at: Cursor,
    iova: Iova,
) -> Result<Stepped, WalkFault> {
    let level = at.level;
    if !format.holds(iova) {
        return Err(WalkFault::NoTranslation { level });
    }
    let offset = format.index(iova, level) * format.entry_bytes();
    let unreadable = |entry| WalkFault::Unreadable { entry, level };
    let entry = at.table.checked_add(offset).ok_or(unreadable(at.table))?;
    let raw = match format.entry_bytes() {
        4 => memory.read_u32(entry).map(u64::from),
        _ => memory.read_u64(entry),
    };
    let raw = raw.ok_or(unreadable(entry))?;
    match format.decode(raw, level) {
        Decoded::Table { next, permissions } => match level.checked_sub(1) {
            Some(below) => Ok(Stepped::Down(Cursor {
                table: next,
                level: below,
                permissions: at.permissions.and(permissions),
            })),
            None => Err(WalkFault::BadEntry { level, raw }),
        },
        Decoded::Leaf { pa, permissions } => Ok(Stepped::Found(Leaf {
            pa,
            size: format.span(level),
            permissions: at.permissions.and(permissions),
        })),
        Decoded::Part { pa, size, permissions } => {
            Ok(Stepped::Found(Leaf { pa, size, permissions: at.permissions.and(permissions) }))
        }
        Decoded::Nothing => Err(WalkFault::NoTranslation { level }),
        Decoded::Bad => Err(WalkFault::BadEntry { level, raw }),
    }
}

/// Walks from the root, with no cache.
///
/// # Errors
/// [`WalkFault`] if there is no translation.
pub fn walk<M: WalkMemory + ?Sized>(
    memory: &M,
    table: &TableRoot,
    iova: Iova,
) -> Result<Leaf, WalkFault> {
    let mut at = Cursor::top(table);
    loop {
        match step(memory, table.format, at, iova)? {
            Stepped::Down(next) => at = next,
            Stepped::Found(leaf) => return Ok(leaf),
        }
    }
}
