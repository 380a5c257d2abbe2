//! `SlotHal`. Each test has slots of its own.

use crate::promised::all_memory;
use std::ptr::NonNull;
use std::sync::Arc;

use portolan::dma::{Constraints, Device, Trust};
use portolan_virtio::{BindError, ReleaseError, SLOTS, SlotHal};
use virtio_drivers::{BufferDirection, Hal};

use super::machine::DEVICE;
use super::{Bench, PAGE, SECRET, bytes, part};

/// A header on a stack, and the bytes around it.
const HEADER: usize = 0x108;
const BYTES: usize = 16;

fn header_of<const N: usize>(trust: Trust) -> bool {
    let bench = Bench::new();
    SlotHal::<N>::bind(bench.device(trust), bench.pages.clone()).unwrap();
    let page = bench.page();
    let header = part(page, HEADER, BYTES);
    bytes(header).copy_from_slice(&[1; BYTES]);
    // SAFETY: the page is there until the end.
    let at = unsafe { SlotHal::<N>::share(header, BufferDirection::Both) };
    for byte in 0..BYTES as u64 {
        assert_eq!(bench.read(at + byte), Some(1));
    }
    let found = bench.finds_secrets(at);
    // The device's writes beside it are lost, or go to the page that it shares.
    assert_eq!(bench.write(at + 3, 0xee), Some(()));
    let _ = bench.write(at + BYTES as u64, 0xbb);
    // SAFETY: it was shared so.
    unsafe { SlotHal::<N>::unshare(at, header, BufferDirection::Both) };
    assert_eq!(bytes(header)[..5], [1, 1, 1, 0xee, 1]);
    let beside = bytes(page)[HEADER + BYTES];
    assert_eq!(beside == SECRET, !found, "read and written alike");
    assert_eq!((bench.read(at), bench.write(at, 0)), (None, None));
    assert_eq!(SlotHal::<N>::release(), Ok(()));
    assert_eq!(SlotHal::<N>::refused(), 0);
    found
}

#[test]
fn an_untrusted_device_reaches_a_header_and_not_what_lies_beside_it() {
    assert!(!header_of::<0>(Trust::Untrusted));
}

#[test]
fn a_trusted_device_may_reach_the_page() {
    assert!(header_of::<1>(Trust::Trusted));
}

#[test]
fn a_buffer_that_goes_over_pages_has_one_stretch_of_addresses() {
    let bench = Bench::new();
    SlotHal::<2>::bind(bench.device(Trust::Trusted), bench.pages.clone()).unwrap();
    let (one, other) = (bench.page(), bench.page());
    let low = one.cast::<u8>().min(other.cast());
    let apart = one.addr().get().abs_diff(other.addr().get());
    assert_eq!(apart, PAGE, "the machine's first pages follow each other");
    let both = NonNull::slice_from_raw_parts(low, 2 * PAGE);
    bytes(both)[PAGE - 1..=PAGE].copy_from_slice(&[7, 8]);
    // SAFETY: the pages are there until the end.
    let at = unsafe {
        SlotHal::<2>::share(part(both, 8, 2 * PAGE - 8), BufferDirection::DriverToDevice)
    };
    let end = at + PAGE as u64 - 8;
    assert_eq!((bench.read(end - 1), bench.read(end)), (Some(7), Some(8)));
    // The device was not given it for writing.
    assert_eq!(bench.write(end, 0), None);
    let in_use = ReleaseError::InUse { rings: 0, buffers: 1 };
    assert_eq!(SlotHal::<2>::release(), Err(in_use));
    // SAFETY: it was shared so.
    unsafe { SlotHal::<2>::unshare(at, both, BufferDirection::DriverToDevice) };
    assert_eq!(bench.read(end), None);
    assert_eq!(SlotHal::<2>::release(), Ok(()));
}

#[test]
fn a_ring_is_reached_until_it_is_freed_and_keeps_its_slot() {
    let bench = Bench::new();
    let device = bench.device(Trust::Untrusted);
    SlotHal::<3>::bind(device.clone(), bench.pages.clone()).unwrap();
    let again = SlotHal::<3>::bind(device.clone(), bench.pages.clone());
    assert_eq!(again, Err(BindError::Taken));
    let beyond = SlotHal::<SLOTS>::bind(device, bench.pages.clone());
    assert_eq!(beyond, Err(BindError::NoSlot));

    let (at, seen) = SlotHal::<3>::dma_alloc(2, BufferDirection::Both);
    let last = 2 * PAGE as u64 - 1;
    assert_eq!(bench.read(at + last), Some(0), "it is zeroed");
    bytes(NonNull::slice_from_raw_parts(seen, 2 * PAGE))[last as usize] = 9;
    assert_eq!(bench.read(at + last), Some(9));
    let in_use = ReleaseError::InUse { rings: 1, buffers: 0 };
    assert_eq!(SlotHal::<3>::release(), Err(in_use));
    // SAFETY: it was allocated so.
    unsafe { SlotHal::<3>::dma_dealloc(at, seen, 2) };
    assert_eq!(bench.read(at), None);
    assert_eq!(SlotHal::<3>::release(), Ok(()));
}

#[test]
fn what_cannot_be_shared_is_counted_and_reached_nowhere() {
    let bench = Bench::new();
    let device = Arc::new(bench.plain(Trust::Untrusted));
    SlotHal::<4>::bind(device, bench.pages.clone()).unwrap();
    // Nothing is known of the stack; and there is no pool for buffers that would have to be copied.
    let mut unknown = [0u8; 16];
    let header = part(bench.page(), HEADER, BYTES);
    for buffer in [NonNull::from(&mut unknown[..]), header] {
        // SAFETY: it is there until the end.
        let at = unsafe { SlotHal::<4>::share(buffer, BufferDirection::Both) };
        assert_eq!((at, bench.read(at)), (0, None));
        // SAFETY: it was shared so.
        unsafe { SlotHal::<4>::unshare(at, buffer, BufferDirection::Both) };
    }
    let (at, _) = SlotHal::<4>::dma_alloc(usize::MAX, BufferDirection::Both);
    assert_eq!((at, SlotHal::<4>::refused()), (0, 3));
    // A buffer that was never shared is not taken back. SAFETY: nothing is there.
    unsafe { SlotHal::<4>::unshare(0x10_0000, header, BufferDirection::Both) };
    assert_eq!(SlotHal::<4>::refused(), 4);
    assert_eq!(SlotHal::<4>::release(), Ok(()));
}

#[test]
fn a_device_whose_addresses_are_memory_s_is_not_bound() {
    let bench = Bench::new();
    let (unit, stream) = bench.iommus.unit_of(DEVICE).unwrap();
    let limits = Constraints::trusted();
    let device = Device::identity(bench.kernel.clone(), unit.clone(), stream, limits, all_memory());
    let bound = SlotHal::<5>::bind(Arc::new(device.unwrap()), bench.pages.clone());
    assert_eq!(bound, Err(BindError::NotTranslated));
}
