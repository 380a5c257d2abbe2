//! The calls of a guest's emulated SMMUv3 in any order, to a kernel that fails inside of them: a call that fails leaves
//! no object, no descriptor and no mapping behind, and all others as they were.
//!
//! The kernel's own device for tests stands for the SMMU: its tables are made of the guest's entry, and its device
//! forgets what the commands to the SMMU name.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use portolan::addr::{Iova, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::Domain as _;
use portolan::table::Access;

use super::super::*;
use super::random;
use crate::chain::InfoError;
use crate::memory::Pages;
use crate::promised::promised;
use crate::sys::iommufd::{destroy, new_hwpt, new_ioas, selftest};
use crate::vfio::mock::{Mock, mock};
use crate::vfio::nested::kinds::sealed::{self, Stage};
use crate::vfio::nested::kinds::{CmdqvErrors, EventKind, QueueKind};
use crate::vfio::nested::tests::{MockStage, MockViommu, command, second_stage};
use crate::vfio::nested::{CommandQueue, EventQueue};

const NAME: GuestStream = GuestStream::new(0x99);
/// Calls of a run.
const CALLS: u32 = 3000;
/// Places at which a call may fail: more than any has.
const PLACES: u64 = 5;
/// Numbers of objects that are looked at.
const NUMBERS: u32 = 64;
const PAGE: u64 = 4096;

/// An SMMUv3's first stage, as tables of the test device.
#[derive(Clone, Copy, Debug)]
struct SmmuStage(SmmuFirstStage);

impl Stage for SmmuStage {
    const KIND: u32 = <MockStage as Stage>::KIND;

    fn words(&self) -> Vec<u64> {
        let [first, second] = self.0.entry;
        MockStage((first ^ second) as u32 | 1).words()
    }
}

impl FirstStage for SmmuStage {}

/// The virtual IOMMU of the test device, for such stages.
#[derive(Clone, Copy, Debug)]
struct MockSmmu;

impl sealed::Virtual for MockSmmu {
    const KIND: u32 = MockViommu::KIND;
    const INVALIDATION: u32 = MockViommu::INVALIDATION;
    const DATA: &'static [u64] = MockViommu::DATA;
}

impl sealed::Events for MockSmmu {
    const EVENTS: u32 = <MockViommu as sealed::Events>::EVENTS;
    const EVENT: usize = <MockViommu as sealed::Events>::EVENT;
    type Event = u32;

    fn event(bytes: &[u8]) -> Result<u32, InfoError> {
        <MockViommu as sealed::Events>::event(bytes)
    }
}

impl sealed::Queues for MockSmmu {
    const QUEUE: u32 = MockViommu::QUEUE;
    const REGISTERS: usize = MockViommu::REGISTERS;
    const HARDWARE: u32 = MockViommu::HARDWARE;
}

impl EventKind for MockSmmu {}

impl VirtualKind for MockSmmu {
    type Stage = SmmuStage;
}

impl QueueKind for MockSmmu {
    type Errors = CmdqvErrors;
}

/// Entries of the device's cache that a command to an SMMU names.
fn entries([first, second]: [u64; 2]) -> Vec<[u64; 2]> {
    if first & 0xff != ATC_INV || first & ALL_SUBSTREAMS != 0 {
        return Vec::new();
    }
    assert_eq!(first >> 32, NAME.get());
    let (page, pages) = (second >> 12, 1 << (second & 0x3f).min(2));
    let all = page..page + pages;
    all.map(|page| command(NAME, page as u32 % selftest::ENTRIES)).collect()
}

/// The device behind the virtual IOMMU.
#[derive(Debug)]
struct Behind {
    mock: Arc<Mock>,
    nowhere: u32,
    viommu: VirtualIommu<MockSmmu>,
    _device: VirtualDevice,
}

