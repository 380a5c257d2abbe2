//! A device's access to a buffer that is copied, and the bytes that come back.

use crate::platform::contract::Unowned;
use crate::platform::promised::{all_memory, simulated};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use spin::Mutex;

use super::buffers::{Pages, unowned};
use super::rig::{Cpus, Rig, Setup, TIMED_OUT, range};
use crate::addr::{Iova, PageSize, PhysAddr, PhysRange, StreamId};
use crate::bounce::{
    BouncePool, GiveError, HostVisibility, Need, Pool, PoolMemory, PoolOptions, PoolUse, Sealed,
    Slots, TakeError,
};
use crate::dma::{
    Bidirectional, Coherency, Constraints, CopyWhen, Copying, Device, FromDevice, MapError,
    Mapping, ToDevice, Trust,
};
use crate::inval::Caching;
use crate::platform::{Clearing, DataCache, PhysMemory, Transfer};
use crate::table::Access;

/// Bytes from address 0.
pub(super) struct Bytes(Mutex<Vec<u8>>);

impl PhysMemory for Bytes {
    fn copy(&self, transfer: &Transfer) {
        let (from, to) = (transfer.from().get() as usize, transfer.to().get() as usize);
        let after = from + transfer.bytes() as usize;
        self.0.lock().copy_within(from..after, to);
    }

    fn clear(&self, clearing: &Clearing) {
        let memory = clearing.memory();
        let (start, last) = (memory.start().get() as usize, memory.last().get() as usize);
        self.0.lock()[start..=last].fill(0);
    }
}

impl Bytes {
    pub(super) fn at(&self, start: u64, bytes: usize) -> Vec<u8> {
        self.0.lock()[start as usize..][..bytes].to_vec()
    }

    pub(super) fn fill(&self, start: u64, bytes: usize, value: u8) {
        self.0.lock()[start as usize..][..bytes].fill(value);
    }
}

pub(super) const POOL: u64 = 0x10_0000;
pub(super) const POOL_BYTES: u64 = 128 << 11;

pub(super) struct Copier {
    pub(super) rig: Rig,
    pub(super) bytes: Arc<Bytes>,
    pool: Arc<PoolMemory<Cpus, Arc<Bytes>>>,
    alive: Arc<AtomicUsize>,
    streams: AtomicU32,
}

impl Copier {
    pub(super) fn new() -> Self {
        Self::of(&Setup::default())
    }

    fn of(setup: &Setup) -> Self {
        let rig = Rig::new(setup);
        let bytes = Arc::new(Bytes(Mutex::new(vec![0xee; 0x20_0000])));
        let cpus = rig.cpus.clone();
        let memory = PhysRange::from_len(PhysAddr::new(POOL), POOL_BYTES).unwrap();
        let options = PoolOptions::for_cpus(&cpus);
        let pool = Pool::new(cpus, unowned(memory), options).unwrap();
        Self {
            pool: Arc::new(PoolMemory::new(pool, bytes.clone())),
            rig,
            bytes,
            alive: Arc::default(),
            streams: AtomicU32::new(100),
        }
    }

    pub(super) fn copying(&self, when: CopyWhen) -> Copying {
        Copying { pool: self.pool.clone(), when }
    }

    pub(super) fn device(&self, trust: Trust, when: CopyWhen) -> Device<Cpus> {
        let constraints = Constraints { trust, ..Constraints::trusted() };
        // Each device is a stream of its own.
        let stream = StreamId::new(self.streams.fetch_add(1, Ordering::Relaxed));
        let space = self.rig.space.clone();
        let device = Device::translated(space, stream, constraints).unwrap();
        device.with_copies(self.copying(when))
    }

    pub(super) fn buffer(&self, pieces: &[(u64, u64)]) -> Pages {
        Pages::new(&self.alive, pieces)
    }

    /// Memory that a device reaches at `iova`.
    pub(super) fn reach(&self, iova: u64) -> Option<(u64, Access)> {
        let found = self.rig.space.domain.translate(Iova::new(iova))?;
        Some((found.pa.get(), found.access))
    }

