//! `SpaceHal` and `VirtioMemory`. Each test has a memory of its own.

use std::ptr::NonNull;
use std::sync::Arc;

use portolan::addr::PhysAddr;
use portolan::dma::{Buffers, Constraints, Device, PolicyPreference, Trust};
use portolan_hw::topology::{DeviceOptions, SpaceScope};
use portolan_virtio::{AddError, HalMemory, RemoveError, SpaceHal};
use virtio_drivers::{BufferDirection, Hal};

use super::machine::{DEVICE, DISPLAY, Kernel, OTHER};
use super::promised::all_memory;
use super::transport::{ACCESS_PLATFORM, Device as Virtio};
use super::{Bench, PAGE, SECRET, bytes, memory, part};

/// Offset of a buffer, and the bytes around it.
const OFFSET: usize = 0x108;
const SHORT: usize = 16;
const LONG: usize = 100;

/// An address at which no device reaches anything.
const NOWHERE: u64 = 1 << 63;

/// The device of the bench, as it is without an IOMMU.
pub(super) fn direct(bench: &Bench) -> Device<Kernel> {
    let (_, stream) = bench.iommus.unit_of(DEVICE).unwrap();
    let limits = Constraints::trusted();
    Device::direct(bench.kernel.clone(), stream, limits, all_memory()).unwrap()
}

/// Two devices in one space, which is strict.
pub(super) fn pair(bench: &Bench) -> [Device<Kernel>; 2] {
    let mut options = DeviceOptions::trusted();
    options.scope = SpaceScope::Unit;
    (options.buffers, options.preference) = (Buffers::Kept, PolicyPreference::Strict);
    [DEVICE, OTHER].map(|function| bench.iommus.device_with(function, &options).unwrap())
}

/// Adds the device of a virtio device that goes through the IOMMU.
fn add<M: HalMemory<Platform = Kernel>>(device: &Arc<Device<Kernel>>) -> Result<(), AddError> {
    let transport = Virtio { features: ACCESS_PLATFORM, accepted: 0 };
    M::memory().add(device.clone(), transport).map(drop)
}

fn remove<M: HalMemory<Platform = Kernel>>(
    device: &Arc<Device<Kernel>>,
) -> Result<(), RemoveError> {
    M::memory().remove(device)
}

/// Lends a part of a page, looks at what the device reaches, and takes it back: tells if it found secrets.
fn lends_part<M: HalMemory<Platform = Kernel>>(trust: Trust, length: usize) -> bool {
    let bench = Bench::new();
    let device = bench.device(trust);
    add::<M>(&device).unwrap();
    let page = bench.page();
    let buffer = part(page, OFFSET, length);
    bytes(buffer).fill(1);
    // SAFETY: the page is there until the end.
    let at = unsafe { SpaceHal::<M>::share(buffer, BufferDirection::Both) };
    for byte in 0..length as u64 {
        assert_eq!(bench.read(at + byte), Some(1));
    }
    let found = bench.finds_secrets(at);
    // The device's writes beside it are lost, or go to the page that it shares.
    assert_eq!(bench.write(at + 3, 0xee), Some(()));
    let _ = bench.write(at + length as u64, 0xbb);
    // SAFETY: it was shared so.
    unsafe { SpaceHal::<M>::unshare(at, buffer, BufferDirection::Both) };
    assert_eq!(bytes(buffer)[..5], [1, 1, 1, 0xee, 1]);
    let beside = bytes(page)[OFFSET + length];
    assert_eq!(beside == SECRET, !found, "read and written alike");
    // A header's copy stays the device's, and the header does not.
    let reaches = bench.write(at, 0).is_some();
    assert_eq!((bytes(buffer)[0], reaches), (1, length == SHORT));
    assert_eq!(remove::<M>(&device), Ok(()));
    assert_eq!(M::memory().refused(), 0);
    assert_eq!((bench.read(at), bench.write(at, 0)), (None, None));
    found
}

memory!(Headers);

#[test]
fn an_untrusted_device_reaches_a_header_and_not_what_lies_beside_it() {
    for trust in [Trust::Untrusted, Trust::Trusted] {
        assert!(!lends_part::<Headers>(trust, SHORT));
    }
}

memory!(Parts);

#[test]
fn an_untrusted_device_reaches_a_part_of_a_page_and_not_what_lies_beside_it() {
    assert!(!lends_part::<Parts>(Trust::Untrusted, LONG));
}

memory!(TrustedParts);

#[test]
fn a_trusted_device_may_reach_the_page() {
    assert!(lends_part::<TrustedParts>(Trust::Trusted, LONG));
}

