//! Records that a kernel might write, and the responses that it gets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use portolan::addr::{IovaRange, PageSize, PhysAddr};
use portolan::demand::{Ioas, IoasOptions, RegionOptions, Residency, Window};
use portolan::iommu::Domain as _;
use portolan::iopf::{Bounds, Dispatcher, Served};
use portolan::table::Access;
use portolan::table::format::DirtyTracking;

use super::*;
use crate::calls::{AfterRead, Calls};
use crate::domain::{Reach, UserDomain};
use crate::guest::GuestMemory;
use crate::memory::{Backing, Base, HostMemory, Process};

const STREAM: StreamId = StreamId::new(0x28);
const DEVICE: u32 = 4;
const PASID_VALID: u32 = 1;
const LAST: u32 = 2;
const READ_WRITE: u32 = 3;

/// A queue of a kernel that is this test: records that it writes are read, and responses come to it.
fn queue() -> (Arc<FaultQueue>, UnixStream) {
    let (kernel, process) = UnixStream::pair().unwrap();
    process.set_nonblocking(true).unwrap();
    kernel.set_nonblocking(true).unwrap();
    let queue = FaultQueue {
        file: process.into(),
        object: None,
        streams: BTreeMap::from([(DEVICE, STREAM)]),
        waiting: Mutex::default(),
    };
    (Arc::new(queue), kernel)
}

