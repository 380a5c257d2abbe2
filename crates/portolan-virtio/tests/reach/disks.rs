//! Virtio disks that a kernel finds when it runs: one type for all of them, as ArceOS has it, behind an IOMMU and
//! without one.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 5.2 (block device).

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::dma::{Device, Policy};
use portolan::platform::Platform;
use portolan_chips::vtd::{DescriptorKind, VtdRegisters};
use portolan_sim::decode::AccessKind;
use portolan_virtio::{
    AccessPlatform, AddError, HalMemory, NotTranslated, SpaceHal, VirtioOpenError,
};
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::machine::{DEVICE, Kernel, OTHER};
use super::rings::{Rings, load, store};
use super::space_hal::{direct, pair};
use super::transport::ACCESS_PLATFORM;
use super::{Bench, bytes, memory, part};

const SECTORS: usize = 16;
const VERSION_1: u64 = 1 << 32;

/// Way from a disk to memory.
pub(super) enum Path {
    Unit(Arc<VtdRegisters>, StreamId),
    Direct,
}

/// A disk that carries requests out when it is notified.
pub(super) struct Disk {
    kernel: Kernel,
    path: Path,
    features: u64,
    queue: Mutex<Rings>,
    sectors: Vec<u8>,
}

impl Disk {
    pub fn new(kernel: Kernel, path: Path) -> Self {
        let features = match path {
            Path::Unit(..) => VERSION_1 | ACCESS_PLATFORM,
            Path::Direct => VERSION_1,
        };
        let (queue, sectors) = (Mutex::default(), vec![0; SECTORS * SECTOR_SIZE]);
        Self { kernel, path, features, queue, sectors }
    }

    /// Memory that the disk finds at `at`.
    fn seen(&self, at: u64, access: AccessKind) -> NonNull<u8> {
        let at = match &self.path {
            Path::Unit(unit, stream) => {
                let pieces = unit.dma(*stream, None, Iova::new(at), access, 1);
                pieces.expect("memory that the driver shares")[0].pa
            }
            Path::Direct => PhysAddr::new(at),
        };
        // SAFETY: it is memory of the machine.
        unsafe { self.kernel.virt(at) }
    }

    /// Carries one request out, if there is one.
    fn serve(&self, sectors: &mut [u8]) -> Option<()> {
        let reads = |at| self.seen(at, AccessKind::Read);
        let writes = |at| self.seen(at, AccessKind::Write);
        let mut queue = self.queue.lock().unwrap();
        let (head, parts) = queue.take(&reads)?;
        let [header, data, status] = parts[..] else {
            panic!("a request with data has three parts");
        };
        let sector: u64 = load(&reads, header.at + 8);
        let stored = &mut sectors[sector as usize * SECTOR_SIZE..];
        for (at, byte) in data.addresses().zip(stored) {
            match data.is_writable {
                true => store(&writes, at, *byte),
                false => *byte = load(&reads, at),
            }
        }
        store(&writes, status.at, 0u8);
        queue.give(&writes, head, 1);
        Some(())
    }
}

impl Transport for Disk {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }

    fn read_device_features(&mut self) -> u64 {
        self.features
    }

    fn write_driver_features(&mut self, features: u64) {
        assert_eq!(features, self.features, "what the way needs, and no more");
    }

    fn max_queue_size(&mut self, _queue: u16) -> u32 {
        16
    }

    fn notify(&mut self, _queue: u16) {
        let mut sectors = std::mem::take(&mut self.sectors);
        while self.serve(&mut sectors).is_some() {}
        self.sectors = sectors;
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::empty()
    }

    fn set_status(&mut self, _status: DeviceStatus) {}

    fn set_guest_page_size(&mut self, _bytes: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, _: u16, size: u32, descriptors: u64, available: u64, used: u64) {
        let size = size as u16;
        *self.queue.lock().unwrap() = Rings { descriptors, available, used, size, taken: 0 };
    }

    fn queue_unset(&mut self, _queue: u16) {}

    fn queue_used(&mut self, _queue: u16) -> bool {
        false
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<V: FromBytes + IntoBytes>(&self, _offset: usize) -> Result<V> {
        Ok(V::new_zeroed())
    }

    fn write_config_space<V: IntoBytes + Immutable>(&mut self, _: usize, _: V) -> Result<()> {
        Err(Error::ConfigSpaceMissing)
    }
}

/// The kernel's one type of virtio disks.
type Driver<M> = VirtIOBlk<SpaceHal<M>, AccessPlatform<Disk>>;

