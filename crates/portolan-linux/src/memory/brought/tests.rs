//! Files that are no memory, memory that others reach, and slots, over a kernel in miniature.

#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{Iova, StreamId};
use portolan::dma::{
    Bidirectional, BufferPool, BufferPoolError, Constraints, Device, Direction, DmaSpace,
    SpaceOptions,
};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, FaultEvent, Iommu, IommuError, ReservedRegion,
};
use portolan::platform::AllMemory;
use portolan::table::format::DirtyTracking;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::super::{Backing, HugePage, Pages, Process};
use super::*;
use crate::domain::UserDomain;
use crate::domain::tests::{Kernel, reach};

const PAGE: u64 = 4096;

/// A unit with one device, whose address space a kernel in miniature keeps.
struct Unit(Arc<Kernel>);

impl Iommu for Unit {
    fn block(&self, _: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn pass_through(&self, _: StreamId, _: AllMemory) -> Result<(), AttachError> {
        Err(IommuError::Unsupported.into())
    }

    fn reserved(&self, _: StreamId, _: &mut dyn FnMut(ReservedRegion)) {}

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(None)
    }
}

impl Attach<UserDomain> for Unit {
    fn attach(&self, _: StreamId, domain: &Arc<UserDomain>) -> Result<(), AttachError> {
        domain.enter(self.0.clone())
    }
}

pub(crate) fn device() -> (Arc<Kernel>, Device<Process>) {
    let kernel = Arc::new(Kernel::default());
    let domain = Arc::new(UserDomain::new(reach(), DirtyTracking::Off, None));
    let bound = BoundDomain::new(Arc::new(Unit(kernel.clone())), domain, crate::sys::kernel());
    let space = DmaSpace::new(bound, Process, &SpaceOptions::default()).unwrap();
    let stream = StreamId::new(1);
    let device = Device::translated(Arc::new(space), stream, Constraints::trusted());
    (kernel, device.unwrap())
}

/// The word of memory that the device finds at an address.
fn at_device(kernel: &Kernel, iova: Iova) -> *mut u64 {
    let (page, inside) = (iova.get() & !(PAGE - 1), iova.get() & (PAGE - 1));
    std::ptr::with_exposed_provenance_mut((kernel.pages()[&page] + inside) as usize)
}

