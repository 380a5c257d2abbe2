//! A pool that grows: its parts, its marks, and copies in memory that the CPU sees at an address of its own.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::machine::{Frames, device_byte};
use super::rig::{Cpus, Rig, Setup, device_of};
use crate::addr::PhysAddr;
use crate::bounce::{
    BouncePool, GiveError, GrowError, GrowingPool, Growth, HostVisibility, Need, PoolOptions,
    Slots, TakeError, Throttle,
};
use crate::dma::{Constraints, CopyWhen, Copying, FromDevice, MapError, PremapError, ToDevice};

const PART: u64 = 128 << 11;

const GROWTH: Growth = Growth {
    division: PoolOptions::of_areas(2),
    part: PART,
    parts: 4,
    visibility: HostVisibility::Shared,
    throttle: None,
};

fn pool(rig: &Rig, growth: Growth) -> GrowingPool<Cpus> {
    GrowingPool::new(rig.cpus.clone(), growth).unwrap()
}

fn patient(bytes: u64) -> Need {
    Need { may_block: true, ..Need::bytes(bytes) }
}

fn take_all(pool: &GrowingPool<Cpus>, need: &Need) -> Vec<Slots> {
    core::iter::from_fn(|| pool.take(need).ok()).collect()
}

#[test]
fn a_caller_that_may_wait_adds_parts_up_to_the_limit() {
    let rig = Rig::new(&Setup::default());
    let pool = pool(&rig, GROWTH);
    let handler = take_all(&pool, &Need::bytes(2048));
    assert_eq!((handler.len(), pool.part_count()), (128, 1));
    assert!(pool.is_growth_wanted());
    let waiter = pool.take(&patient(2048)).unwrap();
    assert_eq!(pool.part_count(), 2);
    assert!(!pool.is_growth_wanted());
    let more = take_all(&pool, &patient(2048));
    assert_eq!((handler.len() + 1 + more.len(), pool.part_count()), (4 * 128, 4));
    let full = pool.take(&patient(2048)).unwrap_err();
    let expected =
        TakeError::Full { wanted: 1, slots: 512, used: 512, longest: 0, area: 6, areas: 8 };
    assert_eq!(full, expected);
    assert_eq!(pool.grow(), Err(GrowError::Complete { parts: 4 }));
    assert!(!pool.is_growth_wanted());
    // No two of them overlap, and each comes back.
    let mut all: Vec<_> = handler.into_iter().chain([waiter]).chain(more).collect();
    all.sort_by_key(|slots| slots.data().start());
    assert!(all.windows(2).all(|two| two[0].data().last() < two[1].data().start()));
    let parts: Vec<_> = pool.parts().collect();
    assert!(all.iter().all(|slots| parts.iter().any(|part| part.covers(slots.data()))));
    all.into_iter().for_each(|slots| pool.give(slots).unwrap());
    assert_eq!(pool.in_use().used, 0);
    // All of its memory is shared with the host, and goes back.
    assert_eq!(rig.hardware.shared.lock().len(), 4);
    drop(pool);
    assert_eq!((rig.frames(), rig.hardware.aliases_freed.load(Ordering::Relaxed)), (0, 4));
}

#[test]
fn a_part_with_a_slot_that_did_not_come_back_stays_allocated() {
    let rig = Rig::new(&Setup::default());
    let pool = pool(&rig, GROWTH);
    let all = take_all(&pool, &Need::bytes(2048));
    let lost = pool.take(&patient(2048)).unwrap();
    all.into_iter().for_each(|slots| pool.give(slots).unwrap());
    let other = self::pool(&rig, GROWTH);
    let lost = other.give(lost).unwrap_err();
    assert!(matches!(lost, GiveError::Foreign { .. }));
    drop(other);
    drop(pool);
    assert_eq!(rig.frames(), 1);
}

