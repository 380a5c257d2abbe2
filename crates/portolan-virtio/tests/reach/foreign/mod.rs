//! A kernel that was written without Portolan, and the lines that it adds: disks found when it runs, through its own
//! driver, block layer, allocator and locks, behind an IOMMU and without one.

mod glue;
mod os;

use std::alloc::Layout;
use std::sync::Arc;

use portolan::addr::{PciFunction, PhysRange};
use portolan::dma::Device;
use portolan::platform::{Nanos, Platform};
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::vtd::VtdRegisters;
use portolan_hw::topology::Iommus;
use portolan_virtio::{AccessPlatform, HalMemory};
use virtio_drivers::device::blk::SECTOR_SIZE;

use super::disks::{Disk, Path};
use super::machine::{DEVICE, Kernel, Machine, OTHER, REGISTERS, dmar, vtd};
use glue::{OtherOs, VirtIoHal, Virtio};
use os::{BlockDriverOps, DmaBuffer, PAGE_SIZE, VirtIoBlkDev};

/// Registers of a device.
pub(crate) type Window = <Kernel as Platform>::Registers;

/// Parts of the machine that are no memory: registers and time.
#[derive(Clone)]
pub(crate) struct Board(Kernel);

impl Board {
    fn now(&self) -> Nanos {
        Platform::now(&self.0)
    }

    fn relax(&self) {
        Platform::relax(&self.0);
    }

    fn ioremap(&self, window: PhysRange) -> Option<Window> {
        // SAFETY: the machine's units are registers.
        unsafe { self.0.registers(window) }
    }
}

/// The other kernel's driver of its disks.
type DiskDriver = VirtIoBlkDev<VirtIoHal, AccessPlatform<Disk>>;

/// Disks on the bus, of which the kernel does not know how many there are.
const FOUND: [PciFunction; 2] = [DEVICE, OTHER];

/// Probes the bus: the drivers of the disks, and their devices, by which they can be removed.
fn probe(
    machine: &Machine<VtdRegisters>,
    iommus: &Iommus<OtherOs>,
) -> Vec<(Arc<Device<OtherOs>>, DiskDriver)> {
    let open = |at: &PciFunction| {
        let path = match iommus.unit_of(*at) {
            Ok((_, stream)) => Path::Unit(machine.unit.clone(), stream),
            Err(_) => Path::Direct,
        };
        let opened = glue::open(iommus, *at, Disk::new(machine.kernel(), path)).unwrap();
        (opened.device, DiskDriver::try_new(opened.transport).unwrap())
    };
    FOUND.iter().map(open).collect()
}

/// Writes a file to each disk, and reads it back.
fn use_disks(disks: &mut [(Arc<Device<OtherOs>>, DiskDriver)]) {
    let mut buffer = DmaBuffer::new();
    for (number, (_, disk)) in disks.iter_mut().enumerate() {
        let text = format!("block 3 of disk {number}");
        let block = &mut buffer.bytes()[..SECTOR_SIZE];
        block.fill(0);
        block[..text.len()].copy_from_slice(text.as_bytes());
        disk.write_block(3, block).unwrap();
        block.fill(0xff);
        disk.read_block(3, block).unwrap();
        assert_eq!(block[..text.len()], *text.as_bytes());
        assert!(block[text.len()..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(os::NoPreemptIrqSave::held(), 0, "its locks are free");
}

const PAGES: usize = 512;

#[test]
fn another_kernel_s_disks_work_behind_an_iommu_and_without_one() {
    let machine = vtd(SKYLAKE_SP.identification);
    let kernel = machine.kernel();
    let layout = Layout::from_size_align(PAGES * PAGE_SIZE, PAGE_SIZE).unwrap();
    let phys = kernel.alloc(layout).unwrap();
    // SAFETY: the block has just been allocated; the machine's memory is one piece.
    let virt = unsafe { kernel.virt(phys) };
    os::boot(phys.get() as usize, virt, PAGES);
    let table = dmar(REGISTERS);
    for tables in [&[&table[..]][..], &[]] {
        let iommus = glue::init(Board(machine.kernel()), tables).unwrap();
        // The first time the unit makes tables of its own.
        let used = [(); 2].map(|()| {
            let mut disks = probe(&machine, &iommus);
            assert!(disks.iter().all(|(device, _)| device.is_direct() == tables.is_empty()));
            use_disks(&mut disks);
            for (device, disk) in disks {
                drop(disk);
                Virtio::memory().remove(&device).unwrap();
            }
            os::used_pages()
        });
        assert_eq!(used[0], used[1], "what was shared is back");
        assert_eq!(Virtio::memory().refused(), 0);
        // The unit stays on, and goes on to read its tables.
        std::mem::forget(iommus);
    }
    assert_eq!(machine.unit.faults().len(), 0);
}

/// Lines of `source` that are neither empty nor comments.
fn lines(source: &str) -> usize {
    let lines = source.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[test]
fn the_other_kernel_adds_fewer_than_120_lines() {
    assert!(lines(include_str!("glue.rs")) < 120, "{}", lines(include_str!("glue.rs")));
}
