//! Slots of a mapping that go to and fro between the CPU and a device.

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU8, Ordering};

use super::buffers::{Bytes, Pages, unowned};
use super::machine::{Frames, Machine, device_byte};
use super::rig::{Rig, Setup, device_of};
use super::sequences::Random;
use crate::addr::{Iova, PageSize, PhysAddr, PhysRange, StreamId};
use crate::bounce::{PoolMemory, PoolOptions};
use crate::dma::{
    Buffer, BufferPool, BufferPoolError, Coherency, Constraints, CopyWhen, Copying, CpuSlot,
    Device, DeviceSlot, Direction, Policy, Sharing, Trust, Unowned,
};
use crate::platform::promised::all_memory;

const SLOT: usize = 2048;
const SLOTS: usize = 8;

type Pool = BufferPool<Machine, Frames>;

/// Memory for the slots.
fn frames(rig: &Rig) -> Frames {
    Frames::new(&rig.cpus, SLOT * SLOTS)
}

fn pool(rig: &Rig, device: &Device<Machine>, direction: Direction) -> Pool {
    let mapping = device.map(frames(rig), direction).unwrap();
    BufferPool::new(mapping, SLOT).unwrap()
}

/// The byte that a device reaches at `iova`.
fn reached(rig: &Rig, iova: Iova) -> &AtomicU8 {
    let found = rig.space.domain.translate(iova).expect("a mapped address");
    device_byte(&rig.cpus, found.pa)
}

/// The device writes `value` to the first `bytes` bytes.
fn fill(rig: &Rig, iova: Iova, bytes: u64, value: u8) {
    for at in 0..bytes {
        reached(rig, iova.checked_add(at).unwrap()).store(value, Ordering::Relaxed);
    }
}

fn refused<B: Buffer>(device: &Device<Machine>, buffer: B, bytes: usize) -> BufferPoolError {
    let mapping = device.map(buffer, Direction::Bidirectional).unwrap();
    let failed = BufferPool::new(mapping, bytes).expect_err("it is refused");
    assert!(failed.value.unmap().is_ok());
    failed.error
}

#[test]
fn slots_move_without_a_map_an_unmap_or_an_invalidation() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let pool = pool(&rig, &device, Direction::FromDevice);
    assert_eq!((pool.slot_count(), pool.slot_bytes(), pool.lost()), (SLOTS, SLOT, 0));
    rig.hardware.lines.begin();
    for round in 1..=10 {
        let posted: Vec<_> = (0..SLOTS).map(|_| pool.take().unwrap().post()).collect();
        assert!(pool.take().is_none());
        for (number, slot) in (1..).zip(posted) {
            fill(&rig, slot.iova(), SLOT as u64, round * number);
            let mut back = slot.take_back();
            assert!(back.iter().all(|byte| *byte == round * number));
            back.fill(0);
        }
    }
    assert_eq!((rig.syncs(), rig.hardware.lines.take().len()), (0, 0));
    let mapping = pool.into_mapping().unwrap();
    assert!(mapping.unmap().is_ok());
    assert_eq!((rig.syncs(), rig.frames()), (1, 0));
}

#[test]
fn a_device_reads_what_the_cpu_wrote() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let pool = pool(&rig, &device, Direction::ToDevice);
    let mut slot = pool.take().unwrap();
    slot[..3].copy_from_slice(&[1, 2, 3]);
    let slot = slot.post_first(3);
    assert_eq!(slot.bytes(), 3);
    for at in 0..3 {
        let byte = reached(&rig, slot.iova().checked_add(at).unwrap());
        assert_eq!(u64::from(byte.load(Ordering::Relaxed)), at + 1);
    }
}

#[test]
fn a_pool_with_slots_out_is_not_ended_and_loses_nothing() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let pool = pool(&rig, &device, Direction::FromDevice);
    let (one, two) = (pool.take().unwrap(), pool.take().unwrap().post());
    let failed = pool.into_mapping().err().unwrap();
    assert_eq!(failed.error, BufferPoolError::InUse { slots: 2 });
    drop((one, two.take_back()));
    assert!(failed.value.into_mapping().unwrap().unmap().is_ok());
    assert_eq!((rig.frames(), rig.space.quarantine().dropped), (0, 0));
}