pub(crate) fn memfd(flags: MemfdFlags, bytes: u64) -> OwnedFd {
    let file = memfd_create("client", flags | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

pub(crate) fn sealed(bytes: u64) -> OwnedFd {
    let file = memfd(MemfdFlags::ALLOW_SEALING, bytes);
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

fn refused(file: OwnedFd, offset: u64, bytes: u64) -> FileMemoryError {
    let number = file.as_raw_fd();
    let part = FilePart { offset, bytes };
    let failed = HostMemory::of_file(file, part, Base::Host).unwrap_err();
    assert_eq!(failed.value.as_raw_fd(), number, "the descriptor comes back");
    fstat(&failed.value).expect("and is open");
    failed.error
}

#[test]
fn descriptors_that_are_no_memory_come_back_with_the_reason() {
    let not = FileMemoryError::NotMemory;
    let (one, other) = UnixStream::pair().unwrap();
    assert_eq!(refused(one.into(), 0, PAGE), not);
    // Its peer is closed.
    assert_eq!(refused(other.into(), 0, PAGE), not);
    assert_eq!(refused(eventfd(0, EventfdFlags::CLOEXEC).unwrap(), 0, PAGE), not);
    let (mode, flags) = (Mode::empty(), OFlags::RDONLY | OFlags::CLOEXEC);
    for path in ["/dev/null", "/proc/self/maps", "/"] {
        let file = rustix::fs::open(path, flags, mode).unwrap();
        assert_eq!(refused(file, 0, PAGE), not, "{path}");
    }
    let unsealed = memfd(MemfdFlags::ALLOW_SEALING, 2 * PAGE);
    assert_eq!(refused(unsealed, 0, PAGE), FileMemoryError::NotSealed);
}

#[test]
fn parts_that_are_not_there_or_not_whole_pages_are_refused() {
    let length = 4 * PAGE;
    for (offset, bytes) in [(0, 5 * PAGE), (4 * PAGE, PAGE), (3 * PAGE, 2 * PAGE)] {
        let error = FileMemoryError::TooShort { offset, wanted: bytes, length };
        assert_eq!(refused(sealed(length), offset, bytes), error);
    }
    let far = u64::MAX - (PAGE - 1);
    let error = refused(sealed(length), far, PAGE);
    assert!(matches!(error, FileMemoryError::TooShort { .. }), "{error}");
    let unaligned = FileMemoryError::Unaligned { page: PageSize::SIZE_4K };
    for (offset, bytes) in [(1, PAGE), (0, 1), (0, 0), (0, PAGE + 1), (0, u64::MAX), (0, far)] {
        assert_eq!(refused(sealed(length), offset, bytes), unaligned, "{offset} {bytes}");
    }
    // A client may have sealed it against writing as well, which a device would do.
    let file = sealed(PAGE);
    fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    let code = Errno::PERM.raw_os_error();
    assert_eq!(refused(file, 0, PAGE), FileMemoryError::System { code });
    // SAFETY: no other code has the file.
    let unsealed = unsafe {
        let file = memfd(MemfdFlags::empty(), PAGE);
        HostMemory::of_unsealed_file(file, FilePart { offset: 0, bytes: PAGE }, Base::Host)
    };
    assert_eq!(unsealed.map_err(|failed| failed.error).unwrap().bytes(), PAGE);
}

#[test]
fn a_clients_memory_is_mapped_once_and_read_and_written_by_all() {
    let file = sealed(4 * PAGE);
    let clients = file.as_fd().try_clone_to_owned().unwrap();
    let part = FilePart { offset: PAGE, bytes: 2 * PAGE };
    let memory = HostMemory::of_file(file, part, Base::Host);
    let memory = memory.map_err(|failed| failed.error).unwrap();
    let (kernel, device) = device();
    let buffer = memory.buffer(memory.range()).unwrap();
    let mapping = device.map(buffer, Bidirectional).map_err(|failed| failed.error).unwrap();
    let second = Iova::new(mapping.iova().get() + PAGE);
    let start = memory.range().start();
    let word = PhysAddr::new(start.get() + PAGE);
    for round in 1..=100u64 {
        rustix::io::pwrite(&clients, &round.to_ne_bytes(), PAGE).unwrap();
        assert_eq!(memory.words64(start, 1).unwrap()[0].load(Ordering::Relaxed), round);
        let seen = at_device(&kernel, mapping.iova());
        // SAFETY: the device's access, of memory that is mapped.
        let seen = unsafe { seen.read_volatile() };
        assert_eq!(seen, round);
        // SAFETY: as above.
        unsafe { at_device(&kernel, second).write_volatile(!round) };
        assert_eq!(memory.words64(word, 1).unwrap()[0].load(Ordering::Relaxed), !round);
        let mut bytes = [0; 8];
        rustix::io::pread(&clients, &mut bytes, 2 * PAGE).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), !round);
    }
    assert_eq!(kernel.counts(), (1, 0));
    drop(memory);
    // The mapping keeps the memory.
    // SAFETY: as above.
    assert_eq!(unsafe { at_device(&kernel, mapping.iova()).read_volatile() }, 100);
    let buffer = mapping.unmap().map_err(|failed| failed.error).unwrap();
    assert_eq!((kernel.counts(), buffer.memory().bytes()), ((1, 1), 2 * PAGE));
}

#[test]
fn memory_that_others_reach_lends_no_slots() {
    let memory = HostMemory::new(4 * PAGE, Backing::Anonymous, Base::Host).unwrap();
    let (_, device) = device();
    let shared = memory.buffer(memory.range()).unwrap();
    let mapping = device.map(shared, Direction::FromDevice).map_err(|failed| failed.error).unwrap();
    let failed = BufferPool::new(mapping, PAGE as usize).unwrap_err();
    assert_eq!(failed.error, BufferPoolError::Shared);
    // As long as a buffer of it is there, it has no sole owner.
    let memory = BroughtPages::of(memory).unwrap_err();
    assert!(failed.value.unmap().is_ok());
    let clone = memory.clone();
    let memory = BroughtPages::of(memory).unwrap_err();
    drop(clone);
    assert!(BroughtPages::of(memory).is_ok());
    let file = HostMemory::new(PAGE, Backing::File, Base::Host).unwrap();
    assert!(BroughtPages::of(file).is_err());
}

#[test]
fn slots_go_to_and_fro_without_a_call() {
    let memory = HostMemory::new(64 * PAGE, Backing::Anonymous, Base::Host).unwrap();
    let pages = BroughtPages::of(memory).unwrap();
    let (kernel, device) = device();
    let mapping = device.map(pages, Direction::Bidirectional);
    let mapping = mapping.map_err(|failed| failed.error).unwrap();
    let pool = BufferPool::new(mapping, PAGE as usize).map_err(|failed| failed.error).unwrap();
    let seen: Vec<_> = (0..64).map(|_| pool.take().unwrap()).collect();
    let slots = seen.into_iter().enumerate().map(|(number, mut slot)| {
        slot[..8].copy_from_slice(&(number as u64).to_ne_bytes());
        slot.post()
    });
    for (number, slot) in slots.collect::<Vec<_>>().into_iter().enumerate() {
        let at = at_device(&kernel, slot.iova());
        // SAFETY: the device's access, of memory that is mapped.
        unsafe {
            assert_eq!(at.read_volatile(), number as u64);
            at.write_volatile(!(number as u64));
        }
        let slot = slot.take_back();
        assert_eq!(slot[..8], (!(number as u64)).to_ne_bytes());
    }
    assert_eq!(kernel.counts(), (1, 0));
    let pages = pool.into_mapping().map_err(|failed| failed.error).unwrap().unmap();
    let memory = pages.map_err(|failed| failed.error).unwrap().into_keeper();
    assert_eq!((kernel.counts(), memory.bytes()), ((1, 1), 64 * PAGE));
}

#[test]
fn the_applications_own_memory_is_its_own_again() {
    let mut own = Pages::new(5 << 20).unwrap();
    own[..5].copy_from_slice(b"first");
    let bytes = NonNull::from(&mut *own);
    let (kernel, device) = device();
    // SAFETY: `own` stays, and is not looked at before the value is gone.
    let memory = unsafe { HostMemory::brought(bytes, Base::Host) }.unwrap();
    let buffer = memory.buffer(memory.range()).unwrap();
    let huge = PageSize::SIZE_2M;
    // Something else, so that addresses are not aligned by themselves.
    let beside = device.map(Pages::new(1).unwrap(), Bidirectional).unwrap();
    let mapping = device.map_aligned(buffer, Bidirectional, huge).unwrap();
    let at = kernel.pages()[&mapping.iova().get()];
    assert!(mapping.iova().is_aligned(huge) && PhysAddr::new(at).is_aligned(huge));
    assert_eq!(kernel.counts(), (2, 0));
    let start = memory.range().start();
    let range = PhysRange::page(start, PageSize::SIZE_4K);
    assert_eq!(memory.discard(range).unwrap_err().kind(), io::ErrorKind::Unsupported);
    memory.write(start, b"after").unwrap();
    assert!(mapping.unmap().is_ok() && beside.unmap().is_ok());
    drop(memory);
    assert_eq!(&own[..5], b"after");
    for (start, length) in [(1, PAGE as usize), (0, 1), (0, PAGE as usize + 1), (0, 0)] {
        // SAFETY: inside of `own`, which is not looked at.
        let refused = unsafe {
            let at = bytes.cast::<u8>().add(start);
            HostMemory::brought(NonNull::slice_from_raw_parts(at, length), Base::Host)
        };
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{start} {length}");
    }
    let none = NonNull::slice_from_raw_parts(bytes.cast::<u8>(), 0);
    // SAFETY: no bytes.
    assert!(unsafe { BroughtPages::new(none, ()) }.is_none());
    // SAFETY: `own` is not looked at until the keeper is back.
    let pages = unsafe { BroughtPages::new(bytes, own) }.unwrap();
    assert_eq!((&pages[..5], pages.len()), (&b"after"[..], 5 << 20));
    assert_eq!(&pages.into_keeper()[..5], b"after");
}

#[test]
fn huge_pages_are_made_and_found() {
    let huge = HugePage::Size2M;
    for backing in [Backing::Huge(huge), Backing::HugeFile(huge)] {
        assert!(HostMemory::new(PAGE, backing, Base::Host).is_err(), "less than a page");
    }
    let memory = HostMemory::new(2 << 21, Backing::HugeFile(huge), Base::Host);
    let (Ok(memory), Ok(own)) = (memory, HostMemory::new(1 << 21, Backing::Huge(huge), Base::Host))
    else {
        println!("SKIP: no huge pages are set aside (/proc/sys/vm/nr_hugepages)");
        return;
    };
    assert_eq!((memory.page(), own.page()), (huge.size(), huge.size()));
    let file = memory.file().unwrap().try_clone_to_owned().unwrap();
    let unaligned = FileMemoryError::Unaligned { page: huge.size() };
    assert_eq!(refused(file.try_clone().unwrap(), PAGE, 1 << 21), unaligned);
    let part = FilePart { offset: 1 << 21, bytes: 1 << 21 };
    let again = HostMemory::of_file(file, part, Base::Host).map_err(|failed| failed.error).unwrap();
    assert_eq!(again.page(), huge.size());
    again.write(again.range().start(), b"huge").unwrap();
    let mut read = [0; 4];
    memory.read(PhysAddr::new(memory.range().start().get() + (1 << 21)), &mut read).unwrap();
    assert_eq!(&read, b"huge");
    memory.discard(memory.range()).unwrap();
    again.read(again.range().start(), &mut read).unwrap();
    assert_eq!(read, [0; 4]);
}