    pub(super) fn used(&self) -> u32 {
        self.pool.in_use().used
    }
}

pub(super) fn span<D: crate::dma::DataDirection>(mapping: &Mapping<Cpus, Pages, D>) -> (u64, u64) {
    let segments: Vec<_> = mapping.segments().collect();
    assert_eq!(segments.len(), 1, "{segments:?}");
    (segments[0].iova.get(), segments[0].bytes.get())
}

#[test]
fn an_untrusted_device_reaches_whole_pages_in_place_and_the_rest_as_copies() {
    let copier = Copier::new();
    let device = copier.device(Trust::Untrusted, CopyWhen::Needed);
    copier.bytes.fill(0x1f00, 0x1200, 7);
    let buffer = copier.buffer(&[(0x1f00, 0x1200)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    assert!(mapping.is_copied());
    let (iova, bytes) = span(&mapping);
    assert_eq!((iova & 0xfff, bytes), (0xf00, 0x1200));
    assert_eq!(copier.reach(iova + 0x100), Some((0x2000, Access::READ)));
    for (at, length) in [(iova, 0x100), (iova + 0x1100, 0x100)] {
        let (pa, access) = copier.reach(at).unwrap();
        assert!((POOL..POOL + POOL_BYTES).contains(&pa));
        assert_eq!(access, Access::READ);
        // The page holds the buffer's bytes and zeros.
        let page = copier.bytes.at(pa & !0xfff, 0x1000);
        let inside = (pa & 0xfff) as usize;
        for (offset, byte) in page.iter().enumerate() {
            let mine = (inside..inside + length).contains(&offset);
            assert_eq!(*byte, if mine { 7 } else { 0 }, "{offset:#x}");
        }
    }
    assert_eq!(copier.reach((iova & !0xfff) - 1), None);
    assert_eq!(copier.reach(iova + 0x2100), None);
    mapping.unmap().ok().unwrap();
    assert_eq!(copier.used(), 0);
}

#[test]
fn what_the_device_wrote_comes_back_and_nothing_beside_it() {
    let copier = Copier::new();
    let device = copier.device(Trust::Untrusted, CopyWhen::Needed);
    let buffer = copier.buffer(&[(0x3010, 0x20)]);
    let mapping = device.map(buffer, FromDevice).ok().unwrap();
    let (iova, _) = span(&mapping);
    let (pa, access) = copier.reach(iova).unwrap();
    assert_eq!(access, Access::WRITE);
    // It fills its whole page, and the buffer's last byte stays as it was.
    copier.bytes.fill(pa & !0xfff, 0x1000, 9);
    copier.bytes.fill(pa + 0x1f, 1, 0xee);
    mapping.unmap().ok().unwrap();
    assert_eq!(copier.bytes.at(0x3000, 0x10), [0xee; 0x10]);
    assert_eq!(copier.bytes.at(0x3010, 0x1f), [9; 0x1f]);
    assert_eq!(copier.bytes.at(0x302f, 0x20), [0xee; 0x20]);
    assert_eq!(copier.used(), 0);
}

#[test]
fn a_part_is_synced_without_the_rest() {
    let copier = Copier::new();
    let device = copier.device(Trust::Trusted, CopyWhen::Always);
    let buffer = copier.buffer(&[(0x3000, 0x100)]);
    let mut mapping = device.map(buffer, Bidirectional).ok().unwrap();
    let (pa, _) = copier.reach(mapping.iova().get()).unwrap();
    copier.bytes.fill(pa, 0x100, 5);
    mapping.sync_part_for_cpu(0x10, 0x10).unwrap();
    assert_eq!(copier.bytes.at(0x3000, 0x10), [0xee; 0x10]);
    assert_eq!(copier.bytes.at(0x3010, 0x10), [5; 0x10]);
    assert_eq!(copier.bytes.at(0x3020, 0xe0), [0xee; 0xe0]);
    copier.bytes.fill(0x3010, 0x20, 6);
    mapping.sync_part_for_device(0x10, 0x10).unwrap();
    assert_eq!(copier.bytes.at(pa + 0x10, 0x10), [6; 0x10]);
    assert_eq!(copier.bytes.at(pa + 0x20, 0x10), [5; 0x10]);
    mapping.unmap().ok().unwrap();
}

#[test]
fn small_buffers_are_copied_where_that_is_cheaper() {
    let copier = Copier::new();
    let device = copier.device(Trust::Trusted, CopyWhen::UpTo(0x200));
    let small = copier.buffer(&[(0x3000, 0x100), (0x5000, 0x100)]);
    let small = device.map(small, ToDevice).ok().unwrap();
    let large = copier.buffer(&[(0x3000, 0x201)]);
    let large = device.map(large, ToDevice).ok().unwrap();
    assert!(small.is_copied() && !large.is_copied());
    small.unmap().ok().unwrap();
    large.unmap().ok().unwrap();
}

#[test]
fn memory_above_an_untranslated_device_s_limit_is_copied_below_it() {
    let copier = Copier::new();
    let narrow = Constraints {
        min_align_mask: PageSize::SIZE_4K,
        ..Constraints::trusted().address_bits(20)
    };
    let unit = copier.rig.hardware.clone();
    let stream = StreamId::new(1);
    let device =
        Device::identity(copier.rig.cpus.clone(), unit.clone(), stream, narrow, all_memory())
            .unwrap();
    let device = device.with_copies(copier.copying(CopyWhen::Needed));
    let low = copier.buffer(&[(0xf_f000, 0x1000)]);
    let mapping = device.map(low, ToDevice).ok().unwrap();
    assert!(!mapping.is_copied());
    mapping.unmap().ok().unwrap();
    // The pool itself is above 20 bits.
    let high = copier.buffer(&[(0x1f_f123, 0x10)]);
    let refused = device.map(high, ToDevice).err().unwrap();
    let above = matches!(refused.error, MapError::Copy(TakeError::AboveLimit { .. }));
    assert!(above, "{}", refused.error);
    drop(device);
    let narrow = narrow.address_bits(21);
    let narrow = Constraints { dma_mask: Iova::new(POOL + POOL_BYTES - 1), ..narrow };
    let device =
        Device::identity(copier.rig.cpus.clone(), unit, stream, narrow, all_memory()).unwrap();
    let device = device.with_copies(copier.copying(CopyWhen::Needed));
    copier.bytes.fill(0x1f_f123, 0x10, 3);
    let high = copier.buffer(&[(0x1f_f123, 0x10)]);
    let mapping = device.map(high, ToDevice).ok().unwrap();
    let at = mapping.iova().get();
    assert_eq!(at & 0xfff, 0x123);
    assert_eq!(copier.bytes.at(at, 0x10), [3; 0x10]);
    mapping.unmap().ok().unwrap();
    assert_eq!(copier.used(), 0);
}

#[test]
fn a_list_that_does_not_fit_takes_nothing() {
    let copier = Copier::new();
    let device = copier.device(Trust::Untrusted, CopyWhen::Always);
    let pieces: Vec<_> = (0..100).map(|i| (0x1_0000 + (i << 12), 0x1000)).collect();
    let refused = device.map(copier.buffer(&pieces), ToDevice);
    let full = matches!(refused.err().unwrap().error, MapError::Copy(TakeError::Full { .. }));
    assert!(full);
    assert_eq!(copier.used(), 0);
    let mapping = device.map(copier.buffer(&pieces[..20]), ToDevice);
    let mapping = mapping.ok().unwrap();
    assert_eq!(copier.used(), 40);
    let (iova, bytes) = span(&mapping);
    assert_eq!(bytes, 20 << 12);
    assert!(copier.reach(iova + (19 << 12)).is_some());
    mapping.unmap().ok().unwrap();
    assert_eq!(copier.used(), 0);
}

/// A pool whose n-th request from now on is refused.
struct Refusing<B> {
    below: B,
    left: AtomicUsize,
}

impl<B> Sealed for Refusing<B> {}

impl<B: BouncePool> BouncePool for Refusing<B> {
    fn take(&self, need: &Need) -> Result<Slots, TakeError> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => {
                Err(TakeError::Full { wanted: 1, slots: 1, used: 1, longest: 0, area: 0, areas: 1 })
            }
            _ => self.below.take(need),
        }
    }

    fn give(&self, slots: Slots) -> Result<(), GiveError> {
        self.below.give(slots)
    }

    fn copy(&self, transfer: &Transfer) {
        self.below.copy(transfer);
    }

    fn clear(&self, clearing: &Clearing) {
        self.below.clear(clearing);
    }

    fn in_use(&self) -> PoolUse {
        self.below.in_use()
    }

    fn memory(&self) -> Option<&Unowned> {
        self.below.memory()
    }

    fn visibility(&self) -> HostVisibility {
        self.below.visibility()
    }
}