memory!(Several);

#[test]
fn a_buffer_that_goes_over_pages_has_one_stretch_of_addresses() {
    let bench = Bench::new();
    let device = bench.device(Trust::Trusted);
    add::<Several>(&device).unwrap();
    let (one, other) = (bench.page(), bench.page());
    let low = one.cast::<u8>().min(other.cast());
    let apart = one.addr().get().abs_diff(other.addr().get());
    assert_eq!(apart, PAGE, "the machine's first pages follow each other");
    let both = NonNull::slice_from_raw_parts(low, 2 * PAGE);
    bytes(both)[PAGE - 1..=PAGE].copy_from_slice(&[7, 8]);
    let way = BufferDirection::DriverToDevice;
    // SAFETY: the pages are there until the end.
    let at = unsafe { SpaceHal::<Several>::share(part(both, 8, 2 * PAGE - 8), way) };
    let end = at + PAGE as u64 - 8;
    assert_eq!((bench.read(end - 1), bench.read(end)), (Some(7), Some(8)));
    // The device was not given it for writing.
    assert_eq!(bench.write(end, 0), None);
    let in_use = RemoveError::InUse { rings: 0, buffers: 1 };
    assert_eq!(remove::<Several>(&device), Err(in_use));
    // SAFETY: it was shared so.
    unsafe { SpaceHal::<Several>::unshare(at, both, way) };
    assert_eq!(bench.read(end), None);
    assert_eq!(remove::<Several>(&device), Ok(()));
    assert_eq!(remove::<Several>(&device), Err(RemoveError::Unknown));
}

memory!(WithRing);

#[test]
fn a_ring_is_reached_until_it_is_freed_and_keeps_its_device() {
    let bench = Bench::new();
    let device = bench.device(Trust::Untrusted);
    add::<WithRing>(&device).unwrap();
    let (at, seen) = SpaceHal::<WithRing>::dma_alloc(2, BufferDirection::Both);
    let last = 2 * PAGE as u64 - 1;
    assert_eq!(bench.read(at + last), Some(0), "it is zeroed");
    bytes(NonNull::slice_from_raw_parts(seen, 2 * PAGE))[last as usize] = 9;
    assert_eq!(bench.read(at + last), Some(9));
    let in_use = RemoveError::InUse { rings: 1, buffers: 0 };
    assert_eq!(remove::<WithRing>(&device), Err(in_use));
    // SAFETY: it was allocated so.
    unsafe { SpaceHal::<WithRing>::dma_dealloc(at, seen, 2) };
    assert_eq!(bench.read(at), None);
    assert_eq!(remove::<WithRing>(&device), Ok(()));
}

memory!(Refused);

#[test]
fn what_cannot_be_shared_is_counted_and_reached_nowhere() {
    let bench = Bench::new();
    let device = Arc::new(bench.plain(Trust::Untrusted));
    let memory = Refused::memory();
    // Before there is a device, nothing can be shared.
    let (at, _) = SpaceHal::<Refused>::dma_alloc(1, BufferDirection::Both);
    assert_eq!((at, memory.refused()), (0, 1));
    add::<Refused>(&device).unwrap();
    // Nothing is known of the stack; and there is no pool for buffers that would have to be copied.
    let mut unknown = [0u8; LONG];
    let long = part(bench.page(), OFFSET, LONG);
    for buffer in [NonNull::from(&mut unknown[..]), long] {
        // SAFETY: it is there until the end.
        let at = unsafe { SpaceHal::<Refused>::share(buffer, BufferDirection::Both) };
        assert_eq!((at, bench.read(at)), (NOWHERE, None));
        // SAFETY: it was shared so.
        unsafe { SpaceHal::<Refused>::unshare(at, buffer, BufferDirection::Both) };
    }
    let (at, _) = SpaceHal::<Refused>::dma_alloc(usize::MAX, BufferDirection::Both);
    assert_eq!((at, memory.refused()), (0, 4));
    // A buffer that was never shared is not taken back. SAFETY: nothing is there.
    unsafe { SpaceHal::<Refused>::unshare(0x10_0000, long, BufferDirection::Both) };
    assert_eq!(memory.refused(), 5);
    assert_eq!(remove::<Refused>(&device), Ok(()));
}

memory!(Slots);

