//! Information that the kernel returns, and the kernel's own device for tests, where there is one.

use std::time::Duration;

use portolan::addr::{Iova, StreamId};
use portolan::inval::Gather;
use portolan::iommu::Domain as _;
use portolan::iopf::{ReplyName, Responder as _, Response};

use super::*;
use crate::memory::Pages;
use crate::promised::promised;
use crate::sys::iommufd::nested::{Nested, new_nested};
use crate::sys::iommufd::selftest;
use crate::vfio::FaultQueue;
use crate::vfio::mock::mock;

#[test]
fn the_window_comes_from_the_kernel() {
    let x86 = [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];
    let found = reach(&x86, 4096).unwrap();
    let of = |range: &IovaRange| (range.start().get(), range.last().get());
    assert_eq!(found.ranges.iter().map(of).collect::<Vec<_>>(), x86);
    assert_eq!(found.granule, PageSize::SIZE_4K);
    assert_eq!(reach(&x86, 1).unwrap().granule, PageSize::SIZE_4K);
    assert_eq!(reach(&x86, 1 << 16).unwrap().granule.bytes(), 1 << 16);
    assert_eq!(reach(&[], 4096).unwrap_err(), InfoError::NoRanges);
    for sizes in [0, 3, 4095] {
        assert_eq!(reach(&x86, sizes).unwrap_err(), InfoError::NoPages { sizes });
    }
    let back = reach(&[(8, 9), (0, 4)], 4096);
    assert!(matches!(back, Err(InfoError::Ranges { .. })));
}

#[test]
fn kernel_marks_what_was_written() {
    let Some(mock) = mock("kernel_marks_what_was_written") else {
        return;
    };
    let dirty = DirtyTracking::Hardware;
    let domain = mock.domain(DomainOptions { dirty, ..DomainOptions::default() });
    let tables = domain.placed().unwrap().tables(mock.id).unwrap();
    let fd = mock.iommufd.descriptor();
    selftest::replace(fd, mock.device, tables).unwrap();

    let memory = Pages::new(128 * 4096).unwrap();
    let start = domain.input_range().start();
    let pa = PhysAddr::new(memory.as_ptr() as u64);
    let mut owed = Gather::new();
    let all = domain.map(start, promised(pa, 128 * 4096), Access::READ_WRITE, &mut owed).unwrap();
    let page =
        |number: u64| IovaRange::page(Iova::new(start.get() + number * 4096), PageSize::SIZE_4K);
    let read = || {
        let (mut found, mut owed) = (Vec::new(), Gather::new());
        let visit = &mut |dirty| found.push(dirty);
        domain.read_and_clear_dirty(all, &mut owed, visit).unwrap();
        found
    };
    assert_eq!(read(), []);
    for number in [0, 5, 6, 64, 127] {
        let at = page(number).start().get() + selftest::PAGE;
        assert!(selftest::write(fd, tables, at).unwrap());
    }
    let wanted = [page(0), page(5).hull(page(6)), page(64), page(127)];
    for _ in 0..2 {
        let mut kept = Vec::new();
        domain.read_dirty(all, &mut |dirty| kept.push(dirty)).unwrap();
        assert_eq!(kept, wanted, "a read that keeps the marks");
    }
    assert_eq!(read(), wanted);
    assert_eq!(read(), []);
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

#[test]
fn kernel_hands_page_requests_over_and_takes_responses() {
    let Some(mock) = mock("kernel_hands_page_requests_over_and_takes_responses") else {
        return;
    };
    let (fd, stream) = (mock.iommufd.descriptor(), StreamId::new(0x28));
    let streams = BTreeMap::from([(mock.id, stream)]);
    let queue = FaultQueue::new(mock.iommufd.clone(), streams).unwrap();
    // Linux 6.12 takes it for nested page tables only.
    let parent = 1;
    let ioas = Ioas::new(&mock.iommufd, &DomainOptions::default()).unwrap();
    let parent = call::new_hwpt(fd, mock.id, ioas.id, parent, 0).unwrap();
    let nested = Nested {
        device: mock.id,
        parent,
        flags: 0,
        kind: selftest::TABLES,
        words: &[0],
        fault_queue: Some(queue.id()),
    };
    let nested = new_nested(fd, nested).unwrap();
    selftest::replace(fd, mock.device, nested).unwrap();

    assert_eq!(queue.wait(Duration::ZERO), Ok(false));
    for (group, iova) in [(3, 0x1000), (4, 0x2000)] {
        selftest::ask(fd, mock.id, group, iova).unwrap();
    }
    assert_eq!(queue.wait(Duration::from_secs(10)), Ok(true));
    let mut asked = Vec::new();
    while asked.len() < 2 && queue.wait(Duration::from_secs(10)) == Ok(true) {
        queue.take(|request| asked.push(request)).unwrap();
    }
    let of = |group, iova| {
        let found = asked.iter().find(|request| request.iova.get() == iova).unwrap();
        let request = found.check().unwrap();
        assert_eq!((request.stream(), request.pasid()), (stream, None));
        let name = ReplyName::Group(portolan::iopf::GroupId::new(group));
        assert_eq!(request.reply_to().name, name);
        request.reply_to()
    };
    for to in [of(3, 0x1000), of(4, 0x2000)] {
        queue.respond(to, Response::Success).unwrap();
    }
    // The kernel counts groups from 0 on, and waits for the response to none any more.
    for cookie in [0, 1] {
        assert!(queue.answer(cookie, Response::Success).is_err());
    }
    assert_eq!(queue.take(|_| ()), Ok(0));
    selftest::replace(fd, mock.device, mock.home.id()).unwrap();
    for id in [nested, parent] {
        call::destroy(fd, id).unwrap();
    }
}
