//! Under `portolan_hw::virtio::Viommu`: layouts, states, failures of each request, random operations.

mod bad_input;
mod device;
mod features;
mod meanwhile;
mod mmio;
mod numbers;
mod owed;

use crate::promised::{all_memory, promised};
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach, AttachError, Domain, DomainError, DomainSplitError, DomainUnmapError, FaultAccess,
    FaultEvent, FaultReason, Iommu, IommuError, ReservedKind, UnmapPartError,
};
use portolan::platform::Nanos;
use portolan::table::{Access, SplitError, TableMapError, TableUnmapError};

use portolan_chips::fixture::seed;
use portolan_hw::virtio::{Config, Viommu, VirtioDomain};
use vm_memory::Permissions;

use crate::link::{self, Failure, Link, Ticks};
use crate::range;

type Driver<'a> = Viommu<&'a Link, Ticks>;
type Space<'a> = VirtioDomain<&'a Link, Ticks>;

const A: StreamId = StreamId::new(8);
const B: StreamId = StreamId::new(16);
const RW: Access = Access::READ.union(Access::WRITE);
const READ: Permissions = Permissions::Read;
const WRITE: Permissions = Permissions::Write;

fn start(link: &Link) -> Driver<'_> {
    start_by(link, &Ticks::default())
}

fn start_by<'a>(link: &'a Link, clock: &Ticks) -> Driver<'a> {
    Viommu::start(link, clock.clone(), limits()).unwrap()
}

fn limits() -> Config {
    let mut limits = Config::default();
    limits.turn_timeout = Nanos::from_millis(1);
    limits
}

fn map(domain: &Space, iova: u64, pa: u64, bytes: u64) -> Result<IovaRange, DomainError> {
    map_for(domain, iova, pa, bytes, RW)
}

/// Maps and pays for it; a map that cannot be paid for is taken back.
fn map_for(
    domain: &Space,
    iova: u64,
    pa: u64,
    bytes: u64,
    access: Access,
) -> Result<IovaRange, DomainError> {
    let (iova, pa, mut owed) = (Iova::new(iova), PhysAddr::new(pa), Gather::new());
    let range = domain.map(iova, promised(pa, bytes), access, &mut owed)?;
    domain.sync(&mut owed).map(|_| range).map_err(|error| {
        domain.unmap(range, &mut owed).unwrap();
        let _ = domain.sync(&mut owed);
        IommuError::from(error).into()
    })
}

/// Unmaps and pays for it; returns the debt, and if the device failed.
fn try_unmap(domain: &Space, range: IovaRange) -> (Gather, Result<(), IommuError>) {
    let mut owed = Gather::new();
    let asked = domain.unmap_part(range, &mut owed);
    let failed = match asked {
        Err(UnmapPartError::Split(DomainSplitError::Sync(error))) => Err(IommuError::from(error)),
        Err(_) => Err(IommuError::Unsupported),
        Ok(()) => domain.sync(&mut owed).map(drop).map_err(IommuError::from),
    };
    (owed, failed)
}

fn unmap(domain: &Space, start: u64, last: u64) -> Result<(), IommuError> {
    try_unmap(domain, range(start, last)).1
}

