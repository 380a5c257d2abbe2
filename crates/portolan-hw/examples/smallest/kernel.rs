//! A stand-in for a kernel: its memory and its devices are those of the model.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::NonNull;

use portolan::addr::{PageSize, PciFunction, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Pieces};
use portolan::platform::{Nanos, Platform};
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::TrustedDescription;

#[allow(dead_code)]
#[path = "../../tests/topology/machine.rs"]
mod machine;

pub(crate) const CARD: PciFunction = machine::DEVICE;
pub(crate) type Registers = machine::Window;

#[derive(Clone)]
pub(crate) struct Kernel(machine::Kernel);

/// The kernel, firmware's DMAR table, and the word that it is this machine's.
pub(crate) fn boot() -> (Kernel, Vec<u8>, TrustedDescription) {
    let machine = machine::vtd(VtdIdentification::default());
    let dmar = machine::dmar(machine::REGISTERS);
    (Kernel(machine.kernel()), dmar, machine::described())
}

impl Kernel {
    pub(crate) fn time(&self) -> Nanos {
        self.0.relax();
        self.0.now()
    }

    pub(crate) fn frames(&self, layout: Layout) -> Option<PhysAddr> {
        self.0.alloc(layout)
    }

    pub(crate) fn take_back(&self, at: PhysAddr, layout: Layout) {
        // SAFETY: the caller is `Platform::free`, whose caller has nothing of it left.
        unsafe { self.0.free(at, layout) }
    }

    pub(crate) fn mapped(&self, at: PhysAddr) -> NonNull<u8> {
        // SAFETY: the caller is `Platform::virt`, whose caller has that byte.
        unsafe { self.0.virt(at) }
    }

    pub(crate) fn device(&self, window: PhysRange) -> Option<Registers> {
        // SAFETY: the caller is `Platform::registers`, whose caller answers for the device.
        unsafe { self.0.registers(window) }
    }
}

/// A page of the card's driver.
pub(crate) struct Packet;

// SAFETY: the address is a name: no memory of this process is behind it.
unsafe impl Buffer for Packet {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(PhysRange::page(PhysAddr::new(0x1234_5000), PageSize::SIZE_4K))
    }

    fn device_may_write(&self) -> bool {
        true
    }
}
