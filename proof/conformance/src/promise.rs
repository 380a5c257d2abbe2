//! Promises that the rest of the crate relies on: buffers of simulated machines, and tables of a kernel in one.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{AllMemory, DmaMemory, ForeignTables, TrustedBase};

/// Memory of a simulated machine, which is its owner's until that is dropped.
#[cfg(feature = "units")]
#[derive(Debug)]
pub(crate) struct Lent<O> {
    pub(crate) range: portolan::addr::PhysRange,
    /// Gives it back when it is dropped.
    #[expect(dead_code)]
    pub(crate) owner: O,
}

// SAFETY: the range stands for memory of a simulated machine; a world lends it to one owner at a
// time.
#[cfg(feature = "units")]
unsafe impl<O: Send + 'static> portolan::dma::Buffer for Lent<O> {
    fn pieces(&self) -> portolan::dma::Pieces<'_> {
        portolan::dma::Pieces::One(self.range)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

/// The tables at `root` in a simulated machine's memory.
pub(crate) fn tables_at(root: PhysAddr) -> ForeignTables {
    // SAFETY: the device is simulated too (real ones are given no such tables), and reaches no memory but
    // the machine's. Scenarios check that the contract is kept there.
    unsafe { ForeignTables::at(root) }
}

/// Memory that a scenario's device is to reach.
pub(crate) fn promised(pa: PhysAddr, bytes: u64) -> DmaMemory {
    let memory = PhysRange::from_len(pa, bytes).unwrap_or(PhysRange::page(pa, PageSize::of_lg2(0)));
    // SAFETY: it is a simulated machine's; or, with a device of this one, of a buffer that the scenario
    // keeps until it has taken the mapping back, and reads and writes by copies alone.
    unsafe { DmaMemory::new(memory) }
}

/// All memory of a simulated machine.
pub(crate) fn all_memory() -> AllMemory {
    // SAFETY: the device is simulated, and reaches no memory but the machine's. Units of this machine
    // refuse to pass devices through.
    unsafe { AllMemory::new() }
}

/// Parts of a simulated machine, or of this one behind VFIO.
pub(crate) fn simulated() -> TrustedBase {
    // SAFETY: simulated devices reach no memory of the process; behind VFIO the kernel has the tables, and caches
    // are coherent.
    unsafe { TrustedBase::new() }
}

/// Memory of a simulated machine's former kernel.
pub(crate) fn preserved<'r>(
    tables: &'r [PhysRange],
    buffers: &'r [PhysRange],
) -> portolan::platform::PreservedMemory<'r> {
    // SAFETY: as above; both kernels have the same memory, and the former one frees none of it.
    unsafe { portolan::platform::PreservedMemory::new(tables, buffers) }
}

/// A descriptor of a simulated machine's virtual CPU.
pub(crate) fn descriptor_at(at: PhysAddr) -> portolan::platform::PostedAddress {
    // SAFETY: as above; the scenario reads and writes it by copies.
    unsafe { portolan::platform::PostedAddress::new(at) }
}

/// An interrupt file of a simulated machine's virtual CPU.
pub(crate) fn file_at(at: PhysAddr) -> portolan::platform::InterruptFileAddress {
    // SAFETY: as above.
    unsafe { portolan::platform::InterruptFileAddress::new(at) }
}

/// A backing page of a simulated machine's virtual CPU.
pub(crate) fn page_at(at: PhysAddr) -> portolan::platform::ApicPageAddress {
    // SAFETY: as above.
    unsafe { portolan::platform::ApicPageAddress::new(at) }
}

/// Promises that a simulated machine is as described.
#[cfg(feature = "units")]
pub(crate) fn described() -> portolan_hw::TrustedDescription {
    // SAFETY: as above; it is made as it is described.
    unsafe { portolan_hw::TrustedDescription::new() }
}
