//! Starting a machine, or printing the reason why not; and common parts of drivers' tests.

// Each of the tests uses a part of it.
#![allow(dead_code)]

#[path = "../../../../crates/portolan/tests/support/promised.rs"]
pub mod promised;

use self::promised::promised;
use std::io::Write;
use std::ops::Deref;
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Domain, IommuError};
use portolan::table::Access;
use portolan_hw::TrustedDescription;
use portolan_qemu::edu::Edu;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::pci::Pci;

/// Bytes of a page of a [`Bench`]'s buffer.
pub const PAGE: u64 = 4096;

/// Starts the machine; `None`, with a line that says so, if QEMU is missing.
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
    /// The bench of `machine`, by a scan of its buses: another scan would give out addresses anew.
    pub fn of(machine: Machine, pci: &Pci) -> Self {
        let edu = Edu::find(pci).unwrap();
        let buffer = machine.tables().alloc(PageSize::SIZE_64K).unwrap();
        Self { edu, buffer, machine }
    }

    /// The `edu`'s.
    pub fn stream(&self) -> StreamId {
        self.edu.function().stream()
    }

    /// Page `n` of the buffer.
    pub fn page(&self, n: u64) -> PhysAddr {
        PhysAddr::new(self.buffer.get() + n * PAGE)
    }

    /// Writes through the device; returns if the write came to page `n` of the buffer.
    pub fn reaches(&self, iova: Iova, n: u64) -> bool {
        let ram = self.machine.ram();
        ram.write32(self.page(n), 0xdead).unwrap();
        self.edu.dma_write32(iova, 0x1234).unwrap();
        ram.read32(self.page(n)) == Ok(0x1234)
    }
}

/// A driver, and the machine that it is tried on.
pub struct Ground<U> {
    pub unit: U,
    pub bench: Bench,
}

impl<U> Deref for Ground<U> {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

impl<U> Ground<U> {
    /// A device reaches a page that was unmapped until that is paid for.
    pub fn stale_until_paid(&self, domain: &Arc<impl Domain>, iova: Iova, n: u64) {
        let mut owed = Gather::new();
        let range = IovaRange::from_len(iova, PAGE).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        assert!(self.reaches(iova, n));
        domain.sync(&mut owed).unwrap();
    }

    /// A page in the middle of a block is unmapped; the rest of the block goes on.
    pub fn splits_a_block<D: Domain>(&self, domain: &Arc<D>, iova: Iova)
    where
        U: Attach<D>,
    {
        self.unit.attach(self.stream(), domain).unwrap();
        let large = self.machine.tables().alloc(PageSize::SIZE_2M).unwrap();
        map(domain, iova, large, 2 << 20, rw());
        let ram = self.machine.ram();
        let write = |page: u64| {
            self.edu.dma_write32(at(iova, page * PAGE), 7).unwrap();
            let at = large.checked_add(page * PAGE).unwrap();
            let there = ram.read32(at) == Ok(7);
            ram.write32(at, 0).unwrap();
            there
        };
        assert!(write(0) && write(3) && write(511));
        unmap(domain, at(iova, 3 * PAGE), PAGE);
        assert!(write(0) && write(2) && !write(3) && write(4) && write(511));
    }

    /// Checks that after the machine goes away each call fails at once, also for a driver that takes the unit over
    /// `again`.
    pub fn goes_away<D: Domain, E>(
        self,
        domain: Arc<D>,
        iova: Iova,
        again: impl FnOnce(&Machine) -> Result<E, IommuError>,
    ) where
        U: Attach<D>,
    {
        self.unit.attach(self.stream(), &domain).unwrap();
        map(&domain, iova, self.page(0), PAGE, rw());
        self.machine.kill();
        let gone = IommuError::Gone;
        assert_eq!(self.unit.next_fault(), Err(gone));
        let mut owed = Gather::new();
        let range = IovaRange::from_len(iova, PAGE).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        let failed = IommuError::from(domain.sync(&mut owed).unwrap_err());
        assert_eq!(failed, gone);
        let blocked = self.unit.block(self.stream());
        assert_eq!(blocked, Err(AttachError::Iommu(gone)));
        assert_eq!(again(&self.machine).err(), Some(gone));
    }
}

/// Maps, and waits until that counts.
pub fn map(domain: &Arc<impl Domain>, iova: Iova, pa: PhysAddr, bytes: u64, access: Access) {
    let mut owed = Gather::new();
    domain.map(iova, promised(pa, bytes), access, &mut owed).unwrap();
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

/// Promises that QEMU's machine is as a test describes it.
pub fn described() -> TrustedDescription {
    // SAFETY: its devices reach the guest's memory, in which nothing of this process is.
    unsafe { TrustedDescription::new() }
}
