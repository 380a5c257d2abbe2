//! Mappings and deferred buffers that are dropped, in a space that has room for them.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::{Pages, unowned};
use super::rig::{BUSY, Cpus, Rig, Setup, TIMED_OUT, device_of, range};
use crate::addr::{PhysAddr, PhysRange};
use crate::bounce::{PoolMemory, PoolOptions};
use crate::dma::{
    Buffer, Constraints, CopyWhen, Copying, Device, Direction, LazyBounds, MapError, MapFailed,
    Mapping, Pieces, Policy, Quarantine, UnmapError,
};

const ROOM: usize = 4;

struct Scene {
    rig: Rig,
    device: Device<Cpus>,
    alive: Arc<AtomicUsize>,
}

impl Scene {
    fn new(policy: Policy) -> Self {
        let rig = Rig::new(&Setup { policy, dropped_buffers: ROOM, ..Setup::default() });
        Self { device: device_of(&rig, 7, Constraints::trusted()), rig, alive: Arc::default() }
    }

    fn map(&self, page: u64) -> Mapping<Cpus, Pages> {
        let buffer = Pages::new(&self.alive, &[(page << 12, 0x1000)]);
        self.device.map(buffer, Direction::ToDevice).unwrap()
    }

    fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    /// Nothing waits, and nothing was lost.
    fn is_clean(&self) {
        assert_eq!((self.alive(), self.rig.space.dropped_buffers()), (0, 0));
        assert_eq!(self.rig.space.quarantine(), Quarantine::default());
        assert_eq!(self.rig.space.reserve(range(0x10_0000, 0xffff_ffff)), Ok(()));
    }
}

#[test]
fn a_dropped_mapping_is_unmapped_and_its_buffer_dropped_once_no_device_reaches_it() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let scene = Scene::new(policy);
        let mapping = scene.map(1);
        let iova = mapping.iova();
        drop(mapping);
        assert_eq!(scene.rig.space.domain.translate(iova), None);
        assert_eq!((scene.alive(), scene.rig.space.dropped_buffers()), (1, 1), "{policy:?}");
        scene.rig.space.flush().unwrap();
        scene.is_clean();
    }
}

#[test]
fn a_tick_drops_what_has_waited_long_enough() {
    let scene = Scene::new(Policy::Strict);
    drop(scene.map(1));
    scene.rig.space.tick().unwrap();
    assert_eq!(scene.alive(), 1);
    scene.rig.pass(LazyBounds::default().age.get());
    assert!(scene.rig.space.is_flush_due());
    scene.rig.space.tick().unwrap();
    scene.is_clean();
}

#[test]
fn a_question_mark_between_map_and_unmap_loses_nothing() {
    fn cut_short(scene: &Scene) -> Result<(), UnmapError> {
        let _mapping = scene.map(1);
        let deferred = scene.map(2).defer().map_err(|failed| failed.error)?;
        Err(UnmapError::StillMapped)?;
        drop(deferred);
        Ok(())
    }
    let scene = Scene::new(Policy::Deferred);
    assert_eq!(cut_short(&scene), Err(UnmapError::StillMapped));
    assert_eq!(scene.alive(), 2);
    scene.rig.space.flush().unwrap();
    scene.is_clean();
}

/// An error of a driver's own.
#[derive(Debug)]
enum DriverError {
    Map(MapFailed<Cpus, Pages>),
}

impl From<MapFailed<Cpus, Pages>> for DriverError {
    fn from(failed: MapFailed<Cpus, Pages>) -> Self {
        Self::Map(failed)
    }
}

#[test]
fn an_error_of_a_driver_s_own_keeps_the_buffer() {
    fn sent(scene: &Scene, buffer: Pages) -> Result<(), DriverError> {
        let _mapping = scene.device.map(buffer, Direction::ToDevice)?;
        Ok(())
    }
    let scene = Scene::new(Policy::Strict);
    let empty = Pages::new(&scene.alive, &[]);
    let DriverError::Map(failed) = sent(&scene, empty).unwrap_err();
    assert_eq!((failed.error, scene.alive()), (MapError::Empty, 1));
    assert!(failed.value.into_buffer().is_ok());
    scene.is_clean();
}

#[test]
fn hardware_that_fails_keeps_a_dropped_buffer_until_it_recovers() {
    let scene = Scene::new(Policy::Strict);
    let mapping = scene.map(1);
    scene.rig.set_broken(1);
    // The rest of a failed unmap is dropped with its error.
    assert_eq!(
        mapping.unmap().err().map(|failed| failed.error),
        Some(UnmapError::Iommu(TIMED_OUT))
    );
    assert_eq!((scene.alive(), scene.rig.space.dropped_buffers()), (1, 1));
    assert!(scene.rig.space.tick().is_err() || scene.alive() == 1);
    assert_eq!(scene.alive(), 1);
    scene.rig.set_broken(0);
    scene.rig.space.recover().unwrap();
    scene.is_clean();
}