/// Opens a disk that was found.
fn probe<M: HalMemory<Platform = Kernel>>(
    bench: &Bench,
    device: Device<Kernel>,
    path: Path,
) -> std::result::Result<Driver<M>, AddError> {
    let disk = Disk::new(bench.kernel.clone(), path);
    let transport = M::memory().add(Arc::new(device), disk)?;
    Ok(VirtIOBlk::new(transport).expect("a disk that works"))
}

/// Opens both disks behind the unit.
fn behind_unit<M: HalMemory<Platform = Kernel>>(bench: &Bench) -> Vec<Driver<M>> {
    let open = |device: Device<Kernel>| {
        let path = Path::Unit(bench.unit.clone(), device.stream());
        probe(bench, device, path).unwrap()
    };
    pair(bench).into_iter().map(open).collect()
}

/// Writes other sectors to each disk than to the others, and reads them back.
fn move_sectors<M: HalMemory>(bench: &Bench, disks: &mut [Driver<M>]) {
    let data = bytes(part(bench.page(), 0x200, 2 * SECTOR_SIZE));
    for sector in 0..SECTORS / 2 {
        for (number, disk) in disks.iter_mut().enumerate() {
            data.fill((16 * number + sector) as u8);
            disk.write_blocks(2 * sector, data).unwrap();
        }
    }
    for sector in 0..SECTORS / 2 {
        for (number, disk) in disks.iter_mut().enumerate() {
            data.fill(0xff);
            disk.read_blocks(2 * sector, data).unwrap();
            assert!(data.iter().all(|byte| *byte == (16 * number + sector) as u8));
        }
    }
}

memory!(Translated);

#[test]
fn two_disks_found_at_run_time_are_of_one_type() {
    let bench = Bench::new();
    let mut disks = behind_unit::<Translated>(&bench);
    move_sectors(&bench, &mut disks);
    // One goes, and the other one still has its rings.
    disks.remove(0);
    move_sectors(&bench, &mut disks);
    assert_eq!(Translated::memory().refused(), 0);
    assert_eq!(bench.unit.faults().len(), 0);
}

memory!(Direct);

#[test]
fn the_same_disks_work_without_an_iommu() {
    let bench = Bench::new();
    let mut disks: Vec<Driver<Direct>> =
        (0..2).map(|_| probe(&bench, direct(&bench), Path::Direct).unwrap()).collect();
    move_sectors(&bench, &mut disks);
    assert_eq!(Direct::memory().refused(), 0);
}

memory!(Past);

#[test]
fn a_disk_that_goes_past_the_iommu_is_not_opened() {
    let bench = Bench::new();
    let [device, _] = pair(&bench);
    let refused = probe::<Past>(&bench, device, Path::Direct);
    assert!(matches!(refused.err(), Some(AddError::NotTranslated(_))));
}

memory!(Refused);

#[test]
fn a_disk_that_was_refused_is_not_left_open() {
    let bench = Bench::new();
    let disk = |path| Disk::new(bench.kernel.clone(), path);
    let open = |path| Refused::memory().open(&bench.iommus, DEVICE, disk(path));
    let refused = open(Path::Direct).err();
    let reason = VirtioOpenError::Add(AddError::NotTranslated(NotTranslated));
    assert_eq!(refused, Some(reason));
    assert_eq!(bench.read(0x1000), None);
    assert!(open(Path::Unit(bench.unit.clone(), bench.stream())).is_ok());
}

memory!(Opened);

#[test]
fn an_opened_disk_has_the_options_that_its_driver_needs() {
    let bench = Bench::new();
    let open = |function| {
        let (_, stream) = bench.iommus.unit_of(function).unwrap();
        let disk = Disk::new(bench.kernel.clone(), Path::Unit(bench.unit.clone(), stream));
        Opened::memory().open(&bench.iommus, function, disk).unwrap()
    };
    let opened = [DEVICE, OTHER].map(open);
    let [one, other] = [0, 1].map(|at: usize| opened[at].device.space().unwrap());
    assert!(Arc::ptr_eq(one, other), "drivers do not say for which device a buffer is");
    assert_eq!(one.policy(), Policy::Strict, "drivers keep their buffers");
}

memory!(Counted);

#[test]
fn a_strict_request_waits_for_one_invalidation() {
    let bench = Bench::new();
    let mut disks = behind_unit::<Counted>(&bench);
    let data = bytes(part(bench.page(), 0, SECTOR_SIZE));
    let counted = |kind| bench.unit.counts().descriptors.get(&kind).copied().unwrap_or(0);
    let now = || [DescriptorKind::Iotlb, DescriptorKind::Wait].map(counted);
    let before = now();
    for sector in 0..SECTORS {
        disks[0].read_blocks(sector, data).unwrap();
        disks[1].write_blocks(sector, data).unwrap();
    }
    let requests = 2 * SECTORS as u64;
    assert_eq!(now(), before.map(|count| count + requests));
}
