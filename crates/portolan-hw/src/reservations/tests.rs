//! Reservations that are taken over from tables, and those that are ignored, with the reason.

extern crate std;

use std::vec;
use std::vec::Vec;

use portolan::addr::{Iova, IovaRange};
use portolan::iommu::ReservedKind;
use portolan::table::Access;

use super::*;
use crate::table_bytes::{self, table};
use portolan::addr::{PciSegment, RequesterId};
use portolan_tables::dmar::{self, Dmar};
use portolan_tables::iort::{self, Iort};
use portolan_tables::ivrs::{self, Ivrs};

const RW: Access = Access::READ.union(Access::WRITE);
/// The function 0:14.0, by its stream.
const DEVICE: StreamId = RequesterId::of(0, 0x14, 0).stream();

/// A claim of memory from its first byte to its last.
type Claim = (u64, u64);

fn region(start: u64, last: u64, kind: ReservedKind) -> ReservedRegion {
    let range = IovaRange::new(Iova::new(start), Iova::new(last)).unwrap();
    ReservedRegion { range, kind }
}

fn direct(start: u64, last: u64) -> ReservedRegion {
    region(start, last, ReservedKind::Direct(RW))
}

/// DMAR of a machine with `address_lg2` bits: an RMRR for each claim, for [`DEVICE`].
fn dmar_with(address_lg2: u8, claims: &[Claim]) -> Vec<u8> {
    let mut body = vec![address_lg2 - 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (start, last) in claims {
        body.extend([1, 0, 32, 0, 0, 0, 0, 0]);
        body.extend(start.to_le_bytes());
        body.extend(last.to_le_bytes());
        body.extend([1, 8, 0, 0, 0, 0, 0x14, 0]);
    }
    table(dmar::SIGNATURE, &body)
}

/// IVRS with 48 bits of physical addresses: an IVMD for each claim, for all devices.
fn ivrs_with(claims: &[Claim]) -> Vec<u8> {
    let mut body = (48u32 << 8).to_le_bytes().to_vec();
    body.extend([0; 8]);
    for (start, last) in claims {
        body.extend([0x20, 0b0111, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        body.extend(start.to_le_bytes());
        let bytes = last.wrapping_sub(*start).wrapping_add(1);
        body.extend(bytes.to_le_bytes());
    }
    table(ivrs::SIGNATURE, &body)
}

/// IORT with an SMMUv3 at 48 and an RMR for each claim, for its streams `first` to `first + more`.
fn iort_with(first: u32, more: u32, claims: &[Claim]) -> Vec<u8> {
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut body = words(&[1 + claims.len() as u32, 48, 0]);
    body.extend([4, 68, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body.extend(words(&[0x905_0000, 0, 9, 0, 0, 0, 0, 106, 107, 109, 108, 2, 0]));
    for (start, last) in claims {
        let bytes = last.wrapping_sub(*start).wrapping_add(1);
        body.extend([6, 68, 0, 3, 0, 0, 0, 0]);
        // One mapping at 48, flags of normal memory, one piece at 28.
        body.extend(words(&[1, 48, 5 << 2, 1, 28]));
        body.extend(start.to_le_bytes());
        body.extend(bytes.to_le_bytes());
        body.extend(words(&[0, 0, more, first, 48, 0]));
    }
    table(iort::SIGNATURE, &body)
}

/// The reservations that are taken over of each table with the same claims, and the first error.
fn of_all(claims: &[Claim]) -> [(Reservations, Result<(), Ignored>); 3] {
    let mut all = [const { Reservations::new(Limits::USUAL) }; 3];
    let [intel, amd, arm] = &mut all;
    let bytes = dmar_with(48, claims);
    let dmar = Dmar::parse(&bytes).unwrap();
    let segment = PciSegment::new(0);
    let said = [
        intel.read(dmar.reserved(segment, Streams::ALL, |_| None)),
        {
            let bytes = ivrs_with(claims);
            let ivrs = Ivrs::parse(&bytes).unwrap();
            amd.read(ivrs.reserved(segment, Streams::ALL))
        },
        {
            let bytes = iort_with(DEVICE.get(), 0, claims);
            let iort = Iort::parse(&bytes).unwrap();
            let unit = iort.node_at(0, 48).unwrap();
            arm.read(iort.reserved(&unit, Streams::ALL))
        },
    ];
    let mut said = said.into_iter();
    all.map(|one| (one, said.next().unwrap()))
}

fn of(reservations: &Reservations, stream: StreamId) -> Vec<ReservedRegion> {
    let mut found = Vec::new();
    reservations.of(stream, &mut |region| found.push(region));
    found
}

#[test]
fn overlapping_claims_of_each_table_become_one() {
    let claims = [
        (0x7000_0000, 0x7000_2fff),
        (0x7000_1000, 0x7000_3fff),
        (0x7000_0000, 0x7000_2fff),
        (0x7100_0123, 0x7100_0124),
    ];
    for (found, said) in of_all(&claims) {
        assert_eq!((said, found.left_out()), (Ok(()), LeftOut::default()));
        let wanted = [direct(0x7000_0000, 0x7000_3fff), direct(0x7100_0000, 0x7100_0fff)];
        assert_eq!(of(&found, DEVICE), wanted);
    }
}

/// Backwards, absent beyond the machine's addresses, and huge; sound claims beside them count.
#[test]
fn claims_that_make_no_sense_are_counted_and_the_rest_is_taken_over() {
    let sound = (0x7000_0000, 0x7000_0fff);
    for wrong in [
        (0x9000_0000, 0x8000_0000),
        (0x9000_0000, 0x8fff_ffff),
        (0x9000_0000, (4 << 32) + 0x9000_0000),
        (1 << 47, u64::MAX),
        (0, u64::MAX),
    ] {
        for (found, said) in of_all(&[wrong, sound]) {
            let LeftOut { count, first } = found.left_out();
            assert_eq!((count, said.err()), (1, first), "{wrong:x?}");
            assert!(first.is_some(), "{wrong:x?}");
            assert_eq!(of(&found, DEVICE), [direct(sound.0, sound.1)]);
        }
    }
}

#[test]
fn a_claim_longer_than_the_limit_is_too_large() {
    let claims = [(0x1000, (16 << 30) + 0xfff), (0x1000, (16 << 30) + 0x1000)];
    for (found, said) in of_all(&claims) {
        let Err(Ignored::TooLarge { reserved, most_bytes }) = said else {
            panic!("{said:?}");
        };
        assert_eq!(most_bytes, 16 << 30);
        assert_eq!(reserved.region, direct(claims[1].0, claims[1].1));
        assert_eq!(of(&found, DEVICE), [direct(claims[0].0, claims[0].1)]);
    }
}

#[test]
fn a_table_of_claims_without_end_is_given_up() {
    let claims: Vec<Claim> = (0..5000).map(|n| (n << 12, n << 12 | 0xfff)).collect();
    for (found, said) in of_all(&claims) {
        // A walk of its own ends sooner.
        assert!(said.is_err(), "{said:?}");
        assert_eq!(found.left_out().count, 1);
        assert!(found.iter().count() <= Limits::USUAL.most);
    }
}

#[test]
fn streams_beyond_the_last_are_nonsense_and_all_streams_are_a_range() {
    let claim = [(0x7000_0000, 0x7000_0fff)];
    let read = |first, more| {
        let bytes = iort_with(first, more, &claim);
        let iort = Iort::parse(&bytes).unwrap();
        let unit = iort.node_at(0, 48).unwrap();
        let mut found = Reservations::default();
        let said = found.read(iort.reserved(&unit, Streams::ALL));
        (said, found)
    };
    let (said, found) = read(0, u32::MAX);
    assert_eq!(said, Ok(()));
    let all: Vec<_> = found.iter().map(|one| one.streams).collect();
    assert_eq!(all, [Streams::ALL]);
    let (said, found) = read(2, u32::MAX);
    assert!(matches!(said, Err(Ignored::Table(_))), "{said:?}");
    assert_eq!(of(&found, DEVICE), []);
}

#[test]
fn streams_cover_those_that_lie_inside() {
    let streams = |first, last| Streams::new(StreamId::new(first), StreamId::new(last)).unwrap();
    let all = streams(4, 9);
    assert!(all.covers(all) && all.covers(streams(5, 8)));
    for other in [streams(3, 8), streams(5, 10), streams(0, 2), streams(0, 20)] {
        assert!(!all.covers(other), "{other:?}");
    }
}

#[test]
fn regions_that_a_stream_cannot_both_have_are_refused_for_that_stream_alone() {
    let mut found = Reservations::default();
    let other = Reserved::one(DEVICE, direct(0x7000_0000, 0x7000_0fff));
    found.add(other).unwrap();
    let registers = ReservedKind::Direct(RW | Access::DEVICE);
    for kind in [ReservedKind::Interrupts, ReservedKind::Unusable, registers] {
        let reserved = Reserved::everywhere(region(0x7000_0800, 0x7000_1fff, kind));
        let torn = Ignored::Contradiction { reserved, other };
        assert_eq!(found.add(reserved), Err(torn));
        let elsewhere = Reserved::one(StreamId::new(7), reserved.region);
        assert_eq!(Reservations::default().add(elsewhere), Ok(()));
    }
    let reserved = Reserved::one(DEVICE, region(0, 0xfff, ReservedKind::Direct(Access::empty())));
    assert_eq!(found.add(reserved), Err(Ignored::NoAccess { reserved }));
    assert_eq!(found.left_out().count, 4);
    // Hardware's own windows win.
    let window = region(0x7000_0000, 0x700f_ffff, ReservedKind::Interrupts);
    found.hold([window].into_iter());
    assert_eq!(of(&found, DEVICE), [window]);
    assert_eq!(found.left_out().count, 5);
}

#[test]
fn what_the_embedder_does_not_believe_is_counted() {
    let mut found = Reservations::default();
    let (low, high) = (direct(0x1000, 0x1fff), direct(0x7000_0000, 0x7000_0fff));
    for region in [low, high] {
        found.add(Reserved::everywhere(region)).unwrap();
    }
    found.retain(|one| one.region.range.start().get() >= 1 << 20);
    assert_eq!(of(&found, DEVICE), [high]);
    let reserved = Reserved::everywhere(low);
    let first = Some(Ignored::NotBelieved { reserved });
    assert_eq!(found.left_out(), LeftOut { count: 1, first });
}

#[test]
fn as_many_are_read_as_are_allowed_and_those_that_repeat_others_count() {
    let limits = Limits { most: 3, ..Limits::USUAL };
    let one = |page: u64| Reserved::one(DEVICE, direct(page << 12, (page << 12) + 0xfff));
    let mut reserved = Reservations::new(limits);
    let added = [1, 1, 2].map(|page| reserved.add(one(page)));
    assert_eq!(added, [Ok(()); 3]);
    let most = 3;
    assert_eq!(reserved.add(one(3)), Err(Ignored::TooMany { most }));
    assert_eq!(reserved.iter().count(), 2);
    // Ignored ones count as well, and nothing is read behind one too many.
    let mut reserved = Reservations::new(limits);
    let nonsense = TableError::Nonsense { offset: 48, value: 7 };
    let mut read = 0;
    let found = [Err(nonsense), Ok(one(1)), Ok(one(2)), Ok(one(3)), Ok(one(4))];
    let found = found.into_iter().inspect(|_| read += 1);
    assert_eq!(reserved.read(found), Err(Ignored::Table(nonsense)));
    assert_eq!((read, reserved.iter().count()), (4, 2));
    assert_eq!(reserved.left_out().count, 2);
}

#[test]
fn a_reservation_is_told_with_its_streams() {
    let streams = Streams::new(StreamId::new(0x20), StreamId::new(0x2f)).unwrap();
    let region = direct(0x7000_0000, 0x7000_0fff);
    let told = std::format!("{}", Reserved { streams, region });
    assert!(told.contains("0x70000000"), "{told}");
    assert!(told.ends_with(" of streams 0x20..=0x2f"), "{told}");
}

/// A driver maps regions that devices are to reach only with the word of the embedder; regions that
/// keep addresses free need none.
#[test]
fn a_driver_takes_no_region_for_devices_without_a_promise() {
    let range = IovaRange::page(Iova::new(0x9000_0000), PageSize::SIZE_4K);
    let kind = ReservedKind::Direct(Access::READ);
    let used = Reserved::everywhere(ReservedRegion { range, kind });
    let range = IovaRange::page(Iova::new(0x8000_0000), PageSize::SIZE_4K);
    let kind = ReservedKind::Unusable;
    let closed = Reserved::everywhere(ReservedRegion { range, kind });
    let mut found = Reservations::default();
    found.read([Ok(used), Ok(closed)]).unwrap();
    let mut believed = found.clone();
    found.within(52);
    assert_eq!(found.iter().collect::<Vec<_>>(), [&closed]);
    let left_out = found.left_out();
    let reserved = used;
    assert_eq!(left_out.first, Some(Ignored::NotBelieved { reserved }));
    assert_eq!(left_out.count, 1);
    believed.believe(crate::promise::tests::described());
    believed.within(52);
    assert_eq!(believed.iter().collect::<Vec<_>>(), [&used, &closed]);
}

/// Takes over the memory that mutated tables reserve: that of one stream is in order and apart.
#[test]
fn mutated_tables_reserve_regions_that_are_apart() {
    let mut rng = fastrand::Rng::with_seed(portolan_chips::fixture::seed());
    let tables = [table_bytes::dmar_bytes(), table_bytes::ivrs_bytes(), table_bytes::iort_bytes()];
    for _ in 0..20_000 {
        let mut bytes = tables[rng.usize(..tables.len())].clone();
        for _ in 0..rng.usize(1..5) {
            let at = rng.usize(10..bytes.len());
            bytes[at] = rng.u8(..);
        }
        table_bytes::reseal(&mut bytes);
        let mut found = Vec::new();
        if let Ok(dmar) = Dmar::parse(&bytes) {
            found.extend(dmar.reserved(PciSegment::new(0), Streams::ALL, |_| Some(1)));
        }
        if let Ok(ivrs) = Ivrs::parse(&bytes) {
            found.extend(ivrs.reserved(PciSegment::new(0), Streams::ALL));
        }
        if let Ok(iort) = Iort::parse(&bytes) {
            let nodes = iort.nodes().flatten();
            found.extend(nodes.flat_map(|node| iort.reserved(&node, Streams::ALL)));
        }
        let mut reservations = Reservations::default();
        let read = reservations.read(found);
        assert_eq!(read.is_err(), reservations.left_out().count > 0);
        for one in reservations.iter() {
            let mut before = None;
            reservations.of(one.streams.first(), &mut |region| {
                assert!(before < Some(region.range.start()), "{region}");
                before = Some(region.range.last());
            });
        }
    }
}
