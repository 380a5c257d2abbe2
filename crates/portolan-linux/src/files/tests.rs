//! Files are known by the addresses at which they are, as long as they are there.

use std::os::fd::{AsFd as _, AsRawFd as _};

use portolan::addr::PhysAddr;

use super::*;
use crate::memory::brought::tests::sealed;
use crate::memory::{Backing, Base, HostMemory};

const PAGE: u64 = 4096;

fn pages(start: PhysAddr, first: u64, count: u64) -> PhysRange {
    PhysRange::from_len(PhysAddr::new(start.get() + first * PAGE), count * PAGE).unwrap()
}

#[test]
fn a_file_is_found_by_its_addresses_until_it_is_unmapped() {
    let file = sealed(8 * PAGE);
    let kept = file.as_fd().try_clone_to_owned().unwrap();
    let part = FilePart { offset: 3 * PAGE, bytes: 4 * PAGE };
    let far = Base::At(PhysAddr::new(1 << 40));
    let memory = HostMemory::of_file(file, part, far).map_err(|failed| failed.error).unwrap();
    let buffer = memory.buffer(memory.range()).unwrap();
    let start = PhysAddr::new(memory.host_address(memory.range().start(), 1).unwrap());
    for (first, count) in [(0, 4), (1, 2), (3, 1)] {
        let behind = behind(pages(start, first, count)).unwrap();
        assert_eq!((behind.offset, behind.kind), ((3 + first) * PAGE, FileKind::Memory));
        assert_eq!(Some(behind.file.as_raw_fd()), memory.file().map(|file| file.as_raw_fd()));
    }
    let file = behind(pages(start, 0, 1)).unwrap().file;
    // Other threads may have theirs at addresses that are free.
    let is_there = |range| behind(range).is_some_and(|found| Arc::ptr_eq(&found.file, &file));
    // Past its end, and where the monitor says that it is.
    assert!(!is_there(pages(start, 0, 5)) && !is_there(pages(start, 4, 1)));
    assert!(!is_there(memory.range()));
    drop(memory);
    assert!(is_there(pages(start, 0, 4)), "a buffer keeps it");
    drop(buffer);
    assert!(!is_there(pages(start, 0, 4)));
    rustix::fs::fstat(&kept).unwrap();
    let own = HostMemory::new(PAGE, Backing::Anonymous, Base::Host).unwrap();
    assert!(behind(own.range()).is_none());
}
