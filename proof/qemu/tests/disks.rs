//! NVMe and virtio-blk read and write real blocks; the data is compared on both sides.

mod support;

use std::time::Duration;

use portolan::addr::{Iova, PageSize, PhysAddr};
use portolan::platform::{Mmio, Nanos};
use portolan_qemu::config::{Architecture, Device, Iommu};
use portolan_qemu::dma::{Direction, DmaArea};
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::nvme::{self, GuestPage, Nvme, NvmeError, Operation};
use portolan_qemu::pci::Function;
use portolan_qemu::virtio_blk::{self, Piece, VirtioBlk};
use portolan_qemu::virtio_pci::{self, VirtioPci};
use portolan_qemu::virtqueue::Segment;

use support::start;

const DISK: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(5);
/// Entries of a queue: the commands in a page.
const ENTRIES: u64 = 64;
const PAGE: PageSize = PageSize::SIZE_4K;

fn page(machine: &Machine) -> PhysAddr {
    machine.tables().alloc(PAGE).unwrap()
}

fn iova(phys: PhysAddr) -> Iova {
    Iova::new(phys.get())
}

/// Pages for queues.
fn queues(machine: &Machine) -> [GuestPage; 4] {
    std::array::from_fn(|_| GuestPage {
        ram: machine.ram().clone(),
        area: DmaArea::identity(page(machine)),
    })
}

fn start_nvme(function: &Function, queues: &[GuestPage; 4]) -> Nvme {
    function.enable().unwrap();
    let limit = Nanos::from_millis(LIMIT.as_millis() as u64);
    Nvme::start(function.bar(0).unwrap(), queues.clone(), limit).unwrap()
}

/// The address in a command that has its data in one page.
fn one(phys: PhysAddr) -> [Iova; 2] {
    [iova(phys), Iova::new(0)]
}

/// Bytes that tell their place.
fn pattern(bytes: usize, salt: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ at >> 8) as u8 ^ salt).collect()
}

fn ram_bytes(machine: &Machine, at: PhysAddr, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    machine.ram().read(at, &mut found).unwrap();
    found
}

fn disk_bytes(machine: &Machine, offset: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    machine.disks()[0].read(offset, &mut found).unwrap();
    found
}

#[test]
fn nvme_identifies_itself_and_moves_blocks() {
    for architecture in Architecture::ALL {
        let builder = Builder::new(architecture).device(Device::nvme(DISK));
        let Some(machine) = start(&builder) else {
            continue;
        };
        let pci = machine.pci().unwrap();
        let function = pci.first(nvme::ID.0, nvme::ID.1).unwrap();
        let mut nvme = start_nvme(function, &queues(&machine));
        let (first, second, list) = (page(&machine), page(&machine), page(&machine));
        nvme.identify(iova(first)).unwrap();
        let identity = ram_bytes(&machine, first, 64);
        assert_eq!(identity[..2], nvme::ID.0.to_le_bytes());
        assert!(identity[4..24].starts_with(b"disk0"));

        // Two pages, not from the start of the first.
        let text = pattern(4096, 1);
        let from = first.checked_add(512).unwrap();
        machine.ram().write(from, &text[..3584]).unwrap();
        machine.ram().write(second, &text[3584..]).unwrap();
        let two = [iova(from), iova(second)];
        nvme.transfer(Operation::Write, 40, 8, two).unwrap();
        assert_eq!(disk_bytes(&machine, 40 * nvme::BLOCK, 4096), text);

        // Three pages by a list, with data that was put on the disk from outside.
        let text = pattern(3 * 4096, 2);
        machine.disks()[0].write(0, &text).unwrap();
        let third = page(&machine);
        machine.ram().write64(list, second.get()).unwrap();
        machine.ram().write64(list.checked_add(8).unwrap(), third.get()).unwrap();
        let all = [iova(first), iova(list)];
        nvme.transfer(Operation::Read, 0, 24, all).unwrap();
        let pages = [first, second, third];
        let found: Vec<u8> = pages.iter().flat_map(|p| ram_bytes(&machine, *p, 4096)).collect();
        assert_eq!(found, text);
    }
}

