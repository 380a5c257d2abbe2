//! Layouts of Intel VT-d, and nothing else.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1. Registers in [`reg`]
//! (chapter 11), root, context and PASID entries in [`entry`] (9.1 to 9.6, 9.10), invalidation
//! descriptors in [`descriptor`] (6.5.2 and 7.6.1), fault records and page requests in [`record`]
//! (7.2, 7.5 and 11.4.14), the isochronous unit of a chipset in [`tylersburg`]. Not here: page tables,
//! posted interrupts, performance monitoring, enhanced commands, trusted-domain structures.
//!
//! *Context.* Interrupt: everything here is a value.

pub mod descriptor;
pub mod entry;
pub mod record;
pub mod reg;
pub mod tylersburg;

pub use crate::{ADDRESS, Bits};

/// Intel's vendor identifier in PCI configuration space.
pub const INTEL: u16 = 0x8086;