#[test]
fn a_pool_that_refuses_at_any_request_leaves_nothing_taken() {
    let copier = Copier::new();
    // A head and a tail, whole pages, a head and a tail, less than a page: five copies.
    let pieces = [(0x1800, 0x1000), (0x4000, 0x2000), (0x7010, 0x1200), (0x9000, 0x10)];
    let copies = 5;
    for nth in 0..=copies {
        let refusing =
            Arc::new(Refusing { below: copier.pool.clone(), left: AtomicUsize::new(nth) });
        let constraints = Constraints { trust: Trust::Untrusted, ..Constraints::trusted() };
        let space = copier.rig.space.clone();
        let device = Device::translated(space, StreamId::new(1), constraints).unwrap();
        let device =
            device.with_copies(Copying { pool: refusing, ..copier.copying(CopyWhen::Needed) });
        let mapped = device.map(copier.buffer(&pieces), FromDevice);
        match mapped {
            Ok(mapping) => {
                assert_eq!(nth, copies, "nothing was refused");
                mapping.unmap().ok().unwrap();
            }
            Err(refused) => {
                assert!(nth < copies);
                let full = matches!(refused.error, MapError::Copy(TakeError::Full { .. }));
                assert!(full, "{}", refused.error);
            }
        }
        assert_eq!(copier.used(), 0, "request {nth}");
        // Refused copies left the buffer as it was.
        assert_eq!(copier.bytes.at(0x1000, 0x9000), [0xee; 0x9000]);
    }
}

