//! A device that follows its guest's entries: over forged calls that fail at any time, as words for an SMMUv3, and, on
//! the kernel's own device for tests, with a kernel that fails inside its calls.

mod failing;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan::addr::{InvalTag, Iova, PhysAddr};
use portolan::iommu::IommuError;
use portolan::table::format::{DirtyTracking, VtdFirstLevels, VtdFirstStage as Format};
use portolan_vmm::EndpointId;
use portolan_vmm::emulated::{self, Context, EmulatedUnit, GuestEntry, Hardware, Scope};

use super::*;
use crate::sys::iommufd::selftest;
use crate::vfio::iommufd::{Iommufd, Object};
use crate::vfio::mock::{Mock, mock};
use crate::vfio::nested::tests::{
    MockStage, MockViommu, command, is_gone, kept, request, second_stage,
};
use crate::vfio::nested::{Below, Kept, Table};

const NAME: GuestStream = GuestStream::new(0x99);

/// Place of a forged device, by the value of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Nowhere,
    Memory,
    Tables(u32),
}

/// State of forged calls.
#[derive(Debug)]
struct Forged {
    at: Mutex<At>,
    told: Mutex<Vec<Option<IovaRange>>>,
    fails_in: Mutex<Option<u32>>,
    domain: Arc<UserDomain>,
    iommufd: Arc<Iommufd>,
    made: AtomicU32,
}

impl Forged {
    fn new() -> Arc<Self> {
        let file: OwnedFd = File::open("/dev/null").unwrap().into();
        let reach = crate::domain::Reach {
            ranges: vec![IovaRange::new(Iova::new(0), Iova::new(0xffff)).unwrap()],
            granule: PageSize::SIZE_4K,
        };
        let domain = UserDomain::new(Arc::new(reach), DirtyTracking::Off, None);
        Arc::new(Self {
            at: Mutex::new(At::Nowhere),
            told: Mutex::default(),
            fails_in: Mutex::default(),
            domain: Arc::new(domain),
            iommufd: Iommufd::of(file, Arc::default()),
            made: AtomicU32::new(0),
        })
    }

    fn call(&self) -> Result<(), IommuError> {
        let mut left = self.fails_in.lock().unwrap();
        match left.take() {
            Some(0) => Err(IommuError::Refused { code: 12 }),
            before => {
                *left = before.map(|calls| calls - 1);
                Ok(())
            }
        }
    }

    fn tables<S: FirstStage>(&self, object: Object) -> NestedTables<S> {
        let _below = Below { id: 1, _kept: Kept::Domain { _domain: self.domain.clone() } };
        let table = Table { object, _below, faults: None };
        NestedTables { table: Arc::new(table), stage: std::marker::PhantomData }
    }
}

impl Seat<MockStage> for Arc<Forged> {
    fn tables(&self, _: &MockStage) -> Result<NestedTables<MockStage>, AttachError> {
        self.call()?;
        let id = self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Forged::tables(self, Object { iommufd: self.iommufd.clone(), id }))
    }

    fn enter(&self, place: Place<'_, MockStage>) -> Result<(), AttachError> {
        self.call()?;
        *self.at.lock().unwrap() = match place {
            Place::Nowhere => At::Nowhere,
            Place::Memory => At::Memory,
            Place::Tables(tables) => At::Tables(tables.table().id()),
        };
        Ok(())
    }

    fn forget(
        &self,
        now: &Followed<MockStage>,
        range: Option<IovaRange>,
    ) -> Result<(), InvalidateError> {
        assert_eq!(*self.at.lock().unwrap(), At::Tables(now.tables.table().id()));
        self.call().map_err(|error| InvalidateError { done: 0, error })?;
        self.told.lock().unwrap().push(range);
        Ok(())
    }
}

