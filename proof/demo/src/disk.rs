//! A virtio disk behind the IOMMU, by the driver of `virtio-drivers`.
//!
//! Under each policy sectors are read, inverted, written elsewhere and read back. A check of the disk
//! from outside knows the contents that each sector must have.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem;

use portolan::bounce::{PoolMemory, PoolOptions};
use portolan::dma::{Buffers, CopyWhen, Copying, PolicyPreference, Trust, Unowned};
use portolan::iommu::IommuError;
use portolan::platform::AllMemory;
use portolan_bare::Machine;
use portolan_bare::pci::Function;
use portolan_hw::topology::{DeviceOptions, Iommus};
use portolan_virtio::{HalMemory, SpaceHal};
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};

use crate::commands::{self, Commands};
use crate::virtio::{self, Disks};
use crate::{Outcome, say};

/// A virtio 1.0 block device.
pub const IDENTITY: (u16, u16) = (0x1af4, 0x1042);

/// Sectors that are copied under each policy.
const SECTORS: usize = 64;
/// Sector that receives the copy of sector 0.
const COPIES: usize = 128;
/// Memory for copies of buffers that share a page with others.
const POOL: usize = 256 * 1024;

type Hal = SpaceHal<Disks>;

pub fn show(machine: Machine, iommus: &Iommus<Machine>, function: &Function) -> Outcome<()> {
    let copying = copying(machine)?;
    if !iommus.units().is_empty() {
        keep_translations(iommus, function)?;
    }

    // Not trusted: it reaches the bytes of its buffers, each until its own invalidation.
    let mut options = DeviceOptions::untrusted();
    options.buffers = Buffers::Kept;
    options.preference = PolicyPreference::Strict;
    // With the mistake: trusted from the start, as copies are always in the same place.
    let trust = if cfg!(feature = "untold-device-tlb") { Trust::Trusted } else { Trust::Untrusted };
    options.constraints.trust = commands::trust(iommus, trust);
    copy_sectors(machine, iommus, function, &options, &copying, 0)?;

    // Trusted: it reaches the pages of its buffers, for as long as the bounds of the space say.
    options.constraints.trust = Trust::Trusted;
    options.preference = PolicyPreference::Lazy;
    copy_sectors(machine, iommus, function, &options, &copying, SECTORS)
}

/// Lets a disk that has a TLB use it, if its unit can invalidate it.
fn keep_translations(iommus: &Iommus<Machine>, function: &Function) -> Outcome<()> {
    let (unit, stream) = iommus.unit_of(function.at())?;
    let Some(tlb) = function.device_tlb() else {
        return Ok(());
    };
    if cfg!(feature = "untold-device-tlb") {
        function.start_device_tlb();
        say!("the disk has a TLB that its unit is not told of");
        return Ok(());
    }
    // SAFETY: QEMU's disk keeps to what its unit translated for it.
    let all = unsafe { AllMemory::new() };
    match unit.use_device_tlb(stream, tlb, all) {
        Ok(()) => function.start_device_tlb(),
        Err(IommuError::Unsupported) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    say!("the disk has a TLB of its own");
    Ok(())
}

/// Pool for copies of buffers that the device must not reach in place.
fn copying(machine: Machine) -> Outcome<Copying> {
    let pages = machine.pages(POOL).ok_or("no memory")?;
    // SAFETY: the pool has its memory for good: the pages are forgotten.
    let memory = unsafe { Unowned::new(pages.memory()) };
    mem::forget(pages);
    let pool = PoolMemory::of(machine, memory, PoolOptions::for_cpus(&machine))
        .map_err(|refused| refused.error)?;
    Ok(Copying { pool: Arc::new(pool), when: CopyWhen::Needed })
}

/// Sector in a page of its own: at an address that was another's before, a stale translation leads to that one.
#[repr(align(4096))]
struct OwnPage([u8; SECTOR_SIZE]);

/// Opens the disk as `options` say, and copies sectors from `first` on, inverted.
fn copy_sectors(
    machine: Machine,
    iommus: &Iommus<Machine>,
    function: &Function,
    options: &DeviceOptions,
    copying: &Copying,
    first: usize,
) -> Outcome<()> {
    let device = iommus.device_with(function.at(), options)?;
    let device = Arc::new(device.with_copies(copying.clone()));
    function.start();

    let transport = virtio::transport::<Hal>(machine, function.at());
    let transport = transport.ok_or("the disk is no virtio device")?;
    let transport = Disks::memory().add(device.clone(), transport)?;
    let mut disk = VirtIOBlk::<Hal, _>::new(transport)?;

    let before = Commands::of(iommus);
    for sector in first..first + SECTORS {
        let mut data = Box::new(OwnPage([0; SECTOR_SIZE]));
        disk.read_blocks(sector, &mut data.0)?;
        data.0.iter_mut().for_each(|byte| *byte = !*byte);
        disk.write_blocks(COPIES + sector, &data.0)?;
        let mut again = Box::new(OwnPage([0; SECTOR_SIZE]));
        disk.read_blocks(COPIES + sector, &mut again.0)?;
        if again.0 != data.0 {
            return Err("the disk returned something else than was written".into());
        }
    }
    let requests = 3 * SECTORS as u64;
    let (policy, reason) = commands::policy(iommus, function, options);
    say!("{policy}: {requests} requests");
    say!("  {reason}");
    Commands::of(iommus).since(&before).print_for(requests);

    // The driver gives back the memory that it shared; then the device is blocked.
    drop(disk);
    function.stop();
    Disks::memory().remove(&device)?;
    match Disks::memory().refused() {
        0 => Ok(()),
        _ => Err("something could not be shared with the disk".into()),
    }
}