#[test]
fn a_slot_that_is_dropped_with_the_device_is_never_given_out_again() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let pool = pool(&rig, &device, Direction::FromDevice);
    let lost = pool.take().unwrap().post();
    let at = lost.iova();
    drop(lost);
    let out: Vec<_> = core::iter::from_fn(|| pool.take()).map(CpuSlot::post).collect();
    assert_eq!((out.len(), pool.lost()), (SLOTS - 1, 1));
    assert!(out.iter().all(|slot| slot.iova() != at));
    drop(out.into_iter().map(DeviceSlot::take_back).collect::<Vec<_>>());
    // Once it is unmapped, no device reaches the slot.
    assert!(pool.into_mapping().unwrap().unmap().is_ok());
    assert_eq!(rig.frames(), 0);
}

#[test]
fn slots_outlive_their_pool_and_their_device() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let pool = pool(&rig, &device, Direction::FromDevice);
    let (mut slot, posted) = (pool.take().unwrap(), pool.take().unwrap().post());
    device.detach().unwrap();
    assert_eq!(*rig.hardware.blocked.lock(), [StreamId::new(1); 2]);
    drop(pool);
    slot.fill(7);
    assert_eq!(posted.take_back().len(), SLOT);
    assert_eq!((slot[SLOT - 1], rig.space.quarantine().dropped), (7, 0));
    // The last one ends the mapping, which was not unmapped.
    drop(slot);
    let lost = rig.space.quarantine();
    assert_eq!((lost.dropped, lost.bytes), (1, (SLOT * SLOTS) as u64));
}

#[test]
fn only_lines_that_are_used_are_written_back_and_dropped() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints { coherency: Coherency::NotCoherent, ..Constraints::trusted() };
    let device = device_of(&rig, 1, limits);
    let pool = pool(&rig, &device, Direction::FromDevice);
    let (cleaned, dropped) = (&rig.hardware.cleaned, &rig.hardware.dropped);
    cleaned.lock().clear();
    let slot = pool.take().unwrap().post_first(1518);
    let memory = |bytes| {
        let found = rig.space.domain.translate(slot.iova()).unwrap();
        PhysRange::from_len(found.pa, bytes).unwrap()
    };
    assert_eq!((*cleaned.lock()).as_slice(), [memory(1518)]);
    let (first, whole) = (memory(64), memory(1518));
    drop(slot.take_back_first(64));
    assert_eq!((*dropped.lock()).as_slice(), [first]);
    // A device that says more than it was handed.
    drop(pool.take().unwrap().post_first(1518).take_back_first(usize::MAX));
    assert_eq!((*dropped.lock()).as_slice(), [first, whole]);
}

/// Copies through a pool of the machine's memory.
fn copying(rig: &Rig) -> (Frames, Copying) {
    let frames = Frames::new(&rig.cpus, 0x4_0000);
    let (cpus, options) = (rig.cpus.clone(), PoolOptions::of_areas(1));
    let pool = PoolMemory::of(cpus, unowned(frames.memory), options).unwrap();
    (frames, Copying { pool: Arc::new(pool), when: CopyWhen::Always })
}

#[test]
fn slots_of_a_device_that_is_not_trusted_are_copies_and_only_bytes_in_use_are_copied() {
    let rig = Rig::new(&Setup { trust: Some(Trust::Untrusted), ..Setup::default() });
    let (frames, copying) = copying(&rig);
    let device = device_of(&rig, 1, Constraints::untrusted()).with_copies(copying);
    let pool = pool(&rig, &device, Direction::Bidirectional);
    let mut slot = pool.take().unwrap();
    slot.fill(1);
    let slot = slot.post_first(16);
    let copy = rig.space.domain.translate(slot.iova()).unwrap().pa;
    assert!(frames.memory.contains(copy));
    let seen = |at| reached(&rig, slot.iova().checked_add(at).unwrap()).load(Ordering::Relaxed);
    assert_eq!((seen(15), seen(16)), (1, 0));
    fill(&rig, slot.iova(), SLOT as u64, 9);
    let back = slot.take_back_first(8);
    assert_eq!((back[7], back[8]), (9, 1));
    // What it writes now reaches the copy alone.
    device_byte(&rig.cpus, copy).store(5, Ordering::Relaxed);
    assert_eq!(back[0], 9);
    drop(back);
    assert!(pool.into_mapping().unwrap().unmap().is_ok());
}

