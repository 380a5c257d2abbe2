//! Random calls with hostile arguments, on hardware that fails: nothing panics, nothing is lost.

extern crate std;

use crate::platform::promised::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::{Pages, registers, unowned};
use super::rig::{BUSY, Cpus, Rig, Setup, range};
use crate::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, PhysRange, StreamId};
use crate::dma::{
    Coherency, Coherent, Constraints, Deferred, Device, Direction, DmaRange, LazyBounds, Mapping,
    NotMapped, NotUnmapped, OldMappings, Policy, Reservation, Trust, Unowned,
};
use crate::inval::Caching;
use crate::iommu::Shadowing;
use crate::platform::Nanos;
use crate::table::Access;
use crate::table::format::DirtyTracking;

const SEQUENCES: u64 = 2000;
const STEPS: usize = 48;
/// The addresses of each space.
const FIRST: u64 = 0x10_0000;
const PAGES: u64 = 64;

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Mostly small, sometimes at an end of 64 bits.
    fn number(&mut self) -> u64 {
        let low = self.next();
        match self.below(8) {
            0 => low,
            1 => u64::MAX - low % 3,
            2 => low % 3,
            _ => low % 0x8000,
        }
    }

    fn memory(&mut self) -> (u64, u64) {
        let start = match self.below(12) {
            0 => self.number(),
            _ => (self.next() % 0x1000) << 12 | self.of(&[0, 0, 0x800, 0xfff]),
        };
        let bytes = match self.below(12) {
            0 => self.number().max(1),
            _ => self.of(&[1, 0x800, 0x1000, 0x1000, 0x2000, 0x5000]),
        };
        (start, bytes.min(u64::MAX - start).max(1))
    }

    fn piece(&mut self) -> PhysRange {
        let (start, bytes) = self.memory();
        PhysRange::from_len(PhysAddr::new(start), bytes).unwrap()
    }

    fn iova(&mut self) -> Iova {
        let inside = FIRST + self.next() % (PAGES << 12);
        Iova::new(if self.below(8) == 0 { self.number() } else { inside })
    }

    fn size(&mut self) -> PageSize {
        let lg2 = self.of(&[0, 9, 12, 12, 13, 14, 16, 21, 40, 63]);
        PageSize::of_lg2(lg2)
    }

    fn constraints(&mut self) -> Constraints {
        let plain = Constraints::trusted();
        if self.below(3) == 0 {
            return plain;
        }
        Constraints {
            dma_mask: self.of(&[plain.dma_mask, Iova::new(FIRST + 0xffff), Iova::new(0)]),
            max_segment: NonZeroU64::new(self.of(&[1, 0xfff, 0x3000, u64::MAX])).unwrap(),
            seg_boundary: Some(self.size()).filter(|_| self.below(2) == 0),
            align: if self.below(4) == 0 { self.size() } else { plain.align },
            min_align_mask: if self.below(2) == 0 { self.size() } else { plain.align },
            coherency: self.of(&[Coherency::Coherent, Coherency::NotCoherent]),
            trust: self.of(&[Trust::Trusted, Trust::Trusted, Trust::Untrusted]),
            ..plain
        }
    }

    fn direction(&mut self) -> Direction {
        use Direction::{Bidirectional, FromDevice, ToDevice};
        self.of(&[ToDevice, FromDevice, Bidirectional])
    }

    fn take<T>(&mut self, list: &mut Vec<T>) -> Option<T> {
        match list.len() {
            0 => None,
            count => Some(list.swap_remove(self.below(count))),
        }
    }
}

/// Objects that a driver holds.
struct Driver {
    random: Random,
    rig: Rig,
    other: Rig,
    devices: Vec<Device<Cpus>>,
    mappings: Vec<Mapping<Cpus, Pages>>,
    deferred: Vec<Deferred<Cpus, Pages>>,
    rings: Vec<Coherent<Cpus>>,
    reservations: Vec<Reservation<Cpus>>,
    ranges: Vec<DmaRange>,
    alive: Arc<AtomicUsize>,
    /// Buffers that were given up.
    leaked: usize,
    /// Set if addresses were given up beside those that the spaces count.
    kept: bool,
}

