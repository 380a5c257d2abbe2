//! Layouts of AMD-Vi, and nothing else.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10. The capability
//! block in PCI configuration space in [`capability`] (3.2), registers in [`reg`] (3.4), device
//! table entries in [`entry`] (2.2.2.1), entries of GCR3 tables in [`guest`] (2.2.6), entries of interrupt
//! tables in [`interrupt`] (2.2.5), commands in [`command`] (2.4), events in [`event`] (2.5), page requests
//! in [`request`] (2.6), records of the guest virtual APIC log in [`guest_log`] (2.7), performance counters in
//! [`counter`] (3.4). Not here: page tables, multiple device tables, the virtualized interface.
//!
//! *Context.* Interrupt: everything here is a value.

pub mod capability;
pub mod command;
pub mod counter;
pub mod entry;
pub mod event;
pub mod guest;
pub mod guest_log;
pub mod interrupt;
pub mod reg;
pub mod request;

pub use crate::{ADDRESS, Bits};