#[test]
fn a_device_that_does_not_reach_the_memory_gets_copies() {
    let rig = Rig::policy(Policy::Strict);
    let (frames, copying) = copying(&rig);
    let limits =
        Constraints { dma_mask: Iova::new(frames.memory.last().get()), ..Constraints::trusted() };
    let copying = Copying { when: CopyWhen::Needed, ..copying };
    let stream = StreamId::new(3);
    let all = all_memory();
    let device = Device::identity(rig.cpus.clone(), rig.hardware.clone(), stream, limits, all);
    let device = device.unwrap().with_copies(copying);
    let pool = pool(&rig, &device, Direction::FromDevice);
    let slot = pool.take().unwrap().post();
    let at = PhysAddr::new(slot.iova().get());
    assert!(frames.memory.contains(at));
    device_byte(&rig.cpus, at).store(3, Ordering::Relaxed);
    assert_eq!(slot.take_back()[0], 3);
}

#[test]
fn a_buffer_that_cannot_be_lent_is_refused() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let length = (SLOT * SLOTS) as u64;
    for bytes in [0, SLOT * SLOTS + 1, usize::MAX] {
        let error = BufferPoolError::Length { bytes, length };
        assert_eq!(refused(&device, frames(&rig), bytes), error);
    }
    let blind = Pages::new(&Arc::default(), &[(0x5000, 0x1000)]);
    assert_eq!(refused(&device, blind, 64), BufferPoolError::NoView);
    let shared: Arc<[u8]> = Arc::new([3; 8]);
    let at = PhysRange::from_len(PhysAddr::new(0x5000), 8).unwrap();
    let mapping = device.map(Bytes { bytes: shared, at }, Direction::ToDevice).unwrap();
    let failed = BufferPool::new(mapping, 8).err().unwrap();
    assert_eq!(failed.error, BufferPoolError::ReadOnly);
    assert!(failed.value.unmap().is_ok());
    let registers = super::buffers::registers(at);
    assert_eq!(Buffer::sharing(&registers), Sharing::Shared);
    assert_eq!(refused::<Unowned>(&device, registers, 8), BufferPoolError::Shared);
}

#[test]
fn slots_that_would_not_be_one_segment_or_alone_in_their_lines_are_refused() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    // Slots of three pages' halves fit; those of 3 KiB are cut at a page.
    assert_eq!(refused(&device, Scattered::new(&rig), 3072), BufferPoolError::Cut { at: 3072 });
    let limits = Constraints { seg_boundary: Some(PageSize::SIZE_4K), ..Constraints::trusted() };
    let device = device_of(&rig, 2, limits);
    assert_eq!(refused(&device, frames(&rig), 3072), BufferPoolError::Cut { at: 3072 });
    let max_segment = NonZeroU64::new(1024).unwrap();
    let device = device_of(&rig, 3, Constraints { max_segment, ..Constraints::trusted() });
    assert_eq!(refused(&device, frames(&rig), SLOT), BufferPoolError::Cut { at: 0 });
    let limits = Constraints { coherency: Coherency::NotCoherent, ..Constraints::trusted() };
    let device = device_of(&rig, 4, limits);
    let line = PageSize::of_lg2(7);
    assert_eq!(refused(&device, frames(&rig), 192), BufferPoolError::SharedLine { at: 0, line });
    let rig = Rig::new(&Setup { trust: Some(Trust::Untrusted), ..Setup::default() });
    let device = device_of(&rig, 5, Constraints::untrusted());
    assert_eq!(refused(&device, frames(&rig), SLOT), BufferPoolError::Untrusted);
}

/// Three pages, none behind another for devices, in one view.
struct Scattered(Frames, Box<[PhysRange]>);

