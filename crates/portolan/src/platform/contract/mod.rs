//! Promises that a compiler cannot check, of an embedder and of a buffer's owner, and the only code
//! of the library that relies on them without a check.
//!
//! * [`Platform`]: the machine, as an embedder describes it.
//! * [`RawMemory`]: a platform's memory, by physical address; [`CpuPairs`]: stores of two words of it at once.
//! * [`MappedRegisters`]: registers of a device, where they are mapped.
//! * [`TrustedBase`]: parts of a machine that keep the contracts of their traits.
//! * [`ForeignTables`]: page tables that a kernel built itself.
//! * [`Buffer`], [`Unowned`]: memory that is handed over to a device, or shared with it ([`Sharing`]);
//!   [`Doorbell`]: a register that is.
//! * [`PostedAddress`], [`InterruptFileAddress`], [`ApicPageAddress`]: memory to which interrupts are posted.
//! * [`PreservedMemory`], [`FormerMemory`]: memory that a former kernel left to this one, handed over or not.
//! * [`DmaMemory`]: memory that a domain maps; [`AllMemory`]: the memory that a device reaches
//!   untranslated.
//!
//! `unsafe` is denied in the rest of the library.
#![allow(unsafe_code)]

mod buffer;
mod bytes;
mod foreign;
mod memory;
mod pairs;
mod parked;
mod part;
mod platform;
mod posted;
mod preserved;
mod reach;
mod registers;
mod shared_data;
mod slots;
#[cfg(test)]
mod tests;
mod trusted;

pub use buffer::{
    Buffer, Doorbell, HostVisibility, MemoryKind, Pieces, PiecesIter, Sharing, SplitBuffer, Unowned,
};
pub(crate) use buffer::{bytes_of, hidden_from};
pub(crate) use bytes::{read, write};
pub use foreign::ForeignTables;
pub use memory::RawMemory;
pub(crate) use memory::{OwnedMemory, Wanted};
pub use pairs::CpuPairs;
pub(crate) use parked::Parked;
pub use part::MappedPart;
pub(crate) use part::PartShare;
pub use platform::Platform;
pub use posted::{ApicPageAddress, InterruptFileAddress, PostedAddress};
pub use preserved::{ClaimError, FormerMemory, PreservedMemory, TableClaims};
pub use reach::{AllMemory, DmaMemory, PromisedMappings};
pub use registers::MappedRegisters;
pub use shared_data::{AliasedMemory, SharedData};
pub(crate) use slots::{KeepsBuffer, OwnedSlot, Slotted};
pub use trusted::TrustedBase;
