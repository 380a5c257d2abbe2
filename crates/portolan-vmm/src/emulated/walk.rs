//! One walk over tables that a guest has written, and may change meanwhile.
//!
//! A walk as hardware does it, by a walker that trusts nothing: each entry is read once, out of the guest's memory or
//! not at all, and a walk reads as many as the format has levels. The formats are `portolan::table::format`'s.

use std::sync::atomic::AtomicU64;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::table::Access;
use portolan::table::format::{Entry, Format, span_lg2};
use vm_memory::Permissions;

/// Reason why an access was refused. Levels count from the leaf, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// The endpoint is attached to nothing.
    #[error("the endpoint is blocked")]
    Blocked,
    /// The address is wider than the tables translate.
    #[error("the address is wider than the tables translate")]
    Input,
    /// An entry is not present.
    #[error("the entry of level {level} at {entry} is not present")]
    NotPresent {
        /// Its level.
        level: u32,
        /// Address of the entry.
        entry: PhysAddr,
    },
    /// The entries on the way together do not allow the access.
    #[error("the page of level {level} at {entry} does not allow it")]
    Permission {
        /// The level of the leaf.
        level: u32,
        /// Address of the leaf's entry.
        entry: PhysAddr,
    },
    /// An entry has reserved values at its level: bits, a page size, an alignment, an address that is too wide.
    #[error("the entry of level {level} at {entry} is {raw:#x}, which is reserved")]
    Reserved {
        /// Its level.
        level: u32,
        /// Address of the entry.
        entry: PhysAddr,
        /// Its value.
        raw: u64,
    },
    /// An entry is not in the guest's memory.
    #[error("the entry of level {level} at {entry} is not in memory")]
    Unreadable {
        /// Its level.
        level: u32,
        /// Address that it would have.
        entry: PhysAddr,
    },
}

/// Function that reads the guest's word at an address; nothing where the guest has no memory.
pub(super) type Read<'a> = &'a dyn Fn(PhysAddr) -> Option<u64>;

/// A page that a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Addresses of the device.
    pub iova: IovaRange,
    /// Address in the guest that the first of them leads to.
    pub target: PhysAddr,
    /// Access that all levels together allow.
    pub access: Permissions,
}

/// The page of `iova` by the tables at `root`, if it allows `access`: for monitors with memory of their own type.
/// `read` reads a word as the host has it, and returns nothing where the guest has no memory; it is called once for
/// each level at most.
///
/// # Errors
/// See [`FaultKind`].
pub fn walk<F: Format<Word = AtomicU64>>(
    format: &F,
    root: PhysAddr,
    iova: Iova,
    access: Permissions,
    read: &dyn Fn(PhysAddr) -> Option<u64>,
) -> Result<Page, FaultKind> {
    if iova.get() >> format.input_lg2() != 0 {
        return Err(FaultKind::Input);
    }
    let (mut table, mut allowed) = (root, Access::all());
    let top = format.levels() - 1;
    let mut level = top;
    // Each turn is one level lower.
    loop {
        // Only the root may be larger than other tables, and there nothing is above its index.
        let index = iova.get() >> span_lg2::<F>(level);
        let index = match level == top {
            true => index,
            false => index & ((1 << F::INDEX_LG2) - 1),
        };
        let entry = PhysAddr::new(table.get() + index * 8);
        let raw = read(entry).ok_or(FaultKind::Unreadable { level, entry })?;
        let reserved = FaultKind::Reserved { level, entry, raw };
        match F::classify(raw, level) {
            Entry::Empty | Entry::Broken(_) => {
                return Err(FaultKind::NotPresent { level, entry });
            }
            _ if format.is_reserved(raw, level) => return Err(reserved),
            Entry::Table(next) => {
                if next.get() >> format.output_lg2() != 0 {
                    return Err(reserved);
                }
                allowed &= format.table_access(raw, level);
                (table, level) = (next, level.checked_sub(1).ok_or(reserved)?);
            }
            Entry::Leaf(pa) => {
                let size = PageSize::of_lg2(F::leaf_lg2(raw, level));
                let is_size = format.page_sizes().bits() & size.bytes() != 0;
                if !is_size || !pa.is_aligned(size) || pa.get() >> format.output_lg2() != 0 {
                    return Err(reserved);
                }
                let found = Page {
                    iova: IovaRange::page(iova, size),
                    target: pa,
                    access: permissions(allowed & format.access(raw, level)),
                };
                return match found.access.allow(access) {
                    true => Ok(found),
                    false => Err(FaultKind::Permission { level, entry }),
                };
            }
        }
    }
}

fn permissions(access: Access) -> Permissions {
    match (access.contains(Access::READ), access.contains(Access::WRITE)) {
        (false, false) => Permissions::No,
        (true, false) => Permissions::Read,
        (false, true) => Permissions::Write,
        (true, true) => Permissions::ReadWrite,
    }
}