/// Random numbers below a given one.
pub(super) fn random() -> impl FnMut(u64) -> u64 {
    let seed = std::env::var("PORTOLAN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("PORTOLAN_SEED={seed}");
    let mut state = seed | 1;
    move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

#[test]
fn a_device_whose_calls_fail_at_random_is_where_the_guest_was_told() {
    let mut random = random();
    let forged = Forged::new();
    let device = PassedDevice::<MockStage>::new(Box::new(forged.clone()));
    let (mut there, mut failed) = (At::Nowhere, 0);
    for _ in 0..3000 {
        let fails = (random(3) == 0).then(|| random(3) as u32);
        *forged.fails_in.lock().unwrap() = fails;
        let before = forged.made.load(Ordering::Relaxed);
        let (moved, wanted) = match random(4) {
            0 => (device.block(), At::Nowhere),
            1 => (device.attach_memory(), At::Memory),
            _ => (device.attach_tables(MockStage(0)), At::Tables(before)),
        };
        match moved {
            Ok(()) => there = wanted,
            Err(error) => {
                failed += 1;
                assert_eq!(error, IommuError::Refused { code: 12 }.into());
            }
        }
        assert_eq!(*forged.at.lock().unwrap(), there);
        let tables = device.tables();
        match (there, tables) {
            (At::Tables(there), Some(tables)) => assert_eq!(there, tables),
            (there, tables) => assert!(tables.is_none() && !matches!(there, At::Tables(_))),
        }
        let told = device.invalidate(None).is_ok() && tables.is_some();
        assert_eq!(forged.told.lock().unwrap().drain(..).count(), usize::from(told));
    }
    assert!(failed > 100, "{failed} calls failed");
}

#[test]
fn a_stream_table_entry_is_read_or_refused() {
    let of = |first, second| SmmuFirstStage::of_stream_entry(&[first, second, !0, !0, 0, 0, 0, 0]);
    let all = of(!0b0100, !(3 << 30)).unwrap();
    assert_eq!(all.entry, [0xf80f_ffff_ffff_fffb, 0x3800_00ff], "what Linux takes, and no more");
    assert!(!all.has_device_tlb() && all.has_substreams(), "EATS is 3");
    // Not valid, abort, bypass, second stage, both, and EL2's.
    for (first, second) in [(0xa, 0), (1, 0), (9, 0), (0xd, 0), (0xf, 0), (0xb, 2 << 30)] {
        assert_eq!(of(first, second), None, "{first:#x} {second:#x}");
    }
    assert_eq!(of(0xb, 1 << 28).map(SmmuFirstStage::has_device_tlb), Some(true));
    assert_eq!(SmmuFirstStage::of_stream_entry(&[0xb; 2]), None);
}

#[test]
fn invalidations_are_an_smmus_commands() {
    let plain = SmmuFirstStage { entry: [0xb, 0] };
    let tlb = SmmuFirstStage { entry: [0xb, 1 << 28] };
    let both = SmmuFirstStage { entry: [1 << 59 | 0xb, 1 << 28] };
    let range = |first, last| Some(IovaRange::new(Iova::new(first), Iova::new(last)).unwrap());
    let of = |stage, range| commands(stage, NAME, range);
    assert_eq!(of(plain, None), [[0x10, 0]]);
    assert_eq!(of(plain, range(0x5000, 0x6fff)), [[0x13, 0x5000], [0x13, 0x6000]]);
    assert_eq!(of(plain, range(0x5000, 0x44fff)).len(), 64);
    assert_eq!(of(plain, range(0x5000, 0x45fff)), [[0x10, 0]], "too many for one each");
    let device = NAME.get() << 32 | 0x40;
    assert_eq!(of(tlb, None), [[0x10, 0], [device, 52]]);
    assert_eq!(of(tlb, range(0x5000, 0x5fff)), [[0x13, 0x5000], [device, 0x5000]]);
    // The aligned four pages around these two.
    let [.., last] = of(tlb, range(0x5000, 0x6fff))[..] else { panic!("no command") };
    assert_eq!(last, [device, 0x4002]);
    let [.., last] = of(tlb, range(0, u64::MAX))[..] else { panic!("no command") };
    assert_eq!(last, [device, 52]);
    let substreams = device | 1 << 11 | 1 << 9;
    assert_eq!(of(both, None), [[0x10, 0], [device, 52], [substreams, 52]]);
    assert_eq!(vtd(None), VtdInvalidation::All);
    let pages =
        VtdInvalidation::Pages { start: Iova::new(0x5000), count: 2, depth: Depth::AllLevels };
    assert_eq!(vtd(range(0x5000, 0x6fff)), pages);
}

/// The test device: directly above its guest's memory, or behind a virtual IOMMU.
#[derive(Debug)]
struct OnMock {
    mock: Mock,
    memory: Arc<UserDomain>,
    viommu: Option<(VirtualIommu<MockViommu>, VirtualDevice)>,
}

impl Seat<MockStage> for Arc<OnMock> {
    fn tables(&self, stage: &MockStage) -> Result<NestedTables<MockStage>, AttachError> {
        let none = NestedOptions::default();
        match &self.viommu {
            Some((viommu, _)) => viommu.tables(self.mock.id, stage, none),
            None => NestedTables::above(&self.mock.site(), &self.memory, stage, none),
        }
    }

    fn enter(&self, place: Place<'_, MockStage>) -> Result<(), AttachError> {
        let id = match place {
            Place::Nowhere => self.mock.home.id(),
            Place::Memory => self.memory.placed()?.tables(self.mock.id)?,
            Place::Tables(tables) => tables.table().id(),
        };
        let moved = selftest::replace(self.mock.iommufd.descriptor(), self.mock.device, id);
        Ok(moved.map_err(|error| crate::calls::refused(&error))?)
    }

    fn forget(
        &self,
        now: &Followed<MockStage>,
        range: Option<IovaRange>,
    ) -> Result<(), InvalidateError> {
        let entry = range.map(|range| (range.start().get() >> 12) as u32);
        match (&self.viommu, entry) {
            (None, entry) => now.tables.requests(&[request(entry)]),
            (Some((viommu, _)), Some(entry)) => viommu.requests(&[command(NAME, entry)]),
            (Some((viommu, _)), None) => {
                let all: Vec<_> =
                    (0..selftest::ENTRIES).map(|entry| command(NAME, entry)).collect();
                viommu.requests(&all)
            }
        }
    }
}

/// Hardware of an emulated unit's. An entry of one word is the test device's.
#[derive(Debug)]
struct Passed(PassedDevice<MockStage>);

impl Hardware for Passed {
    fn attach(&self, entry: GuestEntry<'_>) -> io::Result<()> {
        let attached = match entry {
            GuestEntry::Blocked => self.0.block(),
            GuestEntry::Tables(&[word]) => self.0.attach_tables(MockStage(word as u32)),
            GuestEntry::Tables(_) => return Err(io::ErrorKind::InvalidData.into()),
            _ => self.0.attach_memory(),
        };
        attached.map_err(io::Error::other)
    }

    fn invalidate(&self, range: Option<IovaRange>) -> io::Result<()> {
        self.0.invalidate(range).map_err(io::Error::other)
    }
}

const ENDPOINT: EndpointId = EndpointId::new(8);

fn context(root: u64, entry: &[u64]) -> Context {
    let (levels, dirty) = (VtdFirstLevels::Four, DirtyTracking::Off);
    let format = Format { levels, output_lg2: 46, dirty };
    let tables = Context::tables(format, PhysAddr::new(root), InvalTag::new(7));
    tables.unwrap().with_entry(entry)
}

fn unit(passed: &Arc<Passed>) -> EmulatedUnit {
    let unit = EmulatedUnit::reading(|_| None, Default::default());
    unit.add(ENDPOINT).unwrap();
    unit.pass_through(ENDPOINT, passed.clone()).unwrap();
    unit
}

fn page(number: u64) -> IovaRange {
    IovaRange::page(Iova::new(number << 12), PageSize::SIZE_4K)
}

const TAG: Scope = Scope::Tag(InvalTag::new(7));

#[test]
fn kernel_has_the_tables_of_a_guests_emulated_unit() {
    let Some(mock) = mock("kernel_has_the_tables_of_a_guests_emulated_unit") else {
        return;
    };
    let memory = mock.domain(second_stage());
    let on = Arc::new(OnMock { mock, memory, viommu: None });
    let passed = Arc::new(Passed(PassedDevice::new(Box::new(on.clone()))));
    let (fd, unit) = (on.mock.iommufd.descriptor(), unit(&passed));
    let tables = || passed.0.tables();

    unit.attach(ENDPOINT, Context::pass_through()).unwrap();
    unit.attach(ENDPOINT, context(0x1000, &[0x77])).unwrap();
    let first = tables().unwrap();
    let left = |id, value| kept(|entry, value| selftest::has_cached(fd, id, entry, value), value);
    assert_eq!(left(first, 0x77), [true; 4]);
    unit.invalidate(TAG, Some(page(2))).unwrap();
    assert_eq!(left(first, 0x77), [true, true, false, true]);
    unit.invalidate(Scope::Tag(InvalTag::new(8)), None).unwrap();
    assert_eq!(left(first, 0x77), [true, true, false, true], "of other tables");

    // What the kernel refuses has not happened.
    let kind = io::ErrorKind::Other;
    let refused = Err(emulated::InvalidateError::Hardware { endpoint: ENDPOINT, kind });
    assert_eq!(unit.invalidate(TAG, Some(page(9))), refused);
    let kind = io::ErrorKind::InvalidData;
    let refused = Err(emulated::AttachError::Hardware { endpoint: ENDPOINT, kind });
    assert_eq!(unit.attach(ENDPOINT, context(0x1000, &[1, 2])), refused);
    assert_eq!(tables(), Some(first));
    assert_eq!(left(first, 0x77), [true, true, false, true]);

    unit.attach(ENDPOINT, context(0x2000, &[0x99])).unwrap();
    let second = tables().unwrap();
    assert!(is_gone(&on.mock, first), "the former tables");
    assert_eq!(left(second, 0x99), [true; 4]);
    unit.invalidate(Scope::All, None).unwrap();
    assert_eq!(left(second, 0x99), [false; 4]);
    unit.remove(ENDPOINT).unwrap();
    assert!(tables().is_none() && is_gone(&on.mock, second));
}

#[test]
fn kernel_carries_out_an_emulated_units_invalidations_behind_a_virtual_iommu() {
    let name = "kernel_carries_out_an_emulated_units_invalidations_behind_a_virtual_iommu";
    let Some(mock) = mock(name) else {
        return;
    };
    let memory = mock.domain(second_stage());
    let viommu = VirtualIommu::<MockViommu>::above(&mock.site(), &memory).unwrap();
    let device = viommu.device(mock.id, NAME).unwrap();
    let on = Arc::new(OnMock { mock, memory, viommu: Some((viommu, device)) });
    let passed = Arc::new(Passed(PassedDevice::new(Box::new(on.clone()))));
    let (fd, unit) = (on.mock.iommufd.descriptor(), unit(&passed));
    let left = || {
        let has = |entry, value| selftest::device_has_cached(fd, on.mock.id, entry, value);
        kept(has, selftest::DEVICE_CACHED)
    };
    unit.invalidate(Scope::All, None).unwrap();
    assert_eq!(left(), [true; 4], "there are no tables");
    unit.attach(ENDPOINT, context(0x1000, &[0x77])).unwrap();
    unit.invalidate(TAG, Some(page(1))).unwrap();
    assert_eq!(left(), [true, false, true, true]);
    assert!(unit.invalidate(TAG, Some(page(9))).is_err());
    unit.invalidate(TAG, None).unwrap();
    assert_eq!(left(), [false; 4]);
    let tables = passed.0.tables().unwrap();
    unit.remove(ENDPOINT).unwrap();
    assert!(is_gone(&on.mock, tables));
}

/// Calls `act` with a kernel that fails at the first place where it can, then at the second, and so on, until it
/// succeeds; returns the number of failures. `after` looks at what each has left.
fn at_each<T, E>(act: impl Fn() -> Result<T, E>, after: impl Fn()) -> u32 {
    const PLACE: &str = "/proc/thread-self/fail-nth";
    for nth in 1.. {
        std::fs::write(PLACE, nth.to_string()).unwrap();
        let done = act();
        let left: u32 = std::fs::read_to_string(PLACE).unwrap().trim().parse().unwrap();
        std::fs::write(PLACE, "0").unwrap();
        if left != 0 {
            assert!(done.is_ok(), "there was nothing left to fail");
            return nth - 1;
        }
        if done.is_err() {
            after();
        }
    }
    0
}

#[test]
fn kernel_that_fails_at_each_place_leaves_a_device_where_it_was() {
    let Some(mock) = mock("kernel_that_fails_at_each_place_leaves_a_device_where_it_was") else {
        return;
    };
    let memory = mock.domain(second_stage());
    let on = Arc::new(OnMock { mock, memory, viommu: None });
    let passed = Arc::new(Passed(PassedDevice::new(Box::new(on.clone()))));
    let (fd, unit) = (on.mock.iommufd.descriptor(), unit(&passed));
    unit.attach(ENDPOINT, context(0x1000, &[0x77])).unwrap();
    let first = passed.0.tables().unwrap();
    let here = || {
        assert_eq!(passed.0.tables(), Some(first));
        assert!(selftest::has_cached(fd, first, 1, 0x77));
    };
    let failed = at_each(|| unit.attach(ENDPOINT, context(0x2000, &[0x99])), here);
    println!("the kernel failed at {failed} places, and the device was where it was");
    assert!(failed > 0 && is_gone(&on.mock, first));
    let second = passed.0.tables().unwrap();
    assert!(selftest::has_cached(fd, second, 1, 0x99));
    unit.remove(ENDPOINT).unwrap();
    assert!(is_gone(&on.mock, second));
}
