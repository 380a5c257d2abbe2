//! Memory of the queue of page requests.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 11.4.11.

use core::sync::atomic::AtomicU64;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Mmio, TableMem, UnitPlatform};

use super::control::Control;
use crate::chassis::Published;
use portolan_spec::vtd::reg::{self, queue};

/// Address and size of the queue: 0 until there is one.
#[derive(Debug, Default)]
pub(super) struct PageQueue {
    /// Address and exponent of pages, as the register has them; 0 for none.
    pub(super) address: Published,
}

impl PageQueue {
    /// Gives the queue's memory back. Translation must be off.
    pub(super) fn free<P: UnitPlatform>(
        &self,
        control: &Control<P>,
        mem: &impl TableMem<AtomicU64>,
    ) {
        let address = self.address.withdraw();
        if address != 0 {
            control.regs.write64(reg::PQA, 0);
            let (base, size) = place(address);
            mem.free(base, size);
        }
    }
}

/// Start and size of the queue that a register value describes.
pub(super) fn place(address: u64) -> (PhysAddr, PageSize) {
    let size = PageSize::of_lg2(12 + queue::SIZE.of(address) as u32);
    (PhysAddr::new(address).align_down(PageSize::SIZE_4K), size)
}