#[rustfmt::skip]
#[test]
fn requests_by_hand() {
    let link = Link::new();
    let unit = start(&link);
    assert_eq!(link.state().config[36], 0);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map(&domain, 0x1_0000_2000, 0x30_0000_4000, 0x3000).unwrap();
    unmap(&domain, 0x1_0000_2000, 0x1_0000_4fff).unwrap();
    unit.block(A).unwrap();
    unit.pass_through(A, all_memory()).unwrap();
    unit.reserved(A).unwrap();
    let mut probe = vec![5, 0, 0, 0, 8, 0, 0, 0];
    probe.resize(72, 0);
    let want: [&[u8]; 6] = [
        &[1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 0, 0, 1, 0, 0, 0, 0xff, 0x4f, 0, 0, 1, 0, 0, 0,
            0, 0x40, 0, 0, 0x30, 0, 0, 0, 3, 0, 0, 0],
        &[4, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 0, 0, 1, 0, 0, 0, 0xff, 0x4f, 0, 0, 1, 0, 0, 0,
            0, 0, 0, 0],
        &[2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        &probe,
    ];
    assert_eq!(link.state().seen, want);
    let counts = unit.counts();
    assert_eq!((counts.attach, counts.detach, counts.probe), (2, 1, 1));
    assert_eq!((counts.map, counts.unmap), (1, 1));
}

#[test]
fn mappings_wait_for_an_endpoint_and_outlive_it() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    map(&domain, 0x1000, 0x8000, 0x2000).unwrap();
    assert!(link.state().seen.is_empty());
    unit.attach(A, &domain).unwrap();
    assert_eq!(link.reach(8, 0x2010, WRITE), Some(0x9010));
    unit.attach(B, &domain).unwrap();
    unit.block(A).unwrap();
    assert_eq!(link.reach(8, 0x2010, WRITE), None);
    assert_eq!(link.reach(16, 0x2010, WRITE), Some(0x9010));
    unit.block(B).unwrap();
    // There is no endpoint: the device has forgotten the domain, the driver has not.
    assert!(link.idle());
    unmap(&domain, 0x1000, 0x1fff).unwrap();
    map(&domain, 0x5000, 0x5000, 0x1000).unwrap();
    unit.attach(B, &domain).unwrap();
    let reach = |iova| link.reach(16, iova, READ);
    assert_eq!((reach(0x1000), reach(0x2000), reach(0x5fff)), (None, Some(0x9000), Some(0x5fff)));
    assert_eq!(domain.translate(Iova::new(0x2fff)).unwrap().pa.get(), 0x9fff);
}

#[test]
fn an_endpoint_moves_and_its_old_domain_goes() {
    let link = Link::new();
    let unit = start(&link);
    let (first, second) = (unit.domain().unwrap(), unit.domain().unwrap());
    map(&first, 0, 0x1000, 0x1000).unwrap();
    map(&second, 0, 0x2000, 0x1000).unwrap();
    unit.attach(A, &first).unwrap();
    unit.attach(A, &second).unwrap();
    unit.attach(A, &second).unwrap();
    assert_eq!(unit.counts().attach, 2);
    assert_eq!(link.reach(8, 0, READ), Some(0x2000));
    assert_eq!(Arc::strong_count(&first), 1);
    let id = first.number();
    drop(first);
    assert_eq!(unit.domain().unwrap().number(), id);
    unit.pass_through(A, all_memory()).unwrap();
    assert_eq!(link.reach(8, 0x77, READ), Some(0x77));
    unit.attach(A, &second).unwrap();
    assert_eq!(link.reach(8, 0, READ), Some(0x2000));
    drop(unit);
    assert!(link.idle());
    assert_eq!(Arc::strong_count(&second), 1);
}

#[test]
fn unmapping_a_part_makes_the_rest_anew() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map(&domain, 0, 0x10000, 0x4000).unwrap();
    map(&domain, 0x4000, 0x30000, 0x4000).unwrap();
    unmap(&domain, 0x3000, 0x4fff).unwrap();
    let reach = |iova| link.reach(8, iova, READ);
    assert_eq!((reach(0x2fff), reach(0x3000)), (Some(0x12fff), None));
    assert_eq!((reach(0x4fff), reach(0x5000)), (None, Some(0x31000)));
    unmap(&domain, 0x1000, 0x1fff).unwrap();
    let reach = |iova| link.reach(8, iova, READ);
    assert_eq!((reach(0xfff), reach(0x1000)), (Some(0x10fff), None));
    assert_eq!(reach(0x2000), Some(0x12000));
    // The device does not take the upper piece back at first: that is still owed.
    link.state().failures = [None, None, Some(Failure::Status(8))].into();
    let (mut owed, failed) = try_unmap(&domain, range(0x5000, 0x5fff));
    assert_eq!(failed, Err(IommuError::Refused { code: 8 }));
    assert_eq!(link.reach(8, 0x6000, READ), None);
    domain.sync(&mut owed).unwrap();
    assert_eq!(link.reach(8, 0x6000, READ), Some(0x32000));
    // Nothing is there to be cut at the edge of a mapping.
    let cut = domain.split(Iova::new(0x2000), &mut owed);
    let none = SplitError::NoBlock { iova: Iova::new(0x2000) };
    assert_eq!(cut, Err(none.into()));
}