impl<B> Sealed for Arc<B> {}

impl<B: BouncePool> BouncePool for Arc<B> {
    fn take(&self, need: &Need) -> Result<Slots, TakeError> {
        (**self).take(need)
    }

    fn give(&self, slots: Slots) -> Result<(), GiveError> {
        (**self).give(slots)
    }

    fn copy(&self, transfer: &Transfer) {
        (**self).copy(transfer);
    }

    fn clear(&self, clearing: &Clearing) {
        (**self).clear(clearing);
    }

    fn in_use(&self) -> PoolUse {
        (**self).in_use()
    }

    fn memory(&self) -> Option<&Unowned> {
        (**self).memory()
    }

    fn visibility(&self) -> HostVisibility {
        (**self).visibility()
    }
}

#[test]
fn a_device_with_a_pool_of_its_own_neither_fills_nor_sees_the_other_s() {
    let copier = Copier::new();
    let own = PhysRange::from_len(PhysAddr::new(0x18_0000), 64 << 11).unwrap();
    let options = PoolOptions { areas: 1, ..PoolOptions::for_cpus(&copier.rig.cpus) };
    let pool = Pool::new(copier.rig.cpus.clone(), unowned(own), options).unwrap();
    let pool = Arc::new(PoolMemory::new(pool, copier.bytes.clone()));
    let restricted = copier.device(Trust::Untrusted, CopyWhen::Always);
    let restricted =
        restricted.with_copies(Copying { pool: pool.clone(), ..copier.copying(CopyWhen::Always) });
    let mut held = Vec::new();
    for page in 0..32 {
        let buffer = copier.buffer(&[(0x1_0000 + (page << 12), 0x1000)]);
        let mapping = restricted.map(buffer, ToDevice).ok().unwrap();
        let (pa, _) = copier.reach(mapping.iova().get()).unwrap();
        assert!(own.contains(PhysAddr::new(pa)), "{pa:#x}");
        held.push(mapping);
    }
    let refused = restricted.map(copier.buffer(&[(0x1_0000, 1)]), ToDevice);
    let error = refused.err().unwrap().error;
    let full = MapError::Copy(TakeError::Full {
        wanted: 2,
        slots: 64,
        used: 64,
        longest: 0,
        area: 0,
        areas: 1,
    });
    assert_eq!(error, full);
    assert_eq!(copier.used(), 0);
    let other = copier.device(Trust::Untrusted, CopyWhen::Always);
    let mapping = other.map(copier.buffer(&[(0x1_0000, 1)]), ToDevice);
    let mapping = mapping.ok().unwrap();
    assert_eq!(copier.used(), 2);
    mapping.unmap().ok().unwrap();
    for mapping in held {
        mapping.unmap().ok().unwrap();
    }
    assert_eq!((copier.used(), pool.in_use().used), (0, 0));
}