impl Driver {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let setup = Setup {
            policy: random.of(&[Policy::Strict, Policy::Deferred, Policy::Lazy]),
            bounds: LazyBounds {
                entries: random.of(&[0, 1, 4, 256]),
                bytes: random.of(&[0, 0x4000, 64 << 20]),
                age: Nanos::from_millis(10),
            },
            table_pages: random.of(&[4, 6, 64]),
            window: range(FIRST, FIRST + (PAGES << 12) - 1),
            caching: random.of(&[Caching::PresentOnly, Caching::NotPresentToo]),
            shadowing: Shadowing::None,
            trust: random.of(&[None, Some(Trust::Trusted), Some(Trust::Untrusted)]),
            dropped_buffers: 0,
            keep_tables: random.of(&[0, 2, 256]),
            dirty: DirtyTracking::Off,
        };
        let rig = Rig::new(&setup);
        Self {
            other: rig.beside(),
            random,
            rig,
            devices: Vec::new(),
            mappings: Vec::new(),
            deferred: Vec::new(),
            rings: Vec::new(),
            reservations: Vec::new(),
            ranges: Vec::new(),
            alive: Arc::default(),
            leaked: 0,
            kept: false,
        }
    }

    fn open(&mut self) {
        let (space, cpus) = (self.rig.space.clone(), self.rig.cpus.clone());
        let unit = self.rig.hardware.clone();
        let stream = StreamId::new(self.random.below(4) as u32);
        let pasid = Pasid::new(self.random.below(3) as u32);
        let limits = self.random.constraints();
        let device = match self.random.below(6) {
            0 => Device::identity(cpus, unit, stream, limits, all_memory()),
            1 => Device::blocked(cpus, unit, stream, limits),
            2 => Device::translated_pasid(space, stream, pasid, limits),
            _ => Device::translated(space, stream, limits),
        };
        self.devices.extend(device);
    }

    fn map(&mut self) {
        let pieces: Vec<_> = (0..self.random.below(5)).map(|_| self.random.memory()).collect();
        let direction = self.random.direction();
        let (page, way) = (self.random.iova(), self.random.below(3));
        let which = self.random.below(self.devices.len().max(1));
        let Some(device) = self.devices.get(which) else {
            return;
        };
        let buffer = Pages::new(&self.alive, &pieces);
        let mapped = match way {
            0 => device.map(buffer, direction),
            1 => device.map_at(buffer, direction, page),
            _ => device.try_map(buffer, direction),
        };
        match mapped.map_err(|failed| failed.value) {
            Ok(mapping) => {
                if let (Some(space), false) = (device.space(), mapping.is_copied()) {
                    let found = space.domain.translate(mapping.iova()).unwrap();
                    assert_eq!(found.pa.get(), pieces[0].0);
                }
                assert_eq!(mapping.offset_of(mapping.iova()), Some(0));
                self.mappings.push(mapping);
            }
            Err(NotMapped::Deferred(deferred)) => self.deferred.push(deferred),
            Err(NotMapped::Buffer(_)) => {}
        }
    }

    fn end(&mut self) {
        let Some(mut mapping) = self.random.take(&mut self.mappings) else {
            return;
        };
        let (at, bytes) = (self.random.number(), self.random.number());
        let _ = mapping.sync_part_for_cpu(at, bytes);
        let _ = mapping.sync_part_for_device(at, bytes);
        let _ = mapping.read(at, &mut [0; 3]);
        let _ = mapping.write(at, &[0; 3]);
        let _ = mapping.offset_of(Iova::new(at));
        match self.random.below(8) {
            0 => {
                self.leaked += 1;
                self.kept = true;
                drop(mapping);
            }
            1..4 => match mapping.unmap().map_err(|failed| failed.value) {
                Ok(_) => {}
                Err(NotUnmapped::Mapped(mapping)) => self.mappings.push(mapping),
                Err(NotUnmapped::Deferred(deferred)) => self.deferred.push(deferred),
            },
            _ => match mapping.defer() {
                Ok(deferred) => self.deferred.push(deferred),
                Err(failed) => self.mappings.push(failed.value),
            },
        }
    }

    fn reclaim(&mut self) {
        let Some(deferred) = self.random.take(&mut self.deferred) else {
            return;
        };
        match self.random.below(8) {
            0 => self.leaked += usize::from(!deferred.is_quiet()),
            1..4 => match deferred.try_reclaim() {
                Ok(_) => {}
                Err(deferred) => self.deferred.push(deferred),
            },
            _ => match deferred.reclaim() {
                Ok(_) => {}
                Err(failed) => self.deferred.push(failed.value),
            },
        }
    }

    fn unowned(&mut self) -> Unowned {
        let piece = self.random.piece();
        match self.random.below(4) {
            0 => registers(piece),
            _ => unowned(piece),
        }
    }

    fn reserve(&mut self) {
        let (space, limits) = (self.rig.space.clone(), self.random.constraints());
        let bytes = self.random.number();
        let made = match (self.random.below(2), IovaRange::from_len(self.random.iova(), bytes)) {
            (0, Some(range)) => Reservation::at(space, range, &limits),
            _ => Reservation::new(space, bytes, &limits),
        };
        self.reservations.extend(made);
    }

    fn link(&mut self) {
        let memory = self.unowned();
        let Some(mut reservation) = self.random.take(&mut self.reservations) else {
            return;
        };
        let _ = reservation.link(memory, self.random.direction());
        let _ = reservation.sync();
        match self.random.below(8) {
            // The linked piece stays mapped.
            0 => self.kept = true,
            1..5 => {
                let left = reservation.unlink().err().map(|failed| failed.value);
                self.reservations.extend(left);
            }
            _ => self.reservations.push(reservation),
        }
    }

    fn range(&mut self) {
        let (memory, limits) = (self.unowned(), self.random.constraints());
        let access = self.random.of(&[Access::READ, Access::WRITE, Access::all()]);
        if let Ok((range, _)) = self.rig.space.map_range(memory, access, &limits) {
            self.ranges.push(range);
        }
        if let Some(range) = self.random.take(&mut self.ranges) {
            let space = self.random.of(&[&self.rig, &self.rig, &self.other]);
            let left = space.space.unmap_range(range).err();
            self.ranges.extend(left.and_then(|failed| failed.value));
        }
    }

    fn ring(&mut self) {
        let bytes = self.random.of(&[0, 1, 0x1000, 0x5001]);
        let which = self.random.below(self.devices.len().max(1));
        let made = self.devices.get(which).map(|device| device.coherent(bytes));
        self.rings.extend(made.into_iter().flatten());
        if self.random.below(2) == 0 {
            drop(self.random.take(&mut self.rings));
        }
    }

    fn part(&mut self) {
        let Some(device) = self.random.take(&mut self.devices) else {
            return;
        };
        let to = self.random.of(&[&self.rig, &self.other]).space.clone();
        let old = self.random.of(&[OldMappings::Keep, OldMappings::Refuse]);
        match self.random.below(4) {
            0 => drop(device),
            1 => {
                let _ = device.detach();
            }
            2 => {
                let _ = device.attach_again();
                self.devices.push(device);
            }
            _ => match device.move_to(to, old) {
                Ok(device) => self.devices.push(device),
                Err(failed) => self.devices.push(failed.value),
            },
        }
    }

    fn step(&mut self) {
        let space = self.rig.space.clone();
        match self.random.below(16) {
            0 => self.open(),
            1..5 => self.map(),
            5..7 => self.end(),
            7 => self.reclaim(),
            8 => self.reserve(),
            9 => self.link(),
            10 => self.range(),
            11 => self.ring(),
            12 => self.part(),
            13 => {
                let broken = self.random.of(&[0, 0, 0, 1, BUSY]);
                self.rig.set_broken(broken);
            }
            14 => {
                let _ = match self.random.below(3) {
                    0 => space.tick(),
                    1 => space.flush(),
                    _ => space.recover(),
                };
                self.rig.pass(self.random.next() % 20_000_000);
            }
            _ => {
                let _ = space.find(self.random.iova());
                let _ = space.next_fault();
            }
        }
    }

    /// Ends everything on hardware that works, and counts the rest.
    fn finish(mut self) {
        let spaces = [self.rig.space.clone(), self.other.space.clone()];
        self.rig.set_broken(0);
        let heal = || spaces.each_ref().map(|space| space.recover().unwrap());
        heal();
        for mapping in self.mappings.drain(..) {
            let Ok(deferred) = mapping.defer() else {
                panic!("a mapping that was not unmapped");
            };
            self.deferred.push(deferred);
        }
        heal();
        for deferred in self.deferred.drain(..) {
            // A buffer that could not be unmapped is kept for good.
            self.leaked += usize::from(deferred.reclaim().is_err());
        }
        for reservation in self.reservations.drain(..) {
            reservation.unlink().ok().unwrap();
        }
        for range in self.ranges.drain(..) {
            let there = spaces.iter().try_fold(range, |range, space| {
                let left = space.unmap_range(range).err();
                left.and_then(|failed| failed.value).ok_or(())
            });
            assert!(there.is_err());
        }
        self.rings.clear();
        self.devices.clear();
        heal();
        assert_eq!(self.alive.load(Ordering::Relaxed), self.leaked);
        for space in &spaces {
            let lost = space.quarantine();
            if lost.dropped + lost.addresses == 0 && !self.kept {
                space.trim_addresses();
                let free = space.address_stats().free;
                let window = space.iova.window();
                assert_eq!(free, window.pages(PageSize::SIZE_4K));
                assert_eq!(space.waiting(), (0, 0));
            }
        }
    }
}

#[test]
fn random_calls_panic_nowhere_and_lose_nothing() {
    for seed in 0..SEQUENCES {
        std::println!("seed {seed}");
        let mut driver = Driver::new(seed);
        (0..STEPS).for_each(|_| driver.step());
        driver.finish();
    }
}