#[test]
fn the_driver_checks_what_devices_do_not() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    map(&domain, 0x4000, 0, 0x2000).unwrap();
    let seen = link.state().seen.len();
    let why = |iova, pa, bytes| match map(&domain, iova, pa, bytes) {
        Err(DomainError::Map(error)) => error,
        other => panic!("{other:?}"),
    };
    let (iova, pa) = (Iova::new, PhysAddr::new);
    let none = domain.map_sg(iova(0), &[], RW, &mut Gather::new());
    assert_eq!(none, Err(TableMapError::Empty { iova: iova(0) }.into()));
    assert_eq!(why(1, 0, 4096), TableMapError::UnalignedIova { iova: iova(1) });
    let unaligned = |at, bytes| TableMapError::UnalignedMemory { pa: pa(at), bytes };
    assert_eq!(why(0, 2, 4096), unaligned(2, 4096));
    assert_eq!(why(0, 0, 4095), unaligned(0, 4095));
    let mapped = TableMapError::AlreadyMapped { iova: iova(0x4000) };
    assert_eq!(why(0x3000, 0, 0x10000), mapped);
    let mapped = TableMapError::AlreadyMapped { iova: iova(0x5000) };
    assert_eq!(why(0x5000, 0, 0x1000), mapped);
    let top = 0xffff_ffff_f000;
    assert_eq!(why(top, 0, 0x2000), TableMapError::IovaOutOfRange { iova: iova(top) });
    for access in [Access::empty(), Access::EXECUTE | Access::READ, Access::DEVICE] {
        let done = domain.map(iova(0), promised(pa(0), 4096), access, &mut Gather::new());
        assert!(matches!(done, Err(DomainError::Map(TableMapError::Access(_)))));
    }
    let unmap = |start, last| domain.unmap(range(start, last), &mut Gather::new());
    let not = |at| Err(TableUnmapError::NotMapped { iova: iova(at) }.into());
    assert_eq!(unmap(0x4000, 0x6fff), not(0x6000));
    assert_eq!(unmap(0x3000, 0x4fff), not(0x3000));
    let block = range(0x4000, 0x5fff);
    let split = TableUnmapError::NeedsSplit { block };
    assert_eq!(unmap(0x5000, 0x5fff), Err(split.into()));
    let failed = unmap(0x4000, 0x4ffe);
    assert!(matches!(failed, Err(DomainUnmapError::Unmap(TableUnmapError::Unaligned { .. }))));
    assert_eq!(link.state().seen.len(), seen);
    let stranger = StreamId::new(9);
    let none = Err(AttachError::NoSuchStream { stream: stranger });
    assert_eq!(unit.attach(stranger, &domain), none);
    assert_eq!((unit.block(stranger), unit.pass_through(stranger, all_memory())), (none, none));
    let other = Link::new();
    let other = start(&other);
    assert_eq!(other.attach(A, &domain), Err(AttachError::Mismatch));
}

#[test]
fn domains_run_out() {
    let link = Link::new();
    let unit = start(&link);
    let all: Vec<_> = core::iter::from_fn(|| unit.domain().ok()).collect();
    assert_eq!(all.len(), 9);
    assert_eq!(unit.domain().map(|_| ()), Err(IommuError::OutOfContexts));
}

#[test]
fn a_lost_attach_keeps_both_domains() {
    for failure in [Failure::Lost, Failure::Silent] {
        let link = Link::new();
        let unit = start(&link);
        let (old, new) = (unit.domain().unwrap(), unit.domain().unwrap());
        map(&old, 0, 0x1000, 0x1000).unwrap();
        unit.attach(A, &old).unwrap();
        link.state().failures.push_back(Some(failure));
        assert!(unit.attach(A, &new).is_err());
        let held = (Arc::strong_count(&old), Arc::strong_count(&new));
        assert_eq!(held, (2, 2), "{failure:?}");
        unit.block(A).unwrap();
        assert!(link.idle());
        assert_eq!((Arc::strong_count(&old), Arc::strong_count(&new)), (1, 1));
        unit.attach(A, &old).unwrap();
        assert_eq!(link.reach(8, 0, READ), Some(0x1000));
    }
}

