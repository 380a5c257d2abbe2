//! Information that the kernel returns, and the kernel's own device for tests, where there is one.

use std::os::fd::AsFd as _;
use std::time::Duration;

use portolan::addr::{Iova, StreamId};
use portolan::dma::Buffer as _;
use portolan::inval::Gather;
use portolan::iommu::{Domain as _, DomainError};
use portolan::iopf::{ReplyName, Responder as _, Response};

use super::*;
use crate::memory::{Backing, Base, DmaBuf, FilePart, HostMemory, Pages};
use crate::promised::promised;
use crate::sys::iommufd::nested::{Nested, new_nested};
use crate::sys::iommufd::selftest::{self, Giving};
use crate::vfio::FaultQueue;
use crate::vfio::charge::ChargeError;
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
    let at = |iova: Iova, pages: u64| Iova::new(iova.get() + pages * 4096);
    let mut owed = Gather::new();
    // Holes between them, so that the kernel's tables have a mark for each page.
    let page = |number: u64| IovaRange::page(at(start, 2 * number), PageSize::SIZE_4K);
    for number in 0..128 {
        let pa = PhysAddr::new(memory.as_ptr() as u64 + number * 4096);
        let memory = promised(pa, 4096);
        domain.map(page(number).start(), memory, Access::READ_WRITE, &mut owed).unwrap();
    }
    let all = page(0).hull(page(127));
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
    let wanted = [0, 5, 6, 64, 127].map(page);
    for _ in 0..2 {
        let mut kept = Vec::new();
        domain.read_dirty(all, &mut |dirty| kept.push(dirty)).unwrap();
        assert_eq!(kept, wanted, "a read that keeps the marks");
    }
    assert_eq!(read(), wanted);
    assert_eq!(read(), []);
    (0..128).for_each(|number| domain.unmap(page(number), &mut owed).unwrap());
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

/// An iommufd that knows no call: each fails as one that the kernel does not have.
fn ignorant() -> (Arc<Iommufd>, Ioas) {
    let file = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let iommufd = Iommufd::of(file.into(), Arc::default());
    let ioas = Ioas::handed(&iommufd, 7);
    (iommufd, ioas)
}

#[test]
fn memory_of_a_file_is_given_by_its_address_to_a_kernel_that_maps_no_files() {
    let (iommufd, ioas) = ignorant();
    let counts = || {
        let counts = iommufd.counters().get();
        (counts.map_file, counts.map)
    };
    let memory = HostMemory::new(4096, Backing::File, Base::Host).unwrap();
    let at = memory.range().start();
    let range = IovaRange::page(Iova::new(0), PageSize::SIZE_4K);
    for wanted in [(1, 1), (1, 2)] {
        let refused = ioas.map(range, at, Access::READ_WRITE);
        assert_eq!(refused, Err(IommuError::Unsupported));
        assert_eq!(counts(), wanted, "the call that it does not have is made once");
    }
    // Registers are a dma-buf, which has no other way.
    let device = Access::READ_WRITE | Access::DEVICE;
    let part = FilePart { offset: 0, bytes: 4096 };
    let buffer = DmaBuf::stand_in(memory.file().unwrap().try_clone_to_owned().unwrap(), part);
    let there = buffer.pieces().into_iter().next().unwrap().start();
    assert_eq!(ioas.map(range, there, device), Err(IommuError::Unsupported));
    assert_eq!(counts(), (1, 2));
    let (iommufd, ioas) = ignorant();
    assert_eq!(ioas.map(range, at, device), Err(IommuError::Unsupported));
    let counts = iommufd.counters().get();
    assert_eq!((counts.map_file, counts.map), (0, 0), "a file in memory is no dma-buf");
    assert_eq!(ChargeError::of(&iommufd.charge().unwrap_err()), IommuError::Unsupported.into());
}

