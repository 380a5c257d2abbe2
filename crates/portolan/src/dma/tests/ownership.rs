//! Owners of a buffer over time, and buffers that are never freed.

use crate::platform::promised::{all_memory, simulated};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use spin::Mutex;

use super::buffers::{Pages, Word, unowned};
use super::rig::{Cpus, Rig, Setup, TIMED_OUT};
use crate::addr::{Iova, PageSize, PhysRange, StreamId};
use crate::dma::flush_queue::{FlushTicket, Joined};
use crate::dma::mapping::MappingPlace;
use crate::dma::{
    Bidirectional, Coherency, Constraints, Device, FromDevice, MapError, Mapping, Policy,
    Reservation, ToDevice, Trust, UnmapError, reclaim_all,
};
use crate::inval::{Caching, Command, Depth, Step};
use crate::iommu::{AttachError, Iommu};
use crate::platform::DataCache;
use crate::table::Access;

fn device(rig: &Rig, constraints: Constraints) -> Device<Cpus> {
    let stream = StreamId::new(7);
    Device::translated(rig.space.clone(), stream, constraints).unwrap()
}

#[test]
fn a_mapping_of_a_word_sized_buffer_is_small() {
    assert!(size_of::<Mapping<Cpus, Word>>() <= 56);
    assert!(size_of::<Mapping<Cpus, Word, ToDevice>>() <= 48);
}

/// Parts of a value that lie in words of their own are moved by the loads that its stores were.
#[test]
fn values_that_are_moved_with_each_mapping_have_no_room_between_their_parts() {
    let words = |bytes: usize| bytes / size_of::<u64>();
    assert_eq!(words(size_of::<MappingPlace>()), 1);
    assert_eq!(words(size_of::<FlushTicket>()), 2);
    assert_eq!(words(size_of::<Option<Joined>>()), 2);
    assert_eq!(words(size_of::<Option<crate::dma::Unowned>>()), 4);
}

fn alive() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