#[test]
fn a_domain_in_doubt_keeps_its_number() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    let id = domain.number();
    unit.attach(A, &domain).unwrap();
    link.state().failures.push_back(Some(Failure::Lost));
    assert!(map(&domain, 0, 0, 4096).is_err());
    unit.block(A).unwrap();
    drop(domain);
    assert_ne!(unit.domain().unwrap().number(), id);
}

#[test]
fn refusals_leave_things_as_they_were() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    map(&domain, 0, 0x1000, 0x1000).unwrap();
    unit.attach(A, &domain).unwrap();
    for (failure, code) in [(Failure::Status(3), 3), (Failure::Status(200), 200)] {
        let refused = IommuError::Refused { code };
        link.state().failures.push_back(Some(failure));
        assert_eq!(map(&domain, 0x4000, 0, 4096), Err(refused.into()));
        assert_eq!(domain.translate(Iova::new(0x4000)), None);
        link.state().failures.push_back(Some(failure));
        let (mut owed, failed) = try_unmap(&domain, range(0, 4095));
        assert_eq!(failed, Err(refused));
        // It is still owed, and no other mapping gets the addresses.
        assert_eq!(link.reach(8, 0, READ), Some(0x1000));
        assert!(map(&domain, 0, 0x1000, 0x1000).is_err());
        domain.sync(&mut owed).unwrap();
        map(&domain, 0, 0x1000, 0x1000).unwrap();
        link.state().failures.push_back(Some(failure));
        assert_eq!(unit.block(A), Err(refused.into()));
    }
    link.state().failures.push_back(Some(Failure::Unwritten));
    let error = map(&domain, 0x4000, 0, 4096).unwrap_err();
    assert!(matches!(error, DomainError::Iommu(IommuError::Nonsense { .. })));
    // The first mapping is refused when the domain comes to life: the endpoint is blocked.
    unit.block(A).unwrap();
    link.state().failures = [None, Some(Failure::Status(3))].into();
    assert!(unit.attach(A, &domain).is_err());
    assert!(link.idle());
    unit.attach(A, &domain).unwrap();
    assert_eq!(link.reach(8, 0, READ), Some(0x1000));
}

#[test]
fn nonsense_in_the_configuration() {
    let with = |change: &dyn Fn(&mut link::State)| {
        let link = Link::new();
        change(&mut link.state());
        let started = Viommu::start(&link, Ticks::default(), Config::default());
        started.map(|_| ()).unwrap_err()
    };
    let offset = |error| match error {
        IommuError::Nonsense { offset, .. } => offset,
        other => panic!("{other:?}"),
    };
    assert_eq!(with(&|s| s.features = 0), IommuError::Unsupported);
    assert_eq!(offset(with(&|s| s.config[..8].fill(0))), 0);
    assert_eq!(offset(with(&|s| s.config[14] = 1)), 16);
    assert_eq!(offset(with(&|s| s.config[24] = 10)), 28);
    assert_eq!(offset(with(&|s| s.config[34] = 1)), 32);
    let gone = with(&|s| {
        s.features = u64::MAX;
        s.config.fill(0xff);
    });
    assert_eq!(gone, IommuError::Gone);
}

#[test]
fn reserved_addresses() {
    let link = Link::new();
    let unit = start(&link);
    // An unknown property, the message window, one of unknown kind, the end.
    let mut list = vec![9, 0, 2, 0, 1, 2];
    list.extend([1, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0xe0, 0xfe, 0, 0, 0, 0]);
    list.extend([0xff, 0xff, 0xef, 0xfe, 0, 0, 0, 0]);
    link.state().properties = Some(list.clone());
    let found = unit.reserved(A).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ReservedKind::Interrupts);
    assert_eq!(found[0].range.start(), Iova::new(0xfee0_0000));
    assert_eq!(found[0].range.last(), Iova::new(0xfeef_ffff));
    // One that is longer than the rest of the list, and one that is too short.
    for (at, length) in [(9, 2), (8, 19)] {
        let mut list = list.clone();
        list[at] = length;
        link.state().properties = Some(list);
        let error = unit.reserved(A).unwrap_err();
        assert!(matches!(error, AttachError::Iommu(IommuError::Nonsense { .. })));
    }
    let mut rng = fastrand::Rng::with_seed(seed());
    for _ in 0..2000 {
        link.state().properties = Some((0..64).map(|_| rng.u8(..4)).collect());
        let _ = unit.reserved(A);
    }
}