impl Scattered {
    fn new(rig: &Rig) -> Self {
        let page = |at| PhysRange::page(PhysAddr::new(at), PageSize::SIZE_4K);
        Self(Frames::new(&rig.cpus, 0x3000), Box::new([0x9000, 0x5000, 0x7000].map(page)))
    }
}

#[allow(unsafe_code)]
// SAFETY: the addresses are names that no device of the test uses.
unsafe impl Buffer for Scattered {
    fn pieces(&self) -> crate::dma::Pieces<'_> {
        crate::dma::Pieces::List(&self.1)
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<core::ptr::NonNull<[u8]>> {
        self.0.view()
    }
}

#[test]
fn pieces_that_slots_fit_into_need_not_lie_together() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let mapping = device.map(Scattered::new(&rig), Direction::FromDevice).unwrap();
    let first = mapping.iova();
    let pool = BufferPool::new(mapping, SLOT).unwrap();
    let out: Vec<_> = core::iter::from_fn(|| pool.take()).map(CpuSlot::post).collect();
    let places: Vec<_> =
        out.iter().map(|slot| rig.space.domain.translate(slot.iova()).unwrap().pa.get()).collect();
    assert_eq!(places, [0x9000, 0x9800, 0x5000, 0x5800, 0x7000, 0x7800]);
    assert_eq!(out[3].iova().get(), first.get() + 0x1800);
    out.into_iter().for_each(|slot| drop(slot.take_back()));
}

/// Random moves of slots, each of which holds what its owner has left there; all are counted at the end.
#[test]
fn random_moves_give_each_slot_one_owner() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let rig = Rig::policy(Policy::Strict);
        let device = device_of(&rig, 1, Constraints::trusted());
        let pool = pool(&rig, &device, Direction::Bidirectional);
        let (mut ours, mut theirs, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..300u32 {
            let mark = step as u8;
            match random.below(16) {
                0..4 => ours.extend(pool.take().map(|slot| (slot, None))),
                4..8 if !ours.is_empty() => {
                    let (mut slot, left): (CpuSlot<_, _>, _) =
                        ours.swap_remove(random.below(ours.len()));
                    if let Some(left) = left {
                        assert!(slot.iter().all(|byte| *byte == left), "seed {seed}");
                    }
                    slot.fill(mark);
                    theirs.push((slot.post(), mark));
                }
                8..12 if !theirs.is_empty() => {
                    let (slot, left): (DeviceSlot<_, _>, u8) =
                        theirs.swap_remove(random.below(theirs.len()));
                    let byte = reached(&rig, slot.iova()).load(Ordering::Relaxed);
                    assert_eq!(byte, left, "seed {seed}");
                    fill(&rig, slot.iova(), SLOT as u64, mark);
                    ours.push((slot.take_back(), Some(mark)));
                }
                12..15 if !ours.is_empty() => drop(ours.swap_remove(random.below(ours.len()))),
                15 if !theirs.is_empty() && random.below(8) == 0 => {
                    lost.push(theirs.swap_remove(random.below(theirs.len())).0.iova());
                }
                _ => {}
            }
            // Each slot is free, the CPU's, the device's, or lost.
            let out = ours.len() + theirs.len() + lost.len();
            assert_eq!(pool.lost(), lost.len(), "seed {seed}");
            let rest: Vec<_> = core::iter::from_fn(|| pool.take()).collect();
            assert_eq!(rest.len() + out, SLOTS, "seed {seed}");
        }
        drop((ours, theirs.into_iter().map(|(slot, _)| slot.take_back()).collect::<Vec<_>>()));
        assert!(pool.into_mapping().unwrap().unmap().is_ok(), "seed {seed}");
        assert_eq!((rig.frames(), rig.space.quarantine().dropped), (0, 0), "seed {seed}");
    }
}

#[test]
fn threads_that_share_a_pool_never_have_the_same_slot() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let pool = pool(&rig, &device, Direction::Bidirectional);
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..2000 {
                    let Some(mut slot) = pool.take() else {
                        continue;
                    };
                    slot[..64].fill(thread);
                    let back = slot.post().take_back();
                    assert_eq!(back[..64], [thread; 64]);
                }
            });
        }
    });
    assert!(pool.into_mapping().unwrap().unmap().is_ok());
}