#[test]
fn a_buffer_comes_back_when_it_is_quiet() {
    let rig = Rig::policy(Policy::Strict);
    let device = device(&rig, Constraints::trusted());
    let alive = alive();
    let buffer = Pages::new(&alive, &[(0x5800, 0x300), (0x9000, 0x1000)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    let segments: Vec<_> = mapping.segments().collect();
    assert_eq!(segments.len(), 2);
    assert_eq!(segments[0].bytes.get(), 0x300);
    let found = rig.space.domain.translate(segments[0].iova).unwrap();
    assert_eq!((found.pa.get(), found.access), (0x5800, Access::READ));
    let at = segments[1].iova;
    let deferred = mapping.defer().ok().unwrap();
    assert_eq!(rig.space.domain.translate(at), None);
    assert_eq!(rig.syncs(), 0);
    let deferred = deferred.try_reclaim().err().unwrap();
    let buffer = deferred.reclaim().ok().unwrap();
    assert_eq!((rig.syncs(), buffer.first().get()), (1, 0x5800));
    drop(buffer);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn many_deferred_buffers_are_reclaimed_by_one_sync() {
    let rig = Rig::policy(Policy::Deferred);
    let device = device(&rig, Constraints::trusted());
    let alive = alive();
    let one = |i: u64| {
        let buffer = Pages::new(&alive, &[(i << 12, 0x1000)]);
        device.map(buffer, FromDevice).ok().unwrap()
    };
    let mappings: Vec<_> = (0..100).map(one).collect();
    let defer = |mapping: crate::dma::Mapping<_, _, FromDevice>| mapping.defer().ok().unwrap();
    let deferred: Vec<_> = mappings.into_iter().map(defer).collect();
    let mut buffers = Vec::new();
    let all = reclaim_all(deferred, |buffer| buffers.push(buffer), |_| unreachable!());
    assert_eq!((all, buffers.len(), rig.syncs()), (Ok(()), 100, 1));
}

#[test]
fn a_future_lets_others_join_and_then_pays() {
    let rig = Rig::policy(Policy::Deferred);
    let device = device(&rig, Constraints::trusted());
    let alive = alive();
    let defer = |at| {
        let buffer = Pages::new(&alive, &[(at, 0x1000)]);
        let mapping = device.map(buffer, Bidirectional).ok().unwrap();
        mapping.defer().ok().unwrap()
    };
    let mut first = defer(0x1000);
    let mut context = Context::from_waker(Waker::noop());
    let mut quiet = pin!(first.quiet());
    assert!(quiet.as_mut().poll(&mut context).is_pending());
    let second = defer(0x2000);
    assert_eq!(quiet.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    assert!(first.try_reclaim().is_ok());
    assert!(second.try_reclaim().is_ok());
    assert_eq!(rig.syncs(), 1);
}

#[test]
fn dropped_mappings_and_deferred_buffers_are_never_freed_and_counted() {
    let rig = Rig::policy(Policy::Deferred);
    let device = device(&rig, Constraints::trusted());
    let alive = alive();
    let map = |at| {
        let buffer = Pages::new(&alive, &[(at, 0x1000)]);
        device.map(buffer, ToDevice).ok().unwrap()
    };
    let mapping = map(0x1000);
    let iova = mapping.iova();
    drop(mapping);
    assert!(rig.space.domain.translate(iova).is_some());
    drop(map(0x2000).defer().ok().unwrap());
    assert_eq!(alive.load(Ordering::Relaxed), 2);
    let lost = rig.space.quarantine();
    assert_eq!((lost.dropped, lost.bytes), (2, 0x2000));
    // One that is quiet when it is dropped is freed.
    let deferred = map(0x3000).defer().ok().unwrap();
    rig.space.flush().unwrap();
    drop(deferred);
    assert_eq!(alive.load(Ordering::Relaxed), 2);
}

#[test]
fn an_untrusted_device_gets_whole_pages_only() {
    let rig = Rig::policy(Policy::Strict);
    let untrusted = Constraints { trust: Trust::Untrusted, ..Constraints::trusted() };
    let device = device(&rig, untrusted);
    let alive = alive();
    let buffer = Pages::new(&alive, &[(0x1000, 0x1000), (0x2000, 0xfff)]);
    let refused = device.map(buffer, ToDevice).err().unwrap();
    assert!(matches!(refused.error, MapError::SubPage { .. }));
    drop(refused);
    // As long as a page, and across two.
    let buffer = Pages::new(&alive, &[(0x1080, 0x1000)]);
    let refused = device.map(buffer, ToDevice).err().unwrap();
    assert!(matches!(refused.error, MapError::SubPage { .. }));
    drop(refused);
    let buffer = Pages::new(&alive, &[(0x1000, 0x2000)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    drop(mapping.unmap().ok().unwrap());
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn untranslated_devices_reach_memory_below_their_limit_and_blocked_ones_none() {
    let rig = Rig::policy(Policy::Strict);
    let unit = rig.hardware.clone();
    let narrow = Constraints::trusted().address_bits(32);
    let stream = StreamId::new(9);
    let device =
        Device::identity(rig.cpus.clone(), unit.clone(), stream, narrow, all_memory()).unwrap();
    let alive = alive();
    let low = Pages::new(&alive, &[(0x8000_0010, 0x20)]);
    let mapping = device.map(low, ToDevice).ok().unwrap();
    assert_eq!(mapping.iova(), Iova::new(0x8000_0010));
    assert!(mapping.unmap().is_ok());
    drop(device.map(Pages::new(&alive, &[(0x1000, 0x1000)]), ToDevice));
    let lost = device.quarantine();
    assert_eq!((lost.dropped, lost.bytes), (1, 0x1000));
    let high = Pages::new(&alive, &[(0xffff_f000, 0x2000)]);
    let refused = device.map(high, ToDevice).err().unwrap();
    assert!(matches!(refused.error, MapError::AboveLimit { .. }));
    let device = Device::blocked(rig.cpus.clone(), unit, stream, narrow).unwrap();
    let low = Pages::new(&alive, &[(0x1000, 0x1000)]);
    let refused = device.map(low, ToDevice).err().unwrap();
    assert_eq!(refused.error, MapError::Blocked);
    drop(device);
    assert_eq!(*rig.hardware.blocked.lock(), [stream, stream]);
}

#[derive(Default)]
struct Noted(Mutex<Vec<(char, PhysRange)>>);

impl DataCache for Noted {
    fn clean(&self, memory: PhysRange) {
        self.0.lock().push(('c', memory));
    }

    fn invalidate(&self, memory: PhysRange) {
        self.0.lock().push(('i', memory));
    }

    fn line(&self) -> PageSize {
        PageSize::of_lg2(6)
    }
}

#[test]
fn caches_are_maintained_for_a_device_that_does_not_snoop() {
    let rig = Rig::policy(Policy::Strict);
    let cache = Arc::new(Noted::default());
    let constraints = Constraints { coherency: Coherency::NotCoherent, ..Constraints::trusted() };
    let device = device(&rig, constraints).with_cache(cache.clone(), simulated());
    let alive = alive();
    let kinds = || {
        let noted = core::mem::take(&mut *cache.0.lock());
        noted.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>()
    };
    let buffer = Pages::new(&alive, &[(0x1000, 0x100)]);
    let mut mapping = device.map(buffer, FromDevice).ok().unwrap();
    assert_eq!(kinds(), ['c']);
    mapping.sync_for_cpu();
    assert_eq!(kinds(), ['i']);
    mapping.sync_for_device();
    let buffer = mapping.unmap().ok().unwrap();
    assert_eq!(kinds(), ['c', 'i']);
    let mut mapping = device.map(buffer, ToDevice).ok().unwrap();
    mapping.sync_for_cpu();
    assert!(mapping.unmap().is_ok());
    assert_eq!(kinds(), ['c']);
}

#[test]
fn pieces_are_linked_one_after_the_other_and_synced_once() {
    let rig = Rig::new(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    let constraints = Constraints::trusted();
    let space = rig.space.clone();
    let mut reserved = Reservation::new(space, 0x5000, &constraints).unwrap();
    let start = reserved.addresses().start().get();
    let piece = |at, bytes| {
        let piece = PhysRange::from_len(crate::addr::PhysAddr::new(at), bytes);
        unowned(piece.unwrap())
    };
    let first = reserved.link(piece(0x1080, 0x2000), ToDevice).unwrap();
    assert_eq!(first.get(), start + 0x80);
    let second = reserved.link(piece(0x9000, 0x1000), FromDevice).unwrap();
    assert_eq!(second.get(), start + 0x3000);
    let full = reserved.link(piece(0x1_0000, 0x2000), ToDevice).map_err(|failed| failed.error);
    assert!(matches!(full, Err(crate::dma::LinkError::NoRoom { wanted: 0x2000, left: 0x1000 })));
    assert_eq!(rig.syncs(), 0);
    reserved.sync().unwrap();
    assert_eq!(rig.syncs(), 1);
    assert!(rig.space.domain.translate(second).is_some());
    reserved.unlink().ok().unwrap();
    assert_eq!(rig.syncs(), 2);
    assert_eq!(rig.space.domain.translate(second), None);
    assert_eq!(rig.space.waiting(), (0, 0));
}

#[test]
fn what_was_linked_and_never_synced_is_paid_for_when_it_is_unlinked() {
    let rig = Rig::new(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    let constraints = Constraints::trusted();
    let linked = |at| {
        let mut all = Reservation::new(rig.space.clone(), 0x1000, &constraints).unwrap();
        let piece = PhysRange::from_len(crate::addr::PhysAddr::new(at), 0x1000);
        all.link(unowned(piece.unwrap()), ToDevice).unwrap();
        all
    };
    // The table stays for another: unmapping a page of it says nothing of tables.
    let (mut stays, goes) = (linked(0x1000), linked(0x9000));
    stays.sync().unwrap();
    rig.hardware.steps.lock().clear();
    goes.unlink().ok().unwrap();
    let of_tables = |step: &Step| {
        let Step::Invalidate(Command::Page { depth, .. } | Command::Range { depth, .. }) = step
        else {
            return false;
        };
        *depth == Depth::AllLevels
    };
    let steps = rig.hardware.steps.lock().clone();
    assert!(steps.iter().any(of_tables), "{steps:x?}");
    stays.unlink().ok().unwrap();
}

#[test]
fn coherent_memory_is_freed_when_it_is_quiet() {
    let rig = Rig::policy(Policy::Lazy);
    let device = device(&rig, Constraints::trusted());
    let ring = device.coherent(0x2001).unwrap();
    assert_eq!((ring.bytes(), ring.words().len()), (0x3000, 0x600));
    ring.words()[0x5ff].store(7, Ordering::Relaxed);
    let last = Iova::new(ring.iova().get() + 0x2fff);
    let found = rig.space.domain.translate(last).unwrap();
    assert_eq!((found.pa, found.access), (ring.memory().last(), Access::READ | Access::WRITE));
    assert_eq!(rig.frames(), 1);
    drop(ring);
    assert_eq!((rig.syncs(), rig.frames()), (1, 0));
}

#[test]
fn coherent_memory_that_a_device_may_reach_is_kept_and_counted() {
    let rig = Rig::policy(Policy::Strict);
    let device = device(&rig, Constraints::trusted());
    let ring = device.coherent(1).unwrap();
    rig.set_broken(1);
    drop(ring);
    assert_eq!(rig.frames(), 1);
    assert_eq!(device.quarantine().bytes, 0x1000);
}

#[test]
fn coherent_memory_of_a_device_that_does_not_snoop_is_not_cached() {
    let rig = Rig::policy(Policy::Strict);
    let constraints = Constraints { coherency: Coherency::NotCoherent, ..Constraints::trusted() };
    // The machine has no such memory.
    let made = device(&rig, constraints).coherent(0x1000);
    assert_eq!(made.err(), Some(MapError::NoUncached { bytes: 0x1000 }));
}

#[test]
fn a_range_of_another_space_is_refused() {
    let one = Rig::policy(Policy::Strict);
    let other = Rig::policy(Policy::Lazy);
    let memory = PhysRange::from_len(crate::addr::PhysAddr::new(0x4000), 0x1000).unwrap();
    let constraints = Constraints::trusted();
    let mapped = one.space.map_range(unowned(memory), Access::READ, &constraints);
    let (range, _) = mapped.unwrap();
    let failed = other.space.unmap_range(range).unwrap_err();
    assert_eq!(failed.error, UnmapError::OtherSpace);
    one.space.unmap_range(failed.value.unwrap()).unwrap();
}

#[test]
fn coherent_memory_is_aligned_as_far_as_the_device_keeps_bits_of_addresses() {
    let rig = Rig::policy(Policy::Strict);
    let constraints = Constraints { min_align_mask: PageSize::SIZE_2M, ..Constraints::trusted() };
    let device = device(&rig, constraints);
    let rings = [0, 1, 2].map(|_| device.coherent(0x1000).unwrap());
    for ring in &rings {
        assert!(ring.iova().is_aligned(PageSize::SIZE_2M), "{:?}", ring.iova());
        // The second block of the machine's memory is not.
        let found = rig.space.domain.translate(ring.iova()).unwrap();
        assert_eq!(found.pa, ring.memory().start());
    }
    assert!(!rings[1].memory().start().is_aligned(PageSize::SIZE_2M));
}

#[test]
fn untranslated_coherent_memory_lies_where_the_device_reaches_all_of_it() {
    let rig = Rig::policy(Policy::Strict);
    let unit: Arc<dyn Iommu> = rig.hardware.clone();
    let made = |last: u64| {
        let constraints = Constraints { dma_mask: Iova::new(last), ..Constraints::trusted() };
        let stream = StreamId::new(3);
        let device =
            Device::identity(rig.cpus.clone(), unit.clone(), stream, constraints, all_memory());
        let ring = device.unwrap().coherent(0x1000);
        ring.map(|ring| ring.memory().last().get())
    };
    let last = made(u64::MAX).unwrap();
    assert_eq!(made(last), Ok(last));
    assert!(matches!(made(last - 1), Err(MapError::AboveLimit { .. })));
}

#[test]
fn a_device_attached_again_is_where_it_was() {
    let rig = Rig::policy(Policy::Strict);
    let unit: Arc<dyn Iommu> = rig.hardware.clone();
    let (stream, limits) = (StreamId::new(3), Constraints::trusted());
    let device = Device::identity(rig.cpus.clone(), unit, stream, limits, all_memory()).unwrap();
    assert_eq!(device.stream(), stream);
    device.attach_again().unwrap();
    assert_eq!(*rig.hardware.blocked.lock(), []);
}

#[test]
fn a_device_that_cannot_be_blocked_is_told_of() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints::trusted();
    assert_eq!(device(&rig, limits).detach(), Ok(()));
    rig.hardware.holds_on.store(true, Ordering::Relaxed);
    let error = AttachError::Iommu(TIMED_OUT);
    assert_eq!(device(&rig, limits).detach(), Err(error.into()));
}
