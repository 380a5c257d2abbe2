//! Bounds, widths, sharing, and the library's requirements.

use super::*;
use portolan::bounce::{BouncePool as _, Need, Pool, PoolMemory, PoolOptions};
use portolan::dma::Unowned;
use portolan::platform::{Clock, Nanos, SpinCpus};

const BASE: PhysAddr = PhysAddr::new(0x4000_0000);

fn memory(bytes: u64) -> HostMemory {
    HostMemory::new(bytes, Backing::Anonymous, Base::At(BASE)).unwrap()
}

fn at(offset: i64) -> PhysAddr {
    PhysAddr::new(BASE.get().wrapping_add_signed(offset))
}

#[test]
fn it_is_zeroed_and_widths_agree() {
    let memory = memory(0x2000);
    memory.populate();
    let mut first = [1; 16];
    memory.read(at(0), &mut first).unwrap();
    assert_eq!(first, [0; 16]);
    let words = memory.words64(at(0x1ff8), 1).unwrap();
    words[0].store(0x0807_0605_0403_0201, Ordering::Relaxed);
    let half = memory.words32(at(0x1ffc), 1).unwrap();
    assert_eq!(half[0].load(Ordering::Relaxed), 0x0807_0605);
    let short = memory.word16(at(0x1ffe)).unwrap();
    assert_eq!(short.load(Ordering::Relaxed), 0x0807);
    let byte = memory.byte(at(0x1fff)).unwrap();
    assert_eq!(byte.load(Ordering::Relaxed), 8);
    let mut bytes = [0; 3];
    memory.read(at(0x1ffd), &mut bytes).unwrap();
    assert_eq!(bytes, [6, 7, 8]);
    memory.copy_within(at(0x1ff8), at(0x801), 8).unwrap();
    memory.read(at(0x800), &mut bytes).unwrap();
    assert_eq!(bytes, [0, 1, 2]);
}

#[test]
fn nothing_outside_is_reached() {
    let memory = memory(0x1000);
    memory.fill(at(0), 0x1000, 0x11).unwrap();
    assert!(memory.words64(at(0xff9), 1).is_err());
    assert!(memory.words64(at(0x1000), 1).is_err());
    assert!(memory.words32(at(-4), 1).is_err());
    assert!(memory.words64(PhysAddr::new(u64::MAX - 7), usize::MAX).is_err());
    assert!(memory.words32(at(0x1000), 0).is_ok_and(<[_]>::is_empty));
    assert!(memory.write(at(0xfff), &[0; 2]).is_err());
    assert!(memory.read(at(-1), &mut [0; 2]).is_err());
    assert!(memory.fill(at(0), u64::MAX, 0).is_err());
    assert!(memory.copy_within(at(0), at(0xfff), 2).is_err());
    assert!(memory.copy_within(at(0xfff), at(0), 2).is_err());
    assert!(memory.host_address(at(1), 0x1000).is_err());
    assert!(memory.copy_within(at(0x800), at(0x1000), 8).is_err());
    assert!(memory.fill(at(0xff0), 0x11, 0).is_err());
    let mut last = [0; 1];
    memory.read(at(0xfff), &mut last).unwrap();
    assert_eq!(last, [0x11]);
}

#[test]
fn what_cannot_be_is_refused() {
    for bytes in [0, 1, 0xfff, 0x1001, u64::MAX, u64::MAX - 0xfff] {
        for backing in [Backing::Anonymous, Backing::File] {
            assert!(HostMemory::new(bytes, backing, Base::Host).is_err(), "{bytes:#x}");
        }
    }
    for base in [0x10, u64::MAX - 0xfff] {
        let base = Base::At(PhysAddr::new(base));
        assert!(HostMemory::new(0x2000, Backing::Anonymous, base).is_err());
    }
}

#[test]
fn physical_is_host_where_asked_and_files_are_shared() {
    let memory = HostMemory::new(0x3000, Backing::File, Base::Host).unwrap();
    let start = memory.range().start();
    assert_eq!(memory.host_address(start, 0x3000), Ok(start.get()));
    assert_eq!(memory.range().len_minus_one(), 0x2fff);
    memory.write(start, b"lead").unwrap();
    let file = memory.file().unwrap();
    let mut read = [0; 4];
    rustix::io::pread(file, &mut read, 0).unwrap();
    assert_eq!(&read, b"lead");
    assert!(rustix::fs::ftruncate(file, 0x1000).is_err(), "sealed");
    let other = memory.clone();
    drop(memory);
    other.read(start, &mut read).unwrap();
    assert_eq!(&read, b"lead");
}

struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

#[allow(unsafe_code)]
fn unowned(memory: PhysRange) -> Unowned {
    // SAFETY: the process reaches that memory by volatile copies alone, and no device does.
    unsafe { Unowned::new(memory) }
}

#[test]
fn a_pool_lies_in_it_and_copies_through_it() {
    let memory = memory(1 << 20);
    let cpus = SpinCpus::new(1, Still, || portolan::addr::CpuId::new(0));
    let options = PoolOptions::of_areas(1);
    let range = PhysRange::from_len(at(1 << 19), 1 << 19).unwrap();
    let pool = Pool::new(cpus, unowned(range), options).unwrap();
    let pool = PoolMemory::new(pool, memory.clone());
    memory.write(at(0x123), b"a buffer").unwrap();
    let mut buffer = unowned(PhysRange::from_len(at(0x123), 8).unwrap());
    let slots = pool.take(&Need::bytes(8)).unwrap();
    pool.copy_in(&buffer, &slots).unwrap();
    let mut read = [0; 8];
    memory.read(slots.data().start(), &mut read).unwrap();
    assert_eq!(&read, b"a buffer");
    memory.write(slots.data().start(), b"A").unwrap();
    pool.copy_out(&slots, &mut buffer).unwrap();
    memory.read(at(0x123), &mut read).unwrap();
    assert_eq!(&read, b"A buffer");
    pool.give(slots).unwrap();
}
