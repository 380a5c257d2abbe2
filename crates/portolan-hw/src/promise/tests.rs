//! Promises of tests, for memory of models.

#[path = "../../../portolan/tests/support/promised.rs"]
mod promised;

use portolan::addr::{PhysAddr, PhysRange};
use portolan::dma::Doorbell;
use portolan::platform::{
    ApicPageAddress, FormerMemory, InterruptFileAddress, PostedAddress, PreservedMemory,
};

use super::TrustedDescription;

pub(crate) use promised::{all_memory, promised};

/// A machine of a model is as it is described.
pub(crate) fn described() -> TrustedDescription {
    // SAFETY: no memory of the test is behind its addresses.
    unsafe { TrustedDescription::new() }
}

/// A register for messages of a model.
pub(crate) fn doorbell(at: PhysAddr) -> Doorbell {
    // SAFETY: as above.
    unsafe { Doorbell::new(at) }
}

/// A descriptor of a model's virtual CPU.
pub(crate) fn posted_at(at: PhysAddr) -> PostedAddress {
    // SAFETY: as above.
    unsafe { PostedAddress::new(at) }
}

/// A memory-resident interrupt file of a model's virtual CPU.
pub(crate) fn file_at(at: PhysAddr) -> InterruptFileAddress {
    // SAFETY: as above.
    unsafe { InterruptFileAddress::new(at) }
}

/// Memory that a former kernel of a model left.
pub(crate) fn preserved<'r>(
    tables: &'r [PhysRange],
    buffers: &'r [PhysRange],
) -> PreservedMemory<'r> {
    // SAFETY: as above.
    unsafe { PreservedMemory::new(tables, buffers) }
}

/// Tables that a kernel of a model left when it crashed.
pub(crate) fn crashed(read: &dyn Fn(PhysAddr) -> Option<u64>) -> FormerMemory<'_> {
    // SAFETY: as above.
    unsafe { FormerMemory::new(read) }
}

/// A backing page of a model's virtual CPU.
pub(crate) fn page_at(at: PhysAddr) -> ApicPageAddress {
    // SAFETY: as above.
    unsafe { ApicPageAddress::new(at) }
}