#[test]
fn a_broken_space_takes_no_slots() {
    let copier = Copier::new();
    let device = copier.device(Trust::Untrusted, CopyWhen::Needed);
    copier.rig.space.fail(TIMED_OUT);
    for _ in 0..10 {
        let refused = device.map(copier.buffer(&[(0x1f00, 0x100)]), ToDevice);
        assert_eq!(refused.err().unwrap().error, MapError::Broken(TIMED_OUT));
    }
    assert_eq!(copier.used(), 0);
}

#[test]
fn slots_of_a_map_that_failed_in_the_hardware_come_back_when_they_are_quiet() {
    let copier = Copier::of(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    let device = copier.device(Trust::Untrusted, CopyWhen::Needed);
    copier.rig.set_broken(1);
    let refused = device.map(copier.buffer(&[(0x1f00, 0x100)]), ToDevice);
    let held = refused.err().unwrap().value.into_buffer().err().unwrap();
    assert!(copier.used() > 0);
    copier.rig.set_broken(0);
    copier.rig.space.recover().unwrap();
    assert!(held.try_reclaim().is_ok());
    assert_eq!(copier.used(), 0);
}

#[test]
fn a_piece_as_long_as_a_page_that_lies_across_two_is_copied_for_the_untrusted() {
    let copier = Copier::new();
    let device = copier.device(Trust::Untrusted, CopyWhen::Needed);
    let mapping = device.map(copier.buffer(&[(0x1080, 0x1000)]), ToDevice);
    let mapping = mapping.ok().unwrap();
    assert!(mapping.is_copied());
    for segment in mapping.segments() {
        let (pa, _) = copier.reach(segment.iova.get()).unwrap();
        assert!((POOL..POOL + POOL_BYTES).contains(&pa), "{pa:#x}");
    }
    mapping.unmap().ok().unwrap();
}

#[derive(Default)]
struct Lines(Mutex<Vec<(char, PhysRange)>>);

impl DataCache for Lines {
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
fn what_the_cpu_wrote_beside_a_part_that_is_synced_stays() {
    let copier = Copier::new();
    let cache = Arc::new(Lines::default());
    let constraints = Constraints {
        coherency: Coherency::NotCoherent,
        trust: Trust::Untrusted,
        ..Constraints::trusted()
    };
    let space = copier.rig.space.clone();
    let device = Device::translated(space, StreamId::new(1), constraints).unwrap();
    let device = device.with_cache(cache.clone(), simulated());
    let device = device.with_copies(copier.copying(CopyWhen::Needed));
    // A head and a tail that are copied, and two pages in place.
    let buffer = copier.buffer(&[(0x5800, 0x3000)]);
    let mut mapping = device.map(buffer, Bidirectional).ok().unwrap();
    cache.0.lock().clear();
    let line = |at| PhysRange::from_len(PhysAddr::new(at), 0x40).unwrap();
    mapping.sync_part_for_cpu(0x800, 0x40).unwrap();
    assert_eq!(*cache.0.lock(), [('i', line(0x6000))]);
    cache.0.lock().clear();
    mapping.sync_part_for_device(0x840, 0x40).unwrap();
    assert_eq!(*cache.0.lock(), [('c', line(0x6040))]);
    mapping.unmap().ok().unwrap();
}

#[test]
fn a_part_across_copies_and_pages_is_synced_piece_by_piece() {
    let copier = Copier::new();
    let device = copier.device(Trust::Untrusted, CopyWhen::Needed);
    let buffer = copier.buffer(&[(0x5ff0, 0x20), (0x7ff0, 0x20)]);
    let mut mapping = device.map(buffer, Bidirectional).ok().unwrap();
    for segment in mapping.segments() {
        for byte in 0..segment.bytes.get() {
            let (pa, _) = copier.reach(segment.iova.get() + byte).unwrap();
            copier.bytes.fill(pa, 1, 5);
        }
    }
    // From the second half of the first piece to the first half of the second.
    mapping.sync_part_for_cpu(0x10, 0x20).unwrap();
    assert_eq!(copier.bytes.at(0x5ff0, 0x10), [0xee; 0x10]);
    assert_eq!(copier.bytes.at(0x6000, 0x10), [5; 0x10]);
    assert_eq!(copier.bytes.at(0x7ff0, 0x10), [5; 0x10]);
    assert_eq!(copier.bytes.at(0x8000, 0x10), [0xee; 0x10]);
    mapping.unmap().ok().unwrap();
    assert_eq!(copier.bytes.at(0x8000, 0x10), [5; 0x10]);
}

#[test]
fn a_copied_buffer_for_which_there_are_no_addresses_leaves_its_slots() {
    let copier = Copier::of(&Setup { window: range(0x10_0000, 0x10_3fff), ..Setup::default() });
    let device = copier.device(Trust::Trusted, CopyWhen::Always);
    let refused = device.map(copier.buffer(&[(0x1000, 0x8000)]), ToDevice);
    let refused = refused.err().unwrap();
    assert!(matches!(refused.error, MapError::Iova(_)), "{}", refused.error);
    assert!(refused.value.into_buffer().is_ok());
    assert_eq!(copier.used(), 0);
}

#[test]
fn a_map_that_refuses_copies_is_in_place_or_is_refused() {
    let copier = Copier::new();
    let pieces: &[(u64, u64)] = &[(0x3010, 0x20)];
    let buffer = || copier.buffer(pieces);
    let refused = |device: Device<Cpus>| {
        let failed = device.map_in_place(buffer(), ToDevice).err().unwrap();
        let back = failed.value.into_buffer().ok().unwrap();
        assert_eq!(back.first().get(), 0x3010);
        failed.error
    };
    // A small buffer would be copied, for speed.
    let quick = copier.device(Trust::Trusted, CopyWhen::UpTo(1024));
    let mapping = quick.map_in_place(buffer(), ToDevice).ok().unwrap();
    assert!(!mapping.is_copied());
    let (at, _) = copier.reach(mapping.iova().get()).unwrap();
    assert_eq!(at, 0x3010);
    mapping.unmap().unwrap();
    let always = copier.device(Trust::Trusted, CopyWhen::Always);
    assert_eq!(refused(always), MapError::AlwaysCopied);
    // It would be copied because of the bytes beside it.
    let copier = Copier::new();
    let untrusted = copier.device(Trust::Untrusted, CopyWhen::Needed);
    let mapping = untrusted.map(copier.buffer(pieces), ToDevice).ok().unwrap();
    assert!(mapping.is_copied());
    mapping.unmap().unwrap();
    let failed = untrusted.map_in_place(copier.buffer(pieces), ToDevice).err().unwrap();
    let piece = PhysRange::from_len(PhysAddr::new(0x3010), 0x20).unwrap();
    assert_eq!(failed.error, MapError::SubPage { piece });
}