/// `iommu_hwpt_pgfault`.
fn record(flags: u32, device: u32, group: u32, iova: u64, cookie: u32) -> Vec<u8> {
    let (low, high) = (iova as u32, (iova >> 32) as u32);
    let words = [flags, device, 7, group, READ_WRITE, 0, low, high, 0, cookie];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn responses(kernel: &mut UnixStream) -> Vec<(u32, u32)> {
    let mut bytes = [0; 256];
    let read = kernel.read(&mut bytes).unwrap_or(0);
    let word = |at: &[u8]| u32::from_ne_bytes(at.try_into().unwrap());
    let both = |one: &[u8]| (word(&one[..4]), word(&one[4..]));
    bytes[..read].chunks(8).map(both).collect()
}

fn taken(queue: &FaultQueue) -> Result<Vec<RawPageRequest>, VfioError> {
    let mut all = Vec::new();
    let count = queue.take(|request| all.push(request))?;
    assert_eq!(count, all.len());
    Ok(all)
}

fn to(group: u16) -> ReplyTo {
    let name = ReplyName::Group(GroupId::new(group));
    let (stream, pasid) = (STREAM, None);
    ReplyTo { stream, pasid, name }
}

#[test]
fn records_are_requests_and_groups_are_answered_by_their_cookie() {
    let (queue, mut kernel) = queue();
    assert_eq!(taken(&queue), Ok(vec![]));
    assert_eq!(queue.wait(Duration::ZERO), Ok(false));
    let two = [
        record(PASID_VALID, DEVICE, 3, 0x1000, 77),
        record(PASID_VALID | LAST, DEVICE, 3, 0x2000, 77),
        record(LAST, DEVICE, 4, 0xffff_ffff_f000, 78),
    ];
    kernel.write_all(&two.concat()).unwrap();
    assert_eq!(queue.wait(Duration::ZERO), Ok(true));
    let pri = |group, place| RequestKind::Pri { group: GroupId::new(group), place };
    let wants = Permissions::READ | Permissions::WRITE;
    let named = RawPageRequest {
        stream: STREAM,
        pasid: Some(Pasid::new(7)),
        iova: Iova::new(0x1000),
        wants,
        kind: pri(3, Place::More),
    };
    let second = RawPageRequest { iova: Iova::new(0x2000), kind: pri(3, Place::Last), ..named };
    let third = RawPageRequest {
        pasid: None,
        iova: Iova::new(0xffff_ffff_f000),
        kind: pri(4, Place::Last),
        ..named
    };
    assert_eq!(taken(&queue), Ok(vec![named, second, third]));
    queue.respond(to(4), Response::Failure).unwrap();
    queue.respond(to(3), Response::Success).unwrap();
    queue.respond(to(3), Response::Success).unwrap();
    queue.respond(to(9), Response::Success).unwrap();
    assert_eq!(responses(&mut kernel), [(78, 1), (77, 0)]);
}

#[test]
fn a_large_group_is_read_and_one_without_bounds_is_an_error() {
    let kernel = |records: usize| {
        move |bytes: &mut [u8]| match bytes.len() < records * RECORD {
            true => Err(Errno::INVAL),
            false => Ok(records * RECORD),
        }
    };
    for records in [0, 1, RECORDS, RECORDS + 1, MOST_RECORDS] {
        let read = whole_groups(kernel(records)).map(|bytes| bytes.len() / RECORD);
        assert_eq!(read, Ok(records));
    }
    let read = whole_groups(kernel(MOST_RECORDS + 1));
    assert_eq!(read, Err(Errno::INVAL));
}

#[test]
fn two_groups_of_one_number_are_both_answered() {
    let (queue, mut kernel) = queue();
    let two = [1, 2].map(|cookie| record(LAST, DEVICE, 3, 0x1000, cookie));
    kernel.write_all(&two.concat()).unwrap();
    assert_eq!(taken(&queue).unwrap().len(), 2);
    queue.respond(to(3), Response::Invalid).unwrap();
    assert_eq!(responses(&mut kernel), [(1, 1), (2, 1)]);
}

#[test]
fn what_makes_no_sense_is_refused_and_not_handed_on() {
    let (queue, mut kernel) = queue();
    let strange = [
        record(0, 9, 3, 0x1000, 5),
        record(LAST, 9, 3, 0x2000, 5),
        record(LAST, DEVICE, 1 << 16, 0x1000, 6),
        record(LAST, DEVICE, 3, 0x1000, 7),
    ];
    kernel.write_all(&strange.concat()).unwrap();
    assert_eq!(taken(&queue).unwrap().len(), 1);
    assert_eq!(responses(&mut kernel), [(5, 1), (6, 1)]);
    // Half a record.
    kernel.write_all(&record(LAST, DEVICE, 3, 0, 8)[..20]).unwrap();
    let cut = taken(&queue);
    assert!(matches!(cut, Err(VfioError::Info(InfoError::Cut { .. }))));
    drop(kernel);
    assert_eq!(taken(&queue), Ok(vec![]));
    assert!(queue.respond(to(3), Response::Success).is_err());
}

/// A kernel that maps everything.
#[derive(Debug, Default)]
struct Maps(Mutex<BTreeMap<u64, u64>>);

impl Calls for Maps {
    fn map(&self, range: IovaRange, memory: PhysAddr, _: Access) -> Result<(), IommuError> {
        let start = range.start().get();
        self.0.lock().unwrap().insert(start, memory.get());
        Ok(())
    }

    fn unmap(&self, range: IovaRange, _: u64) -> Result<(), IommuError> {
        let gone = |at: &u64| range.contains(Iova::new(*at));
        self.0.lock().unwrap().retain(|at, _| !gone(at));
        Ok(())
    }

    fn dirty(
        &self,
        _: IovaRange,
        _: PageSize,
        _: AfterRead,
        _: &mut [u64],
    ) -> Result<(), IommuError> {
        Err(IommuError::Unsupported)
    }
}

#[test]
fn memory_of_the_process_is_mapped_when_a_device_asks_for_it() {
    const BASE: u64 = 1 << 30;
    let range = IovaRange::new(Iova::new(0), Iova::new(u64::MAX >> 16)).unwrap();
    let reach = Reach { ranges: vec![range], granule: PageSize::SIZE_4K };
    let domain = UserDomain::new(Arc::new(reach), DirtyTracking::Off, None);
    let domain = Arc::new(domain);
    let maps = Arc::new(Maps::default());
    domain.enter(maps.clone()).unwrap();
    let memory = HostMemory::new(64 * 4096, Backing::Anonymous, Base::Host).unwrap();
    let guest = Arc::new(GuestMemory::new(memory, Iova::new(BASE)));
    let options = IoasOptions { window: Window::Page, ..IoasOptions::default() };
    let ioas = Ioas::new(domain.clone(), Process, options, crate::sys::kernel());
    let ioas = Arc::new(ioas.unwrap());
    let region = RegionOptions {
        range: guest.range().unwrap(),
        access: Access::READ | Access::WRITE,
        hold: Residency::OnDemand,
    };
    ioas.add_region(&region, guest.clone()).unwrap();
    assert!(maps.0.lock().unwrap().is_empty());

    let (queue, mut kernel) = queue();
    let requests = Dispatcher::new(Process, queue.clone(), Bounds::default()).unwrap();
    let reach = domain.input_range();
    requests.register(STREAM, None, reach, ioas.clone()).unwrap();
    let two = [
        record(0, DEVICE, 3, BASE + 0x5000, 77),
        record(LAST, DEVICE, 3, BASE + 0x9000, 77),
        record(LAST, DEVICE, 4, 0x1000, 78),
    ];
    kernel.write_all(&two.concat()).unwrap();
    for request in taken(&queue).unwrap() {
        requests.accept(request).unwrap();
    }
    while let Some(served) = requests.serve().unwrap() {
        assert!(matches!(served, Served::Answered { .. }));
    }
    assert_eq!(responses(&mut kernel), [(77, 0), (78, 1)]);
    let behind = |at| guest.behind(Iova::new(at)).unwrap().get();
    let mapped = [BASE + 0x5000, BASE + 0x9000].map(|at| (at, behind(at)));
    assert_eq!(*maps.0.lock().unwrap(), BTreeMap::from(mapped));
    // And is taken back.
    let all = guest.range().unwrap();
    guest.reclaim(all, |range| ioas.invalidate(range)).unwrap();
    assert!(maps.0.lock().unwrap().is_empty());
}