#[test]
fn kernel_maps_files_by_their_descriptors() {
    let Some(mock) = mock("kernel_maps_files_by_their_descriptors") else {
        return;
    };
    let (fd, domain) = (mock.iommufd.descriptor(), mock.domain(DomainOptions::default()));
    let tables = call::new_hwpt(fd, mock.id, domain.placed().unwrap().ioas().unwrap(), 0, 0);
    let tables = tables.unwrap();
    let counts = || {
        let counts = mock.iommufd.counters().get();
        (counts.map_file, counts.map, counts.unmap)
    };
    let whole = HostMemory::new(16 * 4096, Backing::File, Base::Host).unwrap();
    let again = |offset, bytes| {
        let file = whole.file().unwrap().try_clone_to_owned().unwrap();
        let memory = HostMemory::of_file(file, FilePart { offset, bytes }, Base::Host);
        let memory = memory.map_err(|failed| failed.error).unwrap();
        let at = memory.range().start();
        (memory, at)
    };
    let bytes = 8 * 4096;
    let (memory, at) = again(4 * 4096, bytes);
    let (start, mut owed) = (domain.input_range().start(), Gather::new());
    let all = domain.map(start, promised(at, bytes), Access::READ_WRITE, &mut owed).unwrap();
    assert_eq!(counts(), (1, 0, 0));
    assert!(selftest::leads_to_address(fd, tables, start.get(), at.get(), bytes));
    assert!(selftest::is_pinned(fd, at.get(), bytes, 1));
    // The same bytes at another address: the mapping is of the file.
    let (other, other_at) = again(4 * 4096, bytes);
    drop(memory);
    assert!(selftest::leads_to_address(fd, tables, start.get(), other_at.get(), bytes));
    let first = whole.range().start().get();
    assert!(selftest::is_pinned(fd, first, 4 * 4096, 0));
    // A hole that another user makes: the device goes on with the page that was there.
    let page = PhysRange::page(other_at, PageSize::SIZE_4K);
    other.discard(page).unwrap();
    assert!(!selftest::leads_to_address(fd, tables, start.get(), other_at.get(), 4096));
    let rest = (start.get() + 4096, other_at.get() + 4096);
    assert!(selftest::leads_to_address(fd, tables, rest.0, rest.1, bytes - 4096));
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert!(selftest::is_pinned(fd, other_at.get(), bytes, 0));
    // Other memory is by its address.
    let own = Pages::new(4096).unwrap();
    let pa = PhysAddr::new(own.as_ptr() as u64);
    let all = domain.map(start, promised(pa, 4096), Access::READ, &mut owed).unwrap();
    assert!(selftest::leads_to(fd, tables, start.get(), &own));
    assert_eq!(counts(), (1, 1, 1));
    domain.unmap(all, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    call::destroy(fd, tables).unwrap();
}

#[test]
fn kernel_takes_dma_bufs_back() {
    let Some(mock) = mock("kernel_takes_dma_bufs_back") else {
        return;
    };
    let (fd, bytes) = (mock.iommufd.descriptor(), 4 * 4096);
    let file = selftest::new_dma_buf(fd, bytes as u32).unwrap();
    let dirty = DirtyTracking::Hardware;
    let domain = mock.domain(DomainOptions { dirty, ..DomainOptions::default() });
    let tables = domain.placed().unwrap().tables(mock.id).unwrap();
    let part = FilePart { offset: 4096, bytes: 2 * 4096 };
    let buffer = DmaBuf::new(file, part).map_err(|failed| failed.error).unwrap();
    let at = buffer.pieces().into_iter().next().unwrap().start();
    let (start, mut owed) = (domain.input_range().start(), Gather::new());
    let access = Access::READ_WRITE | Access::DEVICE;
    let map = |page: u64| {
        let start = Iova::new(start.get() + page * 4096);
        domain.map(start, promised(at, part.bytes), access, &mut Gather::new())
    };
    let all = map(0).unwrap();
    // A page that is mapped keeps the mark of a write.
    let reaches = |iova: Iova, range| {
        selftest::write(fd, tables, iova.get()).unwrap();
        let (mut found, mut owed) = (0, Gather::new());
        domain.read_and_clear_dirty(range, &mut owed, &mut |_| found += 1).unwrap();
        found == 1
    };
    assert!(reaches(start, all));
    selftest::revoke(fd, buffer.as_fd(), Giving::TakenBack).unwrap();
    assert!(!reaches(start, all), "the owner has taken it back");
    assert_eq!(map(16), Err(IommuError::Gone.into()));
    selftest::revoke(fd, buffer.as_fd(), Giving::Given).unwrap();
    assert!(!reaches(start, all), "an old mapping stays as it is");
    let new = map(16).unwrap();
    assert!(reaches(new.start(), new));
    for range in [all, new] {
        domain.unmap(range, &mut owed).unwrap();
    }
    domain.sync(&mut owed).unwrap();
    let counts = mock.iommufd.counters().get();
    assert_eq!((counts.map_file, counts.map), (3, 0));
    // By its addresses alone there is nothing.
    let plain = domain.map(start, promised(at, 4096), Access::READ, &mut owed);
    assert!(matches!(plain, Err(DomainError::Iommu(IommuError::Refused { .. }))), "{plain:?}");
}

#[test]
fn memory_is_lent_in_the_mapping_that_has_all_of_it() {
    let (iommufd, _) = ignorant();
    let mut ioas = Ioas::handed(&iommufd, 7);
    ioas.options.lends = true;
    let page = |number: u64| Iova::new(number << 12);
    let lend = |iova, at, bytes| {
        let range = IovaRange::from_len(iova, bytes).unwrap();
        ioas.lending().insert(PhysAddr::new(at), range);
        range
    };
    let first = lend(page(0x100), 0x7000, 0x3000);
    lend(page(0x200), 0xa000, 0x1000);
    let found = |at, bytes| {
        let memory = PhysRange::from_len(PhysAddr::new(at), bytes).unwrap();
        ioas.lent(memory).map(|part| (part.ioas, part.iova))
    };
    assert_eq!(found(0x7000, 0x3000), Some((7, 0x10_0000)));
    assert_eq!(found(0x9000, 0x1000), Some((7, 0x10_2000)));
    assert_eq!(found(0xa000, 0x1000), Some((7, 0x20_0000)));
    for (at, bytes) in [(0x6000, 0x1000), (0x6000, 0x2000), (0x9000, 0x2000), (0xb000, 0x1000)] {
        assert_eq!(found(at, bytes), None, "{at:#x}");
    }
    // What is unmapped is lent no more, whatever the kernel answers.
    assert!(ioas.unmap(first, 0x3000).is_err());
    assert_eq!((found(0x7000, 0x1000), found(0xa000, 0x1000)), (None, Some((7, 0x20_0000))));
}

#[test]
fn kernel_pins_memory_once_for_a_domain_and_those_that_borrow() {
    let Some(mock) = mock("kernel_pins_memory_once_for_a_domain_and_those_that_borrow") else {
        return;
    };
    let fd = mock.iommufd.descriptor();
    let lender = mock.domain(DomainOptions { lends: true, ..DomainOptions::default() });
    let borrows = Some(lender.clone());
    let borrower = mock.domain(DomainOptions { borrows, ..DomainOptions::default() });
    let tables = |domain: &UserDomain| {
        call::new_hwpt(fd, mock.id, domain.placed().unwrap().ioas().unwrap(), 0, 0).unwrap()
    };
    let (below, above) = (tables(&lender), tables(&borrower));
    let memory = Pages::new(16 * 4096).unwrap();
    let at = |page: u64| memory.as_ptr() as u64 + page * 4096;
    let (start, mut owed) = (lender.input_range().start(), Gather::new());
    let all = promised(PhysAddr::new(at(0)), 16 * 4096);
    let whole = lender.map(start, all, Access::READ_WRITE, &mut owed).unwrap();
    let counts = || {
        let counts = mock.iommufd.counters().get();
        (counts.map, counts.copy)
    };
    let before = counts();
    let iova = Iova::new(start.get() + (1 << 24));
    let part = || promised(PhysAddr::new(at(3)), 5 * 4096);
    let borrowed = borrower.map(iova, part(), Access::READ, &mut owed).unwrap();
    assert_eq!(counts(), (before.0, before.1 + 1));
    let leads = || selftest::leads_to_address(fd, above, iova.get(), at(3), 5 * 4096);
    assert!(leads() && selftest::is_pinned(fd, at(0), 16 * 4096, 1));
    // The lender goes first: what was borrowed stays, and no more.
    lender.unmap(whole, &mut owed).unwrap();
    lender.sync(&mut owed).unwrap();
    assert!(leads() && selftest::is_pinned(fd, at(3), 5 * 4096, 1));
    assert!(selftest::is_pinned(fd, at(0), 3 * 4096, 0));
    assert!(!selftest::leads_to_address(fd, below, start.get(), at(0), 4096));
    borrower.unmap(borrowed, &mut owed).unwrap();
    borrower.sync(&mut owed).unwrap();
    assert!(selftest::is_pinned(fd, at(0), 16 * 4096, 0));

    // Of nothing that is lent, and of what is lent for less: as any other memory.
    let own = borrower.map(iova, part(), Access::READ_WRITE, &mut owed).unwrap();
    assert!(leads() && selftest::is_pinned(fd, at(3), 5 * 4096, 1));
    borrower.unmap(own, &mut owed).unwrap();
    borrower.sync(&mut owed).unwrap();
    let all = promised(PhysAddr::new(at(0)), 16 * 4096);
    let whole = lender.map(start, all, Access::READ, &mut owed).unwrap();
    let own = borrower.map(iova, part(), Access::READ_WRITE, &mut owed).unwrap();
    assert!(leads() && selftest::is_pinned(fd, at(3), 5 * 4096, 2));
    borrower.unmap(own, &mut owed).unwrap();
    borrower.sync(&mut owed).unwrap();
    lender.unmap(whole, &mut owed).unwrap();
    lender.sync(&mut owed).unwrap();
    for tables in [below, above] {
        call::destroy(fd, tables).unwrap();
    }
}
