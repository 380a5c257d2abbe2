//! Nested tables and virtual IOMMUs on the kernel's own device for tests, whose caches it shows, and the words that
//! each kind of hardware is handed.

use std::num::NonZeroU32;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::inval::{Depth, Gather};
use portolan::iommu::Domain as _;
use portolan::table::Access;
use rustix::io::Errno;

use super::kinds::sealed::{self, Events as _, Virtual as _};
use super::*;
use crate::chain::{InfoError, word};
use crate::memory::Pages;
use crate::promised::promised;
use crate::sys::iommufd::destroy;
use crate::sys::iommufd::selftest::{self, ENTRIES, Move};
use crate::vfio::DomainOptions;
use crate::vfio::mock::{Mock, mock, mock_with_pasids};

/// Tables of the test device: the value of the entries that it has cached.
#[derive(Clone, Copy, Debug)]
pub(super) struct MockStage(pub(super) u32);

impl sealed::Stage for MockStage {
    const KIND: u32 = selftest::TABLES;

    fn words(&self) -> Vec<u64> {
        vec![self.0.into()]
    }
}

impl FirstStage for MockStage {}
impl AboveTables for MockStage {}

impl Requests for MockStage {
    const KIND: u32 = selftest::INVALIDATION;
}

/// An invalidation of the test device's: an entry, or all.
pub(super) fn request(entry: Option<u32>) -> [u64; 1] {
    [entry.map_or(1, |entry| u64::from(entry) << 32)]
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MockViommu;

impl VirtualKind for MockViommu {
    type Stage = MockStage;
}

impl sealed::Virtual for MockViommu {
    const KIND: u32 = selftest::VIOMMU;
    const INVALIDATION: u32 = selftest::INVALIDATION;
    /// `iommu_viommu_selftest`: a word that comes back, and the place of its registers.
    const DATA: &'static [u64] = &[selftest::FIRST as u64, 0, 0];
}

impl EventKind for MockViommu {}

impl sealed::Events for MockViommu {
    const EVENTS: u32 = selftest::EVENTS;
    const EVENT: usize = 4;
    type Event = u32;

    fn event(bytes: &[u8]) -> Result<u32, InfoError> {
        word(bytes, 0)
    }
}

impl QueueKind for MockViommu {
    type Errors = CmdqvErrors;
}

impl sealed::Queues for MockViommu {
    const QUEUE: u32 = selftest::QUEUE;
    const REGISTERS: usize = 1;
    const HARDWARE: u32 = selftest::HARDWARE;
}

/// A command of its guest: an entry of a device by the guest's name.
pub(super) fn command(name: GuestStream, entry: u32) -> [u64; 2] {
    [name.get() << 32, entry.into()]
}

pub(super) fn second_stage() -> DomainOptions {
    DomainOptions { second_stage: true, ..DomainOptions::default() }
}

/// Bits of the entries that a cache still has, by the kernel's word.
pub(super) fn kept(has: impl Fn(u32, u32) -> bool, value: u32) -> Vec<bool> {
    let one = |entry| match (has(entry, value), has(entry, 0)) {
        (true, false) => true,
        (false, true) => false,
        both => panic!("entry {entry} is {both:?}"),
    };
    (0..ENTRIES).map(one).collect()
}

/// Tells if the kernel has no object of this number.
pub(super) fn is_gone(mock: &Mock, id: u32) -> bool {
    let error = destroy(mock.iommufd.descriptor(), id).err();
    let code = error.and_then(|error| error.raw_os_error());
    code == Some(Errno::NOENT.raw_os_error())
}

#[test]
fn words_are_those_of_the_kernels_structures() {
    use iommufd_bindings::iommufd as sys;
    let bytes = |words: &[u64]| size_of_val(words);
    let stage = VtdFirstStage {
        root: Iova::new(0x1234_5000),
        address_bits: 48,
        supervisor: true,
        extended_accessed: false,
        write_protect: true,
    };
    assert_eq!(stage.words(), [0b101, 0x1234_5000, 48]);
    assert_eq!(bytes(&stage.words()), size_of::<sys::iommu_hwpt_vtd_s1>());
    let extended = VtdFirstStage { extended_accessed: true, supervisor: false, ..stage };
    assert_eq!(extended.words()[0], 0b110);
    assert_eq!(SmmuFirstStage { entry: [3, 4] }.words(), [3, 4]);
    assert_eq!(size_of::<sys::iommu_hwpt_arm_smmuv3>(), 16);
    assert_eq!(size_of::<sys::iommu_viommu_tegra241_cmdqv>(), bytes(VirtualCmdqv::DATA));
    let cmdqv = (VirtualCmdqv::KIND, <VirtualCmdqv as sealed::Queues>::QUEUE);
    assert_eq!((cmdqv, VirtualCmdqv::INVALIDATION, VirtualCmdqv::EVENTS), ((2, 1), 1, 1));
    assert_eq!((CmdqvErrors::EVENTS, CmdqvErrors::EVENT), (2, 16));
    assert_eq!(VtdInvalidation::All.words(), [0, u64::MAX, 0]);
    let pages = |depth| VtdInvalidation::Pages { start: Iova::new(0x7000), count: 3, depth };
    assert_eq!(pages(Depth::LeafOnly).words(), [0x7000, 3, 1]);
    assert_eq!(pages(Depth::AllLevels).words(), [0x7000, 3, 0]);
    assert_eq!(size_of::<sys::iommu_hwpt_vtd_s1_invalidate>(), 24);
}

#[test]
fn a_pasid_entry_is_read_or_refused() {
    let of = |first, third| VtdFirstStage::of_pasid_entry(&[first, !0, third, !0, !0, !0, !0, !0]);
    let stage = of(0x41, 0x1234_5000 | 1 << 2 | 1 << 4 | 1 << 7).unwrap();
    let wanted = VtdFirstStage {
        root: Iova::new(0x1234_5000),
        address_bits: 57,
        supervisor: false,
        extended_accessed: true,
        write_protect: true,
    };
    assert_eq!(stage, wanted);
    assert_eq!(of(0x41, 1).map(|stage| (stage.address_bits, stage.supervisor)), Some((48, true)));
    // Not present, second stage, nested, passed through, reserved levels, another length.
    for (first, third) in [(0x40, 0), (0x81, 0), (0xc1, 0), (0x101, 0), (0x41, 8), (0x41, 12)] {
        assert_eq!(of(first, third), None, "{first:#x} {third:#x}");
    }
    assert_eq!(VtdFirstStage::of_pasid_entry(&[0x41; 7]), None);
}

#[test]
fn kernel_invalidates_what_nested_tables_have_cached() {
    let Some(mock) = mock("kernel_invalidates_what_nested_tables_have_cached") else {
        return;
    };
    let (fd, domain) = (mock.iommufd.descriptor(), mock.domain(second_stage()));
    let none = NestedOptions::default();
    let tables = NestedTables::above(&mock.site(), &domain, &MockStage(0x77), none).unwrap();
    let (id, below) = (tables.table().id(), domain.placed().unwrap().tables(mock.id).unwrap());
    selftest::replace(fd, mock.device, id).unwrap();
    let left = || kept(|entry, value| selftest::has_cached(fd, id, entry, value), 0x77);
    assert_eq!(left(), [true; 4]);
    tables.requests(&[request(Some(2)), request(Some(0))]).unwrap();
    assert_eq!(left(), [false, true, false, true]);
    // The second of three names an entry that there is not.
    let three = [request(Some(1)), request(Some(9)), request(Some(3))];
    let error = IommuError::Refused { code: Errno::INVAL.raw_os_error().unsigned_abs() };
    assert_eq!(tables.requests(&three), Err(InvalidateError { done: 1, error }));
    assert_eq!(left(), [false, false, false, true]);
    tables.requests::<1>(&[]).unwrap();
    tables.requests(&[request(None)]).unwrap();
    assert_eq!(left(), [false; 4]);

    // Below, the guest's memory.
    let memory = Pages::new(16 * 4096).unwrap();
    let start = domain.input_range().start();
    let (pa, mut owed) = (PhysAddr::new(memory.as_ptr() as u64), Gather::new());
    let all = domain.map(start, promised(pa, 16 * 4096), Access::READ_WRITE, &mut owed).unwrap();
    assert!(selftest::leads_to(fd, below, start.get(), &memory));
    assert!(!selftest::leads_to(fd, below, start.get(), &memory[4096..]));
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert!(!selftest::leads_to(fd, below, start.get(), &memory));

    // The tables keep the domain, and both go once the device has left.
    drop(domain);
    selftest::replace(fd, mock.device, mock.home.id()).unwrap();
    drop(tables);
    assert!(is_gone(&mock, id) && is_gone(&mock, below));
}

#[test]
fn kernel_carries_out_what_a_guest_commands_of_its_own_device() {
    let Some(mock) = mock("kernel_carries_out_what_a_guest_commands_of_its_own_device") else {
        return;
    };
    let (fd, domain) = (mock.iommufd.descriptor(), mock.domain(second_stage()));
    let viommu = VirtualIommu::<MockViommu>::above(&mock.site(), &domain).unwrap();
    let name = GuestStream::new(0x99);
    let device = viommu.device(mock.id, name).unwrap();
    assert!(viommu.device(mock.id, GuestStream::new(0x98)).is_err(), "it has a name");
    let left = || {
        let has = |entry, value| selftest::device_has_cached(fd, mock.id, entry, value);
        kept(has, selftest::DEVICE_CACHED)
    };
    assert_eq!(left(), [true; 4]);
    viommu.requests(&[command(name, 1), command(name, 3)]).unwrap();
    assert_eq!(left(), [true, false, true, false]);
    // The second names a device that the guest has not.
    let wrong = [command(name, 0), command(GuestStream::new(0x98), 2), command(name, 2)];
    let refused = viommu.requests(&wrong).unwrap_err();
    assert_eq!(refused.done, 1);
    assert_eq!(left(), [false, false, true, false]);
    // A guest without the device has none of its cache.
    drop(device);
    assert_eq!(viommu.requests(&[command(name, 2)]).unwrap_err().done, 0);
    assert_eq!(left(), [false, false, true, false]);
}

#[test]
fn kernel_reads_a_guests_queues_and_maps_their_registers() {
    let Some(mock) = mock("kernel_reads_a_guests_queues_and_maps_their_registers") else {
        return;
    };
    let domain = mock.domain(second_stage());
    let viommu = VirtualIommu::<MockViommu>::above(&mock.site(), &domain).unwrap();
    let other = VirtualIommu::<MockViommu>::above(&mock.site(), &domain).unwrap();
    let memory = Pages::new(2 * 4096).unwrap();
    let start = domain.input_range().start();
    let (pa, mut owed) = (PhysAddr::new(memory.as_ptr() as u64), Gather::new());
    let at = |page: u64| IovaRange::from_len(Iova::new(start.get() + page * 4096), 4096).unwrap();
    assert!(viommu.queue(None, at(0)).is_err(), "nothing is mapped");
    let all = domain.map(start, promised(pa, 2 * 4096), Access::READ_WRITE, &mut owed).unwrap();
    let first = viommu.queue(None, at(0)).unwrap();
    let exists = IommuError::Refused { code: Errno::EXIST.raw_os_error().unsigned_abs() };
    assert_eq!(viommu.queue(None, at(1)).unwrap_err(), exists);
    assert_eq!(other.queue(Some(&first), at(1)).unwrap_err(), IommuError::Unsupported);
    let second = viommu.queue(Some(&first), at(1)).unwrap();
    assert!(viommu.queue(Some(&second), at(1)).is_err(), "the device has two queues");
    assert_eq!((first.index(), second.index()), (0, 1));

    let registers = viommu.registers().unwrap();
    assert_eq!(registers.view().len(), 2 * 4096);
    // SAFETY: the mapping is that long, and stays.
    #[allow(unsafe_code)]
    let word = unsafe { registers.view().cast::<u32>().read_volatile() };
    assert_eq!(word, selftest::FIRST);

    // In any order: the last queue goes first, and the virtual IOMMU after all.
    let ids = [first.id(), second.id(), viommu.id()];
    drop((viommu, first));
    drop(second);
    assert!(ids[..2].iter().all(|id| is_gone(&mock, *id)));
    drop(registers);
    assert!(is_gone(&mock, ids[2]));
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

#[test]
fn kernel_reports_events_and_the_number_of_lost_ones() {
    let Some(mock) = mock("kernel_reports_events_and_the_number_of_lost_ones") else {
        return;
    };
    let (fd, domain) = (mock.iommufd.descriptor(), mock.domain(second_stage()));
    let viommu = VirtualIommu::<MockViommu>::above(&mock.site(), &domain).unwrap();
    let _device = viommu.device(mock.id, GuestStream::new(0x99)).unwrap();
    let none = NestedOptions::default();
    let tables = viommu.tables(mock.id, &MockStage(1), none).unwrap();
    selftest::replace(fd, mock.device, tables.table().id()).unwrap();
    let depth = NonZeroU32::new(3).unwrap();
    let queue = viommu.events(depth).unwrap();
    assert!(viommu.events(depth).is_err(), "a virtual IOMMU has one queue");
    // Errors of its queues are events of another kind.
    let errors = viommu.queue_errors(depth).unwrap();
    assert!(viommu.queue_errors(depth).is_err(), "and one of this kind");

    let report = |count| (0..count).for_each(|_| selftest::report(fd, mock.id).unwrap());
    let take = || {
        let mut found = Vec::new();
        let counts = queue.take(|name| found.push(name)).unwrap();
        assert_eq!(found, vec![0x99; counts.taken as usize]);
        (counts.taken, counts.lost)
    };
    assert_eq!(take(), (0, 0));
    report(2);
    assert_eq!(take(), (2, 0));
    report(8);
    assert_eq!(take(), (3, 5));
    report(1);
    assert_eq!(take(), (1, 0));
    let none_of_these = errors.take(|map| panic!("{map:?}")).unwrap();
    assert_eq!(none_of_these, VirtualEvents::default());

    let ids = [tables.table().id(), viommu.id()];
    selftest::replace(fd, mock.device, mock.home.id()).unwrap();
    // Handles in any order: each object goes before what it stands on.
    drop((domain, viommu));
    drop(_device);
    drop(tables);
    drop(queue);
    assert!(!is_gone(&mock, ids[1]), "a queue keeps it");
    drop(errors);
    assert!(ids.into_iter().all(|id| is_gone(&mock, id)));
}

#[test]
fn kernel_takes_tables_for_single_pasids() {
    let Some(mock) = mock_with_pasids("kernel_takes_tables_for_single_pasids") else {
        return;
    };
    let fd = mock.iommufd.descriptor();
    let of = |pasids| {
        let domain = mock.domain(DomainOptions { pasids, ..second_stage() });
        let id = domain.placed().unwrap().tables(mock.id).unwrap();
        (domain, id)
    };
    let ((one, first), (_other, second), (_plain, without)) = (of(true), of(true), of(false));
    let options = NestedOptions { pasids: true, ..NestedOptions::default() };
    let nested = NestedTables::above(&mock.site(), &one, &MockStage(0), options).unwrap();
    let nested = nested.table().id();
    // The device's other requests have to be in such tables as well.
    let into = |pasid, way| selftest::move_pasid(fd, mock.device, pasid, way);
    selftest::replace(fd, mock.device, without).unwrap();
    assert!(into(7, Move::Into(first)).is_err());
    selftest::replace(fd, mock.device, first).unwrap();

    into(7, Move::Into(second)).unwrap();
    into(8, Move::Into(nested)).unwrap();
    assert!(into(9, Move::Into(without)).is_err(), "tables that are not for PASIDs");
    let is_in = |pasid, tables| selftest::is_in(fd, mock.device, pasid, tables);
    assert!(is_in(7, second) && is_in(8, nested) && is_in(9, 0));
    into(7, Move::Over(nested)).unwrap();
    assert!(is_in(7, nested) && is_in(8, nested));
    into(7, Move::Away).unwrap();
    assert!(is_in(7, 0) && is_in(8, nested));
    into(8, Move::Away).unwrap();
    assert!(is_in(8, 0));
    selftest::replace(fd, mock.device, mock.home.id()).unwrap();
}

#[test]
fn kernel_refuses_what_does_not_fit() {
    let test = "kernel_refuses_what_does_not_fit";
    let (Some(mock), Some(other)) = (mock(test), mock(test)) else {
        return;
    };
    let (domain, site) = (mock.domain(second_stage()), mock.site());
    let none = NestedOptions::default;
    let unsupported = AttachError::Iommu(IommuError::Unsupported);
    let root = Iova::new(0x1000);
    let vtd = VtdFirstStage {
        root,
        address_bits: 48,
        supervisor: false,
        extended_accessed: false,
        write_protect: false,
    };
    let refused = NestedTables::above(&site, &domain, &vtd, none()).unwrap_err();
    assert_eq!(refused, unsupported, "hardware of another kind");
    let refused = VirtualIommu::<VirtualSmmu>::above(&site, &domain).unwrap_err();
    assert_eq!(refused, unsupported, "hardware of another kind");
    let plain = mock.domain(DomainOptions::default());
    let refused = NestedTables::above(&site, &plain, &MockStage(0), none()).unwrap_err();
    assert_eq!(refused, AttachError::Mismatch, "a domain without a second stage");
    // A queue of another file.
    let queue = Arc::new(FaultQueue::new(other.iommufd.clone(), Default::default()).unwrap());
    let number = queue.id();
    let options = NestedOptions { faults: Some(queue), ..none() };
    let refused = NestedTables::above(&site, &domain, &MockStage(0), options).unwrap_err();
    assert_eq!(refused, AttachError::Mismatch);
    assert!(is_gone(&other, number), "its file was closed before");
    // A domain that keeps marks and lies below a guest's tables: one set of tables.
    let dirty = portolan::table::format::DirtyTracking::Hardware;
    let both = mock.domain(DomainOptions { dirty, ..second_stage() });
    NestedTables::above(&site, &both, &MockStage(0), none()).unwrap();
}