#[test]
fn faults_say_who_where_and_why() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    let at = Iova::new(0x1000);
    let mut owed = Gather::new();
    domain.map(at, promised(PhysAddr::new(0), 4096), Access::READ, &mut owed).unwrap();
    unit.attach(A, &domain).unwrap();
    let next = |reason: u8, flags: u32, endpoint: u32, address: u64, written| {
        let mut bytes = [0; 24];
        bytes[0] = reason;
        bytes[4..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..12].copy_from_slice(&endpoint.to_le_bytes());
        bytes[16..].copy_from_slice(&address.to_le_bytes());
        link.state().faults.push_back((bytes, written));
        unit.next_fault()
    };
    let record = |event| match event {
        Ok(Some(FaultEvent::Fault(record))) => record,
        other => panic!("{other:?}"),
    };
    let blocked = record(next(1, 0x102, 16, 0x2004, 24));
    assert_eq!((blocked.stream, blocked.reason), (B, FaultReason::Blocked));
    assert_eq!(blocked.access, Some(FaultAccess::Write));
    assert_eq!(blocked.iova, Some(Iova::new(0x2004)));
    let missing = record(next(2, 0x101, 8, 0x2004, 24));
    assert_eq!(missing.reason, FaultReason::NotMapped);
    let forbidden = record(next(2, 0x102, 8, 0x1004, 24));
    assert_eq!(forbidden.reason, FaultReason::Permission);
    let unknown = record(next(77, 0, u32::MAX, u64::MAX, 24));
    assert_eq!(unknown.reason, FaultReason::Other { code: 77 });
    assert_eq!((unknown.iova, unknown.access), (None, None));
    assert!(next(2, 0, 8, 0, 23).is_err());
    assert_eq!(unit.next_fault(), Ok(None));
}

/// Random operations with random failures; the device reaches the mappings that the driver reports.
#[test]
fn random_operations() {
    const PAGES: u64 = 24;
    let mut rng = fastrand::Rng::with_seed(seed());
    let link = Link::new();
    let unit = start(&link);
    let domains: Vec<_> = (0..3).map(|_| unit.domain().unwrap()).collect();
    // By endpoint: its domain.
    let mut places: [Option<usize>; 2] = [None; 2];
    for round in 0..20_000 {
        if rng.u8(..10) == 0 {
            let status = Failure::Status(rng.u8(1..=8).max(1));
            link.state().failures = [Some(status)].into();
        } else {
            link.state().failures.clear();
        }
        let (which, start) = (rng.usize(..3), rng.u64(..PAGES));
        let count = rng.u64(1..6).min(PAGES - start);
        let (stream, place) = match rng.bool() {
            true => (A, 0),
            false => (B, 1),
        };
        match rng.u8(..8) {
            0..=2 => drop(map(&domains[which], start << 12, rng.u64(..64) << 12, count << 12)),
            3..=5 => {
                let range = range(start << 12, ((start + count) << 12) - 1);
                let (mut owed, _) = try_unmap(&domains[which], range);
                domains[which].sync(&mut owed).unwrap();
            }
            6 => match unit.attach(stream, &domains[which]) {
                Ok(()) => places[place] = Some(which),
                Err(_) if !link.attached(stream) => places[place] = None,
                Err(_) => {}
            },
            _ => {
                if unit.block(stream).is_ok() {
                    places[place] = None;
                }
            }
        }
        for (stream, at) in [(A, places[0]), (B, places[1])] {
            for page in 0..PAGES {
                let iova = page << 12 | 0x18;
                let reached = link.reach(stream.get(), iova, READ);
                let said = at.and_then(|at| domains[at].translate(Iova::new(iova)));
                let said = said.map(|found| found.pa.get());
                assert_eq!(reached, said, "round {round}, {stream:?}, {iova:#x}");
            }
        }
    }
}