#[test]
fn nvme_queues_wrap_and_errors_are_typed() {
    let builder = Builder::new(Architecture::X86).device(Device::nvme(DISK));
    let Some(machine) = start(&builder) else {
        return;
    };
    let pci = machine.pci().unwrap();
    let function = pci.first(nvme::ID.0, nvme::ID.1).unwrap();
    let memory = queues(&machine);
    let mut nvme = start_nvme(function, &memory);
    let data = page(&machine);
    for block in 0..3 * ENTRIES {
        machine.ram().write64(data, block).unwrap();
        nvme.transfer(Operation::Write, block, 1, one(data)).unwrap();
        assert_eq!(disk_bytes(&machine, block * nvme::BLOCK, 8), block.to_le_bytes());
    }
    let beyond = nvme.transfer(Operation::Read, DISK, 1, one(data));
    assert!(matches!(beyond, Err(NvmeError::Command { status: 0x80 })), "{beyond:?}");
    let none = nvme.transfer(Operation::Read, 0, 0, one(data));
    assert_eq!(none, Err(NvmeError::NoSuchBlocks));

    // A controller that cannot fetch from its queue says so, and comes back after a reset.
    let mut lost = memory.clone();
    lost[2].area.iova = Iova::new(0x7_0000_0000);
    let mut broken = start_nvme(function, &lost);
    let fatal = broken.transfer(Operation::Read, 0, 1, one(data));
    assert!(matches!(fatal, Err(NvmeError::Fatal { .. })), "{fatal:?}");
    let mut nvme = start_nvme(function, &memory);
    nvme.transfer(Operation::Read, 7, 1, one(data)).unwrap();
    assert_eq!(machine.ram().read64(data), Ok(7));

    machine.kill();
    let gone = nvme.transfer(Operation::Read, 7, 1, one(data));
    assert_eq!(gone, Err(NvmeError::Gone));
}

#[test]
fn virtio_blk_moves_sectors() {
    for architecture in Architecture::ALL {
        let device = Device::virtio_blk(DISK);
        for device in [device, device.behind_port().with_ats()] {
            let Some(machine) = start(&Builder::new(architecture).device(device)) else {
                continue;
            };
            let pci = machine.pci().unwrap();
            let function = pci.first(virtio_pci::VENDOR, virtio_blk::DEVICE).unwrap();
            let area = || DmaArea::identity(page(&machine));
            let mut blk = VirtioBlk::start(function, machine.ram(), area(), area(), LIMIT).unwrap();
            assert_eq!(blk.sectors(), DISK / virtio_blk::SECTOR);
            let (first, second) = (page(&machine), page(&machine));
            let piece = |at, bytes| Piece { iova: iova(at), bytes };
            let pieces = [piece(first, 512), piece(second, 1024)];
            for round in 0..200u8 {
                let text = pattern(1536, round);
                machine.ram().write(first, &text[..512]).unwrap();
                machine.ram().write(second, &text[512..]).unwrap();
                let sector = u64::from(round) * 3;
                blk.transfer(Direction::ToDevice, sector, &pieces).unwrap();
                assert_eq!(disk_bytes(&machine, sector * 512, 1536), text);
            }
            let text = pattern(1536, 99);
            machine.disks()[0].write(512, &text).unwrap();
            blk.transfer(Direction::FromDevice, 1, &pieces).unwrap();
            assert_eq!(ram_bytes(&machine, first, 512), text[..512]);
            assert_eq!(ram_bytes(&machine, second, 1024), text[512..]);
            let beyond = blk.transfer(Direction::FromDevice, DISK, &pieces);
            assert_eq!(beyond, Err(virtio_blk::BlkError::Status { status: 1 }));
        }
    }
}

#[test]
fn virtio_iommu_answers_requests() {
    for architecture in Architecture::ALL {
        let builder = Builder::new(architecture).iommu(Iommu::Virtio);
        let Some(machine) = start(&builder) else {
            continue;
        };
        let pci = machine.pci().unwrap();
        let function = pci.first(virtio_pci::VENDOR, virtio_pci::IOMMU).unwrap();
        let virtio = VirtioPci::new(function, LIMIT).unwrap();
        virtio.negotiate(0, 0).unwrap();
        let area = || DmaArea::identity(page(&machine));
        let mut requests = virtio.queue(0, machine.ram(), area()).unwrap();
        virtio.queue(1, machine.ram(), area()).unwrap();
        assert!(virtio.queue(2, machine.ram(), area()).is_err());
        virtio.driver_ok().unwrap();
        assert_eq!(virtio.config().read64(0) & 0x1000, 0x1000);

        // ATTACH of a device that is not there: domain 1, endpoint 0xff00; the answer is NOENT.
        let request = page(&machine);
        machine.ram().write64(request, 1 | 1 << 32).unwrap();
        machine.ram().write64(request.checked_add(8).unwrap(), 0xff00).unwrap();
        let tail = request.checked_add(64).unwrap();
        let segment = |at, bytes, direction| Segment { iova: iova(at), bytes, direction };
        let segments =
            [segment(request, 20, Direction::ToDevice), segment(tail, 4, Direction::FromDevice)];
        let used = virtio.request(&mut requests, &segments).unwrap();
        assert_eq!(used.written, 4);
        assert_eq!(machine.ram().read32(tail).unwrap() & 0xff, 6);
    }
}