#[test]
fn callers_that_may_wait_leave_the_rest_to_those_that_may_not() {
    let rig = Rig::new(&Setup::default());
    let throttle = Some(Throttle { from: 96, until: 64 });
    let pool = pool(&rig, Growth { parts: 1, throttle, ..GROWTH });
    let mut taken = take_all(&pool, &patient(2048));
    // A CPU counts at each 16th take.
    assert!((96..112).contains(&taken.len()), "{}", taken.len());
    let used = taken.len() as u32;
    let throttled = TakeError::Throttled { used, slots: 128, until: 64 };
    assert_eq!(pool.take(&patient(2048)).unwrap_err(), throttled);
    assert!(pool.is_throttled());
    // A handler finds slots.
    taken.push(pool.take(&Need::bytes(2048)).unwrap());
    while taken.len() > 65 {
        pool.give(taken.pop().unwrap()).unwrap();
        assert!(pool.take(&patient(2048)).is_err(), "{}", taken.len());
    }
    pool.give(taken.pop().unwrap()).unwrap();
    assert!(!pool.is_throttled());
    taken.push(pool.take(&patient(2048)).unwrap());
    taken.into_iter().for_each(|slots| pool.give(slots).unwrap());
}

#[test]
fn a_device_writes_into_each_part_and_its_buffer_gets_the_bytes() {
    let rig = Rig::new(&Setup::default());
    let pool = Arc::new(pool(&rig, GROWTH));
    let constraints = Constraints { reach: HostVisibility::Shared, ..Constraints::trusted() };
    let when = CopyWhen::Needed;
    let device = device_of(&rig, 1, constraints).with_copies(Copying { pool: pool.clone(), when });
    let mut mapped = Vec::new();
    for value in 0..250u32 {
        let frames = Frames::new(&rig.cpus, 0x1000);
        device_byte(&rig.cpus, frames.memory.start()).store(value as u8, Ordering::Relaxed);
        let mapping = device.map(frames, FromDevice).ok().unwrap();
        assert!(mapping.is_copied());
        let domain = rig.space.domain.translate(mapping.iova()).unwrap();
        let (first, last) = (domain.pa, PhysAddr::new(domain.pa.get() + 0xfff));
        // The copy has the buffer's bytes, and the device writes others beside them.
        let seen = device_byte(&rig.cpus, first).load(Ordering::Relaxed);
        assert_eq!(seen, value as u8);
        device_byte(&rig.cpus, last).store(!seen, Ordering::Relaxed);
        mapped.push(mapping);
    }
    assert_eq!(pool.part_count(), 4);
    for (value, mapping) in mapped.into_iter().enumerate() {
        let frames = mapping.unmap().ok().unwrap();
        let byte = |at| device_byte(&rig.cpus, at).load(Ordering::Relaxed);
        let (start, last) = (frames.memory.start(), frames.memory.last());
        assert_eq!((byte(start), byte(last)), (value as u8, !(value as u8)));
    }
    assert_eq!(pool.in_use().used, 0);
    // A part that comes later would not stay mapped.
    assert_eq!(device.with_premapped_pool().err(), Some(PremapError::Grows));
}

#[test]
fn a_map_by_a_handler_finds_slots_that_one_by_a_task_is_refused() {
    let rig = Rig::new(&Setup::default());
    let throttle = Some(Throttle { from: 1, until: 0 });
    let pool = Arc::new(pool(&rig, Growth { throttle, ..GROWTH }));
    let constraints = Constraints { reach: HostVisibility::Shared, ..Constraints::trusted() };
    let copying = Copying { pool: pool.clone(), when: CopyWhen::Needed };
    let device = device_of(&rig, 1, constraints).with_copies(copying);
    let frames = || Frames::new(&rig.cpus, 0x1000);
    let one = device.map(frames(), ToDevice).ok().unwrap();
    assert!(pool.is_throttled());
    let refused = device.map(frames(), ToDevice).err().unwrap().error;
    let throttled = TakeError::Throttled { used: 2, slots: 128, until: 0 };
    assert_eq!(refused, MapError::Copy(throttled));
    let handler = device.try_map(frames(), ToDevice).ok().unwrap();
    one.unmap().ok().unwrap();
    handler.unmap().ok().unwrap();
    device.map(frames(), ToDevice).ok().unwrap().unmap().ok().unwrap();
}

#[test]
fn memory_that_the_platform_does_not_have_is_a_typed_error() {
    let rig = Rig::new(&Setup::default());
    let uneven = Growth { part: PART + 0x1000, ..GROWTH };
    let refused = GrowingPool::new(rig.cpus.clone(), uneven).err().unwrap();
    assert!(matches!(refused, GrowError::Part(_)), "{refused}");
    assert_eq!(rig.frames(), 0);
    let shared: Arc<dyn BouncePool> = Arc::new(pool(&rig, GROWTH));
    assert!(shared.memory().is_none());
    assert_eq!(shared.visibility(), HostVisibility::Shared);
}
