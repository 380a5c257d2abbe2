//! Layouts of the RISC-V IOMMU, and nothing else.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, with its extensions for ranges and for
//! entries above the leaves. Registers in [`reg`] (chapter "Memory-mapped register interface"),
//! device contexts and the directories above them in [`context`] (chapter "Data structures"),
//! commands in [`command`], fault records in [`fault`] and page requests in [`request`] (chapter
//! "In-memory queue interface"), MSI page tables in [`message`]. Not here: page tables, process
//! contexts, performance counters, the translation-request interface, QoS identifiers.
//!
//! *Context.* Interrupt: everything here is a value.

pub mod command;
pub mod context;
pub mod fault;
pub mod message;
pub mod reg;
pub mod request;

pub use crate::{Bits, Bits32};

/// Bits 53:10 of an entry or of a register: a page number, which is a physical address less its low 12
/// bits.
pub const PPN: Bits = Bits::new(10, 44);

/// The address `at`, which is a page's, in the place of [`PPN`].
pub const fn page_of(at: u64) -> u64 {
    PPN.at(at >> 12)
}