#[test]
fn a_map_that_failed_in_the_hardware_is_dropped_later() {
    let setup = Setup {
        caching: crate::inval::Caching::NotPresentToo,
        dropped_buffers: ROOM,
        ..Setup::default()
    };
    let rig = Rig::new(&setup);
    let scene =
        Scene { device: device_of(&rig, 7, Constraints::trusted()), rig, alive: Arc::default() };
    scene.rig.set_broken(BUSY);
    let buffer = Pages::new(&scene.alive, &[(0x5000, 0x1000)]);
    let failed = scene.device.map(buffer, Direction::ToDevice).unwrap_err();
    assert!(matches!(failed.error, MapError::Busy { .. }));
    drop(failed);
    assert_eq!(scene.alive(), 1);
    scene.rig.set_broken(0);
    scene.rig.space.flush().unwrap();
    scene.is_clean();
}

#[test]
fn another_cpu_and_a_handler_drop_in_the_middle_of_a_flush() {
    for cpu in [0, 1] {
        let scene = Scene::new(Policy::Deferred);
        let (one, two, three) = (scene.map(1), scene.map(2), scene.map(3).defer().unwrap());
        let hardware = scene.rig.hardware.clone();
        scene.rig.hardware.during_sync.set(move || {
            hardware.cpu.store(cpu, Ordering::Relaxed);
            drop((two, three));
            hardware.cpu.store(0, Ordering::Relaxed);
        });
        assert!(one.unmap().is_ok());
        // The second was unmapped after the flush had begun, so that it does not cover it.
        assert!(scene.alive() >= 1, "CPU {cpu}");
        scene.rig.space.flush().unwrap();
        scene.is_clean();
    }
}

#[test]
fn room_that_is_used_up_is_counted_and_made_again_by_a_tick() {
    let scene = Scene::new(Policy::Deferred);
    for page in 0..ROOM as u64 + 1 {
        drop(scene.map(page));
    }
    let lost = scene.rig.space.quarantine();
    assert_eq!((lost.dropped, scene.rig.space.dropped_buffers()), (1, ROOM));
    assert!(scene.rig.hardware.flushes_wanted.load(Ordering::Relaxed) > 0);
    scene.rig.space.tick().unwrap();
    for page in 0..ROOM as u64 {
        drop(scene.map(page));
    }
    assert_eq!(scene.rig.space.dropped_buffers(), 2 * ROOM);
    scene.rig.space.flush().unwrap();
    assert_eq!((scene.alive(), scene.rig.space.quarantine().dropped), (1, 1));
}

#[test]
fn addresses_that_a_queue_has_no_room_for_go_back_with_their_buffer() {
    let bounds = LazyBounds { entries: 1, ..LazyBounds::default() };
    let setup = Setup { policy: Policy::Deferred, bounds, dropped_buffers: 8, ..Setup::default() };
    let rig = Rig::new(&setup);
    let device = device_of(&rig, 7, Constraints::trusted());
    let scene = Scene { device, rig, alive: Arc::default() };
    (0..6).for_each(|page| drop(scene.map(page)));
    assert_eq!((scene.rig.space.waiting().0, scene.alive()), (2, 6));
    scene.rig.space.flush().unwrap();
    scene.is_clean();
}

/// A buffer that no record has room for.
struct Long([u64; 64]);

#[allow(unsafe_code)]
// SAFETY: the address is a name: no memory of the test is behind it.
unsafe impl Buffer for Long {
    fn pieces(&self) -> Pieces<'_> {
        let at = PhysAddr::new(self.0[0]);
        Pieces::One(PhysRange::from_len(at, 0x1000).unwrap())
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

#[test]
fn a_value_that_is_too_long_for_a_record_is_counted() {
    let scene = Scene::new(Policy::Strict);
    drop(scene.device.map(Long([0x5000; 64]), Direction::ToDevice).unwrap());
    assert_eq!(scene.rig.space.quarantine().dropped, 1);
    scene.rig.space.flush().unwrap();
    assert_eq!(scene.rig.space.dropped_buffers(), 0);
}

#[test]
fn slots_of_a_dropped_copy_go_back_with_its_buffer() {
    let scene = Scene::new(Policy::Strict);
    let frames = super::machine::Frames::new(&scene.rig.cpus, 0x4_0000);
    let (cpus, options) = (scene.rig.cpus.clone(), PoolOptions::of_areas(1));
    let pool = Arc::new(PoolMemory::of(cpus, unowned(frames.memory), options).unwrap());
    let copying = Copying { pool: pool.clone(), when: CopyWhen::Always };
    let device = device_of(&scene.rig, 8, Constraints::trusted()).with_copies(copying);
    let buffer = super::machine::Frames::new(&scene.rig.cpus, 0x1000);
    drop(device.map(buffer, Direction::Bidirectional).unwrap());
    assert!(pool.pool().in_use().used > 0);
    scene.rig.space.flush().unwrap();
    assert_eq!(pool.pool().in_use().used, 0);
    // The buffer's memory as well.
    assert_eq!(scene.rig.frames(), 1);
    scene.is_clean();
}

#[test]
fn a_space_that_ends_drops_what_waits_in_it() {
    let Scene { rig, device, alive } = Scene::new(Policy::Strict);
    let buffer = Pages::new(&alive, &[(0x5000, 0x1000)]);
    drop(device.map(buffer, Direction::ToDevice).unwrap());
    drop(device);
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    drop(rig.space);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}