#[test]
fn more_headers_than_there_are_slots_are_mapped_where_they_are() {
    let bench = Bench::new();
    let device = bench.device(Trust::Trusted);
    add::<Slots>(&device).unwrap();
    let page = bench.page();
    let lend = |number: usize| {
        let header = part(page, number % 64 * SHORT, SHORT);
        // SAFETY: the page is there until the end.
        unsafe { SpaceHal::<Slots>::share(header, BufferDirection::DriverToDevice) }
    };
    let shared: Vec<u64> = (0..300).map(lend).collect();
    assert!(shared.iter().all(|at| bench.read(*at) == Some(SECRET)));
    let in_use = RemoveError::InUse { rings: 0, buffers: 300 };
    assert_eq!(remove::<Slots>(&device), Err(in_use));
    for at in shared {
        let header = part(page, 0, SHORT);
        // SAFETY: one of this length was shared so.
        unsafe { SpaceHal::<Slots>::unshare(at, header, BufferDirection::DriverToDevice) };
    }
    assert_eq!(Slots::memory().refused(), 0);
    assert_eq!(remove::<Slots>(&device), Ok(()));
}

memory!(Untranslated);

#[test]
fn a_device_whose_addresses_are_memory_s_is_lent_buffers_there() {
    let bench = Bench::new();
    let (unit, stream) = bench.iommus.unit_of(DEVICE).unwrap();
    let limits = Constraints::trusted();
    let passed = Device::identity(bench.kernel.clone(), unit.clone(), stream, limits, all_memory());
    for device in [direct(&bench), passed.unwrap()] {
        let device = Arc::new(device);
        add::<Untranslated>(&device).unwrap();
        let page = bench.page();
        // SAFETY: the page is there until the end.
        let at = unsafe { SpaceHal::<Untranslated>::share(page, BufferDirection::Both) };
        assert_eq!(bench.seen(PhysAddr::new(at)), page.cast());
        // SAFETY: it was shared so.
        unsafe { SpaceHal::<Untranslated>::unshare(at, page, BufferDirection::Both) };
        assert_eq!(remove::<Untranslated>(&device), Ok(()));
    }
}

memory!(Common);

#[test]
fn devices_of_one_space_reach_what_is_shared_and_others_are_refused() {
    let bench = Bench::new();
    let [one, other] = pair(&bench).map(Arc::new);
    add::<Common>(&one).unwrap();
    add::<Common>(&other).unwrap();
    let page = bench.page();
    // SAFETY: the page is there until the end.
    let at = unsafe { SpaceHal::<Common>::share(page, BufferDirection::Both) };
    for stream in [one.stream(), other.stream()] {
        assert_eq!(bench.read_as(stream, at), Some(SECRET));
    }
    // The first one goes while its neighbour has the buffer.
    assert_eq!(remove::<Common>(&one), Ok(()));
    drop(one);
    let (gone, left) = (bench.iommus.unit_of(DEVICE).unwrap().1, other.stream());
    assert_eq!((bench.read_as(gone, at), bench.read_as(left, at)), (None, Some(SECRET)));
    let apart = Arc::new(bench.iommus.trusted_device(DISPLAY).unwrap());
    assert_eq!(add::<Common>(&apart), Err(AddError::OtherSpace));
    drop(apart);
    assert_eq!(add::<Common>(&Arc::new(direct(&bench))), Err(AddError::OtherSpace));
    let space = other.space().unwrap().clone();
    let narrow = Constraints::trusted().address_bits(32);
    let narrow = Device::translated(space, gone, narrow).unwrap();
    assert_eq!(add::<Common>(&Arc::new(narrow)), Err(AddError::OtherLimits));
    // SAFETY: it was shared so.
    unsafe { SpaceHal::<Common>::unshare(at, page, BufferDirection::Both) };
    assert_eq!(remove::<Common>(&other), Ok(()));
}

memory!(Quick);

#[test]
fn a_buffer_is_shared_without_heap_memory() {
    let bench = Bench::new();
    let device = Arc::new(pair(&bench).into_iter().next().unwrap());
    add::<Quick>(&device).unwrap();
    let page = bench.page();
    let mut most = 0;
    for round in 0..64 {
        let header = part(page, 0, SHORT);
        let before = super::allocations();
        // SAFETY: the page is there until the end.
        let shared = [page, header].map(|buffer| unsafe {
            (SpaceHal::<Quick>::share(buffer, BufferDirection::Both), buffer)
        });
        // The first rounds take table pages and fill the CPU's addresses.
        if round >= 8 {
            most = most.max(super::allocations() - before);
        }
        for (at, buffer) in shared {
            // SAFETY: it was shared so.
            unsafe { SpaceHal::<Quick>::unshare(at, buffer, BufferDirection::Both) };
        }
    }
    assert_eq!(most, 0);
    assert_eq!(remove::<Quick>(&device), Ok(()));
}
