//! Firmware's tables of a machine's IOMMUs, read from byte slices.
//!
//! [`sdt`] has the common header and the walk over tables, [`dmar`] Intel's DMA remapping table,
//! [`ivrs`] AMD's I/O virtualization reporting structure, [`iort`] Arm's I/O remapping table,
//! [`viot`] the table of virtio-iommu and [`rimt`] that of RISC-V IOMMUs. They share requester
//! identifiers, the notion of memory that devices go on using ([`reserved`]), and that of entries which
//! count for more than a unit's registers ([`overrides`]).
//!
//! [`describe`] walks a table, or a device tree ([`fdt`]), once, and keeps what it says of units in one form.
//!
//! Nothing is trusted: each length is checked before a byte is read, every walk ends, and each error has its
//! offset in the table. The readers of single tables take no heap memory, but for paths through bridges.
//! Structures of unknown kind are passed over and counted. Not supported: finding the tables (the embedder
//! has them from its loader).
//!
//! *Context.* Interrupt: nothing waits; a lookup walks the table.

#![no_std]
#![forbid(unsafe_code)]
// Not each reader needs all that a description can hold.
#![cfg_attr(
    not(all(
        feature = "dmar",
        feature = "iort",
        feature = "ivrs",
        feature = "rimt",
        feature = "viot"
    )),
    allow(dead_code, unused_imports)
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bytes;
pub mod claim;
pub mod counted;
pub mod describe;
pub mod dmar;
pub mod fdt;
pub mod imsic;
pub mod iort;
pub mod ivrs;
pub mod madt;
pub mod overrides;
pub mod reserved;
pub mod rimt;
pub mod sdt;
pub mod viot;
mod walk;
pub mod wires;

/// Tests that other crates share name this one.
#[cfg(test)]
extern crate self as portolan_tables;
#[cfg(test)]
mod tests;

use thiserror::Error;

/// Error in a table. Offsets are in bytes from the start of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The reader of such tables is not compiled in: it is a feature of this crate.
    #[error("no reader of {} tables is compiled in", kind.name())]
    NoReader {
        /// The kind of table.
        kind: describe::TableKind,
    },
    /// Bytes are missing.
    #[error("{needed} bytes at offset {offset:#x} reach past the end")]
    Truncated {
        /// Offset of the bytes.
        offset: usize,
        /// Number of bytes.
        needed: usize,
    },
    /// A structure says that it is shorter than it has to be.
    #[error("the structure at offset {offset:#x} says it has {length} bytes")]
    Length {
        /// Offset of the structure.
        offset: usize,
        /// Length in the structure's header, in bytes.
        length: usize,
    },
    /// Another table than the one wanted.
    #[error("signature {found:?} instead of {wanted:?}")]
    Signature {
        /// Signature in the table.
        found: [u8; 4],
        /// Signature that the caller asked for.
        wanted: [u8; 4],
    },
    /// The bytes do not add up to zero.
    #[error("the bytes add up to {sum:#x} instead of 0")]
    Checksum {
        /// Sum of the bytes.
        sum: u8,
    },
    /// A structure points at something that is not one, or not of the kind that it has to be.
    #[error("the structure at offset {offset:#x} refers to {target:#x}, where there is none")]
    Reference {
        /// Offset of the structure that refers.
        offset: usize,
        /// Offset to which it refers.
        target: u32,
    },
    /// References lead round in a circle, or through more structures than the table has.
    #[error("references from offset {offset:#x} do not end")]
    Loop {
        /// Offset of the first structure.
        offset: usize,
    },
    /// More structures than any machine has.
    #[error(
        "the table has more than {most} structures; the first too many is at offset {offset:#x}"
    )]
    TooMany {
        /// Offset of the first structure that is not read.
        offset: usize,
        /// Number of structures that are read.
        most: u32,
    },
    /// A number makes no sense.
    #[error("{value:#x} at offset {offset:#x} makes no sense")]
    Nonsense {
        /// Offset of the number.
        offset: usize,
        /// The number.
        value: u64,
    },
}

/// Code blocks of documents that show the use of the crate.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
}
