//! Devices that no unit serves.

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;

use super::buffers::Pages;
use super::copies::{Copier, POOL, POOL_BYTES};
use super::rig::Rig;
use crate::addr::{Iova, PageSize, StreamId};
use crate::dma::{
    Constraints, CopyWhen, Device, DeviceError, FromDevice, MapError, OldMappings, Policy,
    ToDevice, UnmapError,
};
use crate::platform::promised::all_memory;

const STREAM: StreamId = StreamId::new(0x18);

#[test]
fn a_device_without_a_unit_is_mapped_for_at_the_memory_s_address() -> Result<(), UnmapError> {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints::trusted();
    let device = Device::direct(rig.cpus.clone(), STREAM, limits, all_memory()).unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    let pages = Pages::new(&alive, &[(0x8000_0010, 0x20)]);
    let mapping = device.map(pages, FromDevice).ok().unwrap();
    assert_eq!(mapping.iova(), Iova::new(0x8000_0010));
    mapping.unmap().map_err(|failed| failed.error)?;
    // Memory is where it is: it has the alignment, or is refused.
    for (at, align, fits) in [(0x8020_0000, 21, true), (0x8020_0000, 22, false)] {
        let pages = Pages::new(&alive, &[(at, 0x20)]);
        let mapped = device.map_aligned(pages, FromDevice, PageSize::of_lg2(align));
        match mapped {
            Ok(mapping) if fits => assert!(mapping.unmap().is_ok()),
            Err(failed) if !fits => assert!(matches!(failed.error, MapError::Outside { .. })),
            _ => panic!("{at:#x} at a multiple of 2^{align}"),
        }
    }
    let ring = device.coherent(0x1000).unwrap();
    assert_eq!(ring.iova().get(), ring.memory().start().get());
    assert!(device.is_direct() && device.space().is_none());
    assert_eq!(device.attach_again(), Ok(()));
    // No unit was asked for anything.
    drop(device);
    assert_eq!((rig.syncs(), rig.hardware.blocked.lock().len()), (0, 0));
    Ok(())
}

#[test]
fn memory_that_a_device_without_a_unit_does_not_reach_is_copied_or_refused() {
    let copier = Copier::new();
    let limits =
        Constraints { dma_mask: Iova::new(POOL + POOL_BYTES - 1), ..Constraints::trusted() };
    let cpus = copier.rig.cpus.clone();
    let device = Device::direct(cpus, STREAM, limits, all_memory()).unwrap();
    copier.bytes.fill(0x1f_f123, 0x10, 3);
    let high = copier.buffer(&[(0x1f_f123, 0x10)]);
    let refused = device.map(high, ToDevice).err().unwrap();
    assert!(matches!(refused.error, MapError::AboveLimit { .. }));

    let device = device.with_copies(copier.copying(CopyWhen::Needed));
    let high = copier.buffer(&[(0x1f_f123, 0x10)]);
    let mapping = device.map(high, ToDevice).ok().unwrap();
    let at = mapping.iova();
    assert!(at <= limits.dma_mask);
    assert_eq!(copier.bytes.at(at.get(), 0x10), [3; 0x10]);
    assert!(mapping.unmap().is_ok());
    assert_eq!(copier.used(), 0);
}

#[test]
fn what_needs_a_unit_is_refused() {
    let rig = Rig::policy(Policy::Strict);
    let open = |limits| Device::direct(rig.cpus.clone(), STREAM, limits, all_memory());
    let untrusted = open(Constraints::untrusted());
    assert_eq!(untrusted.err(), Some(DeviceError::Untrusted));
    let device = open(Constraints::trusted()).unwrap();
    let failed = device.move_to(rig.space.clone(), OldMappings::Refuse).err().unwrap();
    assert_eq!(failed.error, DeviceError::NoUnit);
    assert_eq!(failed.value.detach(), Err(DeviceError::NoUnit));
}