impl Seat<SmmuStage> for Behind {
    fn tables(&self, stage: &SmmuStage) -> Result<NestedTables<SmmuStage>, AttachError> {
        self.viommu.tables(self.mock.id, stage, NestedOptions::default())
    }

    fn enter(&self, place: Place<'_, SmmuStage>) -> Result<(), AttachError> {
        let id = match place {
            Place::Nowhere => self.nowhere,
            Place::Memory => self.viommu.memory().placed()?.tables(self.mock.id)?,
            Place::Tables(tables) => tables.table().id(),
        };
        let moved = selftest::replace(self.mock.iommufd.descriptor(), self.mock.device, id);
        Ok(moved.map_err(|error| crate::calls::refused(&error))?)
    }

    fn forget(
        &self,
        now: &Followed<SmmuStage>,
        range: Option<IovaRange>,
    ) -> Result<(), InvalidateError> {
        let commands = commands(now.stage.0, NAME, range);
        self.viommu.requests(&commands.into_iter().flat_map(entries).collect::<Vec<_>>())
    }
}

/// A monitor's objects of its guest.
#[derive(Default)]
struct Objects {
    events: Option<EventQueue<MockSmmu>>,
    errors: Option<EventQueue<CmdqvErrors>>,
    /// One: the test device keeps the place of a second one when that goes.
    queue: Option<CommandQueue>,
    passed: Option<PassedDevice<SmmuStage>>,
    viommu: Option<VirtualIommu<MockSmmu>>,
    mapped: Option<IovaRange>,
}

impl Objects {
    /// Number of the kernel's objects that they are, and of descriptors.
    fn count(&self) -> (usize, usize) {
        let files = usize::from(self.events.is_some()) + usize::from(self.errors.is_some());
        let tables = self.passed.as_ref().is_some_and(|passed| passed.tables().is_some());
        let others = [self.viommu.is_some(), self.passed.is_some(), tables];
        let others: usize = others.map(usize::from).iter().sum();
        // The kernel has an object of its own that pins a queue.
        let queue = 2 * usize::from(self.queue.is_some());
        (files + queue + others, files)
    }

    /// Numbers of those that have one for this library.
    fn numbers(&self) -> [Option<u32>; 3] {
        let tables = self.passed.as_ref().and_then(PassedDevice::tables);
        let queue = self.queue.as_ref().map(CommandQueue::id);
        [self.viommu.as_ref().map(VirtualIommu::id), tables, queue]
    }
}

