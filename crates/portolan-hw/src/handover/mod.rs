//! Record of a machine's units, from a kernel to the one that takes its place while devices are at work.
//!
//! Its layout is this library's own; `docs/handover.md` has it. `layout` says it in constants, [`write()`]
//! makes a record, and [`Record`] reads one: from memory that any program may have written since.
//! A record only confirms: a unit is taken over if its registers and its tables are as the record says.
//!
//! Not supported: interrupts, page requests, tables of processes, nested domains.

mod error;
pub(crate) mod layout;
mod read;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub use error::{AdoptError, PrepareError, RecordError, SectionError};
pub use layout::RecordedKind;
pub use read::Record;
pub use write::{RecordedUnit, write};
