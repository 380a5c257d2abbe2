//! Starting a machine, or saying why not; and what a driver's tests do with one.

// Each of the tests uses a part of it.
#![allow(dead_code)]

use std::io::Write;
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::Domain;
use portolan::table::Access;
use portolan_qemu::edu::Edu;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::pci::Pci;

/// Bytes of a page of a [`Bench`]'s buffer.
pub const PAGE: u64 = 4096;

/// The machine; `None`, with a line that says so, where QEMU is missing.
pub fn start(builder: &Builder) -> Option<Machine> {
    match builder.start() {
        Ok(machine) => Some(machine),
        Err(error) => {
            let reason = error.skip().unwrap_or_else(|| panic!("{error}"));
            // Not by a macro, whose lines are kept back when a test passes.
            let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
            None
        }
    }
}

/// A machine with an `edu`, and a buffer of 64 KiB in its memory.
pub struct Bench {
    pub edu: Edu,
    pub buffer: PhysAddr,
    pub machine: Machine,
}

impl Bench {
    /// What `machine` has, by a scan of its buses: another one would give out addresses anew.
    pub fn of(machine: Machine, pci: &Pci) -> Self {
        let edu = Edu::find(pci).unwrap();
        let buffer = machine.tables().alloc(PageSize::SIZE_64K).unwrap();
        Self {
            edu,
            buffer,
            machine,
        }
    }

    /// The `edu`'s.
    pub fn stream(&self) -> StreamId {
        self.edu.function().stream()
    }

    /// Page `n` of the buffer.
    pub fn page(&self, n: u64) -> PhysAddr {
        PhysAddr::new(self.buffer.get() + n * PAGE)
    }

    /// Writes through the device; whether the write came to page `n` of the buffer.
    pub fn reaches(&self, iova: Iova, n: u64) -> bool {
        let ram = self.machine.ram();
        ram.write32(self.page(n), 0xdead).unwrap();
        self.edu.dma_write32(iova, 0x1234).unwrap();
        ram.read32(self.page(n)) == Ok(0x1234)
    }
}

/// Maps, and waits until that counts.
pub fn map(domain: &Arc<impl Domain>, iova: Iova, pa: PhysAddr, bytes: u64, access: Access) {
    let mut owed = Gather::new();
    domain.map(iova, pa, bytes, access, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

/// Unmaps all of or a part of a mapping, and waits until that counts.
pub fn unmap(domain: &Arc<impl Domain>, iova: Iova, bytes: u64) {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(iova, bytes).unwrap();
    domain.unmap_part(range, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

pub fn rw() -> Access {
    Access::READ | Access::WRITE
}

/// `bytes` behind `iova`.
pub fn at(iova: Iova, bytes: u64) -> Iova {
    Iova::new(iova.get() + bytes)
}