/// Numbers of the objects of an iommufd: those that new ones do not get.
fn used(fd: BorrowedFd<'_>) -> BTreeSet<u32> {
    let mut used: BTreeSet<u32> = (1..=NUMBERS).collect();
    let mut new = Vec::new();
    while new.last().is_none_or(|number| *number < NUMBERS) {
        new.push(new_ioas(fd).unwrap());
    }
    for number in new {
        used.remove(&number);
        destroy(fd, number).unwrap();
    }
    used
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Calls `act` with a kernel that fails at the place of this number, if it comes there; also tells if it did.
fn failing<T>(place: Option<u64>, act: impl FnOnce() -> T) -> (T, bool) {
    const FAIL: &str = "/proc/thread-self/fail-nth";
    let Some(place) = place else { return (act(), false) };
    std::fs::write(FAIL, place.to_string()).unwrap();
    let done = act();
    let left: u64 = std::fs::read_to_string(FAIL).unwrap().trim().parse().unwrap();
    std::fs::write(FAIL, "0").unwrap();
    (done, left == 0)
}

/// The guest of a run.
struct Run {
    mock: Arc<Mock>,
    /// Tables that lead to nothing. The kernel makes none by itself for an address space that the device comes to.
    nowhere: u32,
    memory: Arc<UserDomain>,
    own: Pages,
    objects: Objects,
    /// Entries that the device has in its cache.
    cached: [bool; selftest::ENTRIES as usize],
}

impl Run {
    /// Makes an object that is not there, or does something with one that is: `None` if there is nothing to do.
    fn call(&mut self, which: u64, number: u64, place: Option<u64>) -> Option<(bool, bool)> {
        let (objects, depth) = (&mut self.objects, NonZeroU32::new(3).unwrap());
        let viommu = objects.viommu.clone();
        let (mock, memory, nowhere) = (self.mock.clone(), self.memory.clone(), self.nowhere);
        match which {
            0 if viommu.is_none() => keep(
                &mut objects.viommu,
                failing(place, || VirtualIommu::above(&mock.site(), &memory)),
            ),
            1 if objects.passed.is_none() => {
                let viommu = viommu?;
                let (device, failed) = failing(place, || viommu.device(mock.id, NAME));
                let passed = device.map(|_device| {
                    PassedDevice::new(Box::new(Behind { mock, nowhere, viommu, _device }))
                });
                keep(&mut objects.passed, (passed, failed))
            }
            2 if objects.events.is_none() => {
                let viommu = viommu?;
                keep(&mut objects.events, failing(place, || viommu.events(depth)))
            }
            3 if objects.errors.is_none() => {
                let viommu = viommu?;
                keep(&mut objects.errors, failing(place, || viommu.queue_errors(depth)))
            }
            4 if objects.queue.is_none() => {
                let viommu = viommu?;
                keep(&mut objects.queue, failing(place, || viommu.queue(None, page(0))))
            }
            5..=8 => self.follow(which, number, place),
            9 => self.map(number, place),
            _ => None,
        }
    }

    /// Has the device follow its guest.
    fn follow(&mut self, which: u64, number: u64, place: Option<u64>) -> Option<(bool, bool)> {
        let passed = self.objects.passed.as_ref()?;
        // A first stage whose device has a TLB.
        let entry = [number << 12 | 0xb, 1 << 28, 0, 0, 0, 0, 0, 0];
        let stage = SmmuStage(SmmuFirstStage::of_stream_entry(&entry).unwrap());
        let before = passed.tables();
        let (done, failed) = match which {
            5 => failing(place, || passed.attach_tables(stage).is_ok()),
            6 => failing(place, || passed.attach_memory().is_ok()),
            7 => failing(place, || passed.block().is_ok()),
            _ => {
                let first = number % selftest::ENTRIES as u64;
                let range = IovaRange::page(Iova::new(first << 12), PageSize::SIZE_4K);
                let done = failing(place, || passed.invalidate(Some(range)).is_ok());
                if done.0 && before.is_some() {
                    self.cached[first as usize] = false;
                }
                return Some(done);
            }
        };
        if !done {
            assert_eq!(passed.tables(), before, "the device is where it was");
        }
        Some((done, failed))
    }

    /// Maps a page of the guest's memory, or unmaps it.
    fn map(&mut self, number: u64, place: Option<u64>) -> Option<(bool, bool)> {
        let mut owed = Gather::new();
        let Some(range) = self.objects.mapped.take() else {
            let at = page(8 + number % 8).start();
            let memory = promised(PhysAddr::new(self.own.as_ptr() as u64 + PAGE), PAGE);
            let map = || self.memory.map(at, memory, Access::READ_WRITE, &mut owed);
            return keep(&mut self.objects.mapped, failing(place, map));
        };
        self.memory.unmap(range, &mut owed).unwrap();
        let (done, failed) = failing(place, || self.memory.sync(&mut owed).is_ok());
        // It is owed still.
        self.memory.sync(&mut owed).unwrap();
        Some((done, failed))
    }

    /// Takes an object away.
    fn drop_one(&mut self, which: u64) {
        let objects = &mut self.objects;
        match which {
            0 => drop(objects.events.take()),
            1 => drop(objects.errors.take()),
            2 => drop(objects.queue.take()),
            3 => {
                if let Some(passed) = objects.passed.take() {
                    passed.block().unwrap();
                }
            }
            // The others keep it.
            4 if objects.count().0 == 1 => drop(objects.viommu.take()),
            _ => (),
        }
    }

    /// Compares all that the kernel has with what there should be.
    fn check(&self, base: (usize, usize)) {
        let fd = self.mock.iommufd.descriptor();
        let (objects, files) = self.objects.count();
        let found = used(fd);
        assert_eq!(found.len(), base.0 + objects, "{found:?}, {:?}", self.objects.numbers());
        assert_eq!(descriptors(), base.1 + files, "descriptors");
        let below = self.memory.placed().unwrap().tables(self.mock.id).unwrap();
        let bytes = &self.own[PAGE as usize..];
        for number in 8..16 {
            let at = page(number);
            let mapped = selftest::leads_to(fd, below, at.start().get(), bytes);
            assert_eq!(mapped, self.objects.mapped == Some(at), "page {number}");
        }
        for (entry, cached) in (0..).zip(self.cached) {
            let value = if cached { selftest::DEVICE_CACHED } else { 0 };
            assert!(selftest::device_has_cached(fd, self.mock.id, entry, value), "entry {entry}");
        }
    }
}

/// Keeps what a call has made; tells if it did, and if the kernel failed.
fn keep<T, E>(into: &mut Option<T>, (made, failed): (Result<T, E>, bool)) -> Option<(bool, bool)> {
    *into = made.ok();
    Some((into.is_some(), failed))
}

fn page(number: u64) -> IovaRange {
    IovaRange::page(Iova::new(0x200_0000 + number * PAGE), PageSize::SIZE_4K)
}

#[test]
fn kernel_that_fails_anywhere_leaves_no_object_of_a_guest_behind() {
    let Some(mock) = mock("kernel_that_fails_anywhere_leaves_no_object_of_a_guest_behind") else {
        return;
    };
    let mut random = random();
    let mock = Arc::new(mock);
    let memory = mock.domain(second_stage());
    let own = Pages::new(2 * PAGE as usize).unwrap();
    memory.placed().unwrap().tables(mock.id).unwrap();
    // Memory of its queue.
    let mut owed = Gather::new();
    let pa = PhysAddr::new(own.as_ptr() as u64);
    let queue = memory.map(page(0).start(), promised(pa, PAGE), Access::READ_WRITE, &mut owed);
    let queue = queue.unwrap();
    let fd = mock.iommufd.descriptor();
    let nowhere = new_hwpt(fd, mock.id, mock.home.id(), 0, 0).unwrap();
    selftest::replace(fd, mock.device, nowhere).unwrap();
    let base = (used(fd).len(), descriptors());
    let cached = [true; selftest::ENTRIES as usize];
    let mut run =
        Run { mock: mock.clone(), nowhere, memory, own, objects: Objects::default(), cached };
    let (mut failed, mut made) = ([0; 10], 0);
    for _ in 0..CALLS {
        if random(4) == 0 {
            run.drop_one(random(5));
        } else {
            let place = (random(4) != 0).then(|| 1 + random(PLACES));
            let (which, number) = (random(10), random(64));
            if let Some((done, fails)) = run.call(which, number, place) {
                assert!(done || fails, "call {which} is refused for another reason");
                failed[which as usize] += u32::from(!done);
                made += u32::from(done);
            }
        }
        run.check(base);
    }
    println!("{made} calls were made; by their kind, {failed:?} failed inside the kernel");
    assert!(failed.iter().sum::<u32>() > 100 && made > 100);
    for which in [0, 1, 2, 3, 4] {
        run.drop_one(which);
    }
    assert_eq!((used(fd).len(), descriptors()), base);
    if let Some(range) = run.objects.mapped.take() {
        run.memory.unmap(range, &mut owed).unwrap();
    }
    run.memory.unmap(queue, &mut owed).unwrap();
    run.memory.sync(&mut owed).unwrap();
}
