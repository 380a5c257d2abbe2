//! Records that were cut, changed, put together by hand, or made up.

use alloc::vec;
use alloc::vec::Vec;

use portolan::addr::{InvalTag, Iova, IovaRange, Pasid, PhysAddr, RequesterId, StreamId};
use portolan::iommu::handover::{
    DomainHandover, DomainTables, HandoverTarget, InterruptHandover, MemoryHandover,
    ReservedHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{
    Delivery, Destination, DeviceTlb, InterruptSource, InterruptTarget, Requester, Trigger, Vector,
};
use portolan::table::format::DirtyTracking;
use portolan_chips::fixture::seed;

use super::layout::{ENTRY, HEADER, SEAL, crc32};
use super::{PrepareError, Record, RecordError, RecordedKind, RecordedUnit, SectionError, write};

const ONE: PhysAddr = PhysAddr::new(0xfed9_0000);
const OTHER: PhysAddr = PhysAddr::new(0xfed9_1000);

fn range(first: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(first), Iova::new(last)).unwrap()
}

fn stream(stream: u32, pasid: Option<u32>, target: HandoverTarget) -> StreamHandover {
    let requester = Requester { stream: StreamId::new(stream), pasid: pasid.map(Pasid::new) };
    StreamHandover { requester, target, tlb: None }
}

/// One of each kind of source.
fn interrupts() -> Vec<InterruptHandover> {
    let vector = Vector::new(0x41).unwrap();
    let target = InterruptTarget::new(vector, Destination::Physical(0x1_0003));
    let mut level = InterruptTarget::new(vector, Destination::Logical(6));
    (level.delivery, level.trigger) = (Delivery::LowestPriority, Trigger::Level);
    let of = RequesterId::new(0x1234);
    let interrupt = |source, index, target| InterruptHandover { source, index, target };
    vec![
        interrupt(InterruptSource::Requester(of), 5, target),
        interrupt(InterruptSource::Requester(of), 0xffff, level),
        interrupt(InterruptSource::Device(of), 0, target),
        interrupt(InterruptSource::Buses { first: 2, last: 3 }, 1, target),
    ]
}

fn state() -> UnitHandover {
    let domain = |tag: u32, mapped: &[IovaRange]| DomainHandover {
        tag: InvalTag::new(tag),
        tables: DomainTables {
            root: PhysAddr::new(0x1000 * u64::from(tag)),
            levels: 4,
            input_lg2: 48,
            output_lg2: 46,
            dirty: if tag == 5 { DirtyTracking::Hardware } else { DirtyTracking::Off },
            pages: 7,
            mapped: mapped.to_vec(),
        },
    };
    let mut with_tlb = stream(9, Some(3), HandoverTarget::Domain(InvalTag::new(5)));
    with_tlb.tlb = Some(DeviceTlb { depth: 32, physical: 0x108, twice: true });
    UnitHandover {
        features: [1, 2, 3, 4],
        root: 0x7000_0000,
        shape: 6,
        interrupt_root: 0x9000_080f,
        queues: vec![MemoryHandover { at: PhysAddr::new(0x8000), bytes: 4096 }],
        domains: vec![domain(2, &[range(0, 0xfff), range(0x4000, 0x7fff)]), domain(5, &[])],
        streams: vec![
            stream(8, None, HandoverTarget::Everything),
            stream(9, None, HandoverTarget::Domain(InvalTag::new(2))),
            with_tlb,
            stream(10, None, HandoverTarget::Interrupts),
        ],
        reserved: vec![ReservedHandover {
            stream: StreamId::new(8),
            range: range(0xfee0_0000, 0xfeef_ffff),
        }],
        interrupts: interrupts(),
    }
}

fn units() -> [RecordedUnit; 2] {
    let one = RecordedUnit { base: ONE, kind: RecordedKind::Vtd, state: state() };
    [one, RecordedUnit { base: OTHER, kind: RecordedKind::Riscv, state: UnitHandover::default() }]
}

fn record() -> Vec<u8> {
    let mut into = vec![0xa5; 2048];
    let length = write(&units(), &mut into).unwrap();
    into.truncate(length);
    into
}

/// The states of the two units, or the reasons of their absence.
fn read(record: &[u8]) -> Result<[Result<UnitHandover, SectionError>; 2], RecordError> {
    let record = Record::read(record)?;
    Ok([(ONE, RecordedKind::Vtd), (OTHER, RecordedKind::Riscv)]
        .map(|(at, kind)| record.unit(at, kind)))
}

/// The record with the checksums that its bytes make.
pub(crate) fn sealed(mut record: Vec<u8>) -> Vec<u8> {
    let word = |record: &[u8], at: usize| {
        u32::from_le_bytes(record[at..at + 4].try_into().unwrap()) as usize
    };
    let units = word(&record, 12);
    for entry in (0..units).map(|unit| HEADER + ENTRY * unit) {
        let (offset, length) = (word(&record, entry + 12), word(&record, entry + 16));
        let crc = record.get(offset..offset + length).map_or(0, crc32);
        record[entry + 20..entry + 24].copy_from_slice(&crc.to_le_bytes());
    }
    let end = HEADER + units * ENTRY;
    let crc = crc32(&record[..end]);
    record[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    record
}

/// The record with some bytes of its sections changed, and checksums that fit.
pub(crate) fn damaged(rng: &mut fastrand::Rng, whole: &[u8]) -> Vec<u8> {
    let units = usize::from(whole[12]);
    let sections = HEADER + units * ENTRY + SEAL;
    let mut record = whole.to_vec();
    for _ in 0..=rng.u8(..3) {
        let at = rng.usize(sections..whole.len());
        record[at] = match rng.u8(..3) {
            0 => rng.u8(..),
            1 => record[at] ^ 1 << rng.u8(..8),
            _ => 0,
        };
    }
    sealed(record)
}

#[test]
fn the_checksum_is_that_of_ethernet() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn a_record_is_read_as_it_was_written_by_its_own_length() {
    let mut record = record();
    assert_eq!(Record::read(&record).unwrap().units(), 2);
    assert_eq!(read(&record), Ok([Ok(state()), Ok(UnitHandover::default())]));
    record.extend([0xff; 100]);
    assert_eq!(read(&record), Ok([Ok(state()), Ok(UnitHandover::default())]));
}

#[test]
fn a_record_without_room_is_not_written() {
    let needed = record().len();
    let mut into = vec![0; needed - 1];
    let room = needed - 1;
    assert_eq!(write(&units(), &mut into), Err(PrepareError::Room { needed, room }));
    assert!(into.iter().all(|byte| *byte == 0));
}

#[test]
fn a_record_of_another_version_is_refused_by_name() {
    let mut record = record();
    record[8] = 1;
    assert_eq!(read(&record), Err(RecordError::Version { version: 1 }));
    assert_eq!(read(b"nothing"), Err(RecordError::NoRecord));
}

#[test]
fn a_unit_that_is_absent_or_twice_or_another_kind_is_refused_alone() {
    let record = record();
    let read = Record::read(&record).unwrap();
    let nowhere = PhysAddr::new(0x1234);
    assert_eq!(read.unit(nowhere, RecordedKind::Vtd), Err(SectionError::Absent { base: nowhere }));
    assert_eq!(read.unit(ONE, RecordedKind::AmdVi), Err(SectionError::Kind { kind: 1 }));
    let mut twice = units();
    twice[1].base = ONE;
    let mut into = vec![0; 2048];
    write(&twice, &mut into).unwrap();
    let read = Record::read(&into).unwrap();
    assert_eq!(read.unit(ONE, RecordedKind::Vtd), Err(SectionError::Twice { base: ONE }));
}

#[test]
fn a_record_that_is_cut_or_changed_anywhere_is_refused_or_says_the_same() {
    let whole = record();
    let same = read(&whole).unwrap();
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "cut at {length}");
    }
    let sections = HEADER + 2 * ENTRY + SEAL;
    for at in 0..whole.len() {
        for change in [1, 0x80, 0xff] {
            let mut record = whole.clone();
            record[at] ^= change;
            match read(&record) {
                Err(_) => assert!(at < sections, "byte {at}"),
                // The other unit's section is not touched.
                Ok(units) => {
                    assert!(at >= sections, "byte {at}");
                    let refused = units.iter().filter(|unit| unit.is_err()).count();
                    let kept = units.iter().zip(&same).filter(|(unit, same)| unit == same).count();
                    assert_eq!((refused, kept), (1, 1), "byte {at}");
                }
            }
        }
    }
}

#[test]
fn ten_thousand_damaged_records_with_sound_checksums_are_refused_or_canonical() {
    let seed = seed();
    std::println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let whole = record();
    let mut accepted = 0;
    for _ in 0..10_000 {
        let record = damaged(&mut rng, &whole);
        if let Ok([Ok(one), Ok(other)]) = read(&record) {
            // What is read is written in the same way: nothing was passed over.
            let mut again = units();
            (again[0].state, again[1].state) = (one, other);
            let mut into = vec![0; 2048];
            let length = write(&again, &mut into).unwrap();
            assert_eq!(into[..length], record);
            accepted += 1;
        }
    }
    assert!((1000..9000).contains(&accepted), "{accepted}");
}

#[test]
fn counts_beyond_the_section_take_no_memory() {
    for word in 7..12 {
        let mut record = record();
        let at = HEADER + 2 * ENTRY + SEAL + word * 8;
        record[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let [one, other] = read(&sealed(record)).unwrap();
        assert!(matches!(one, Err(SectionError::Word { .. })), "{one:?}");
        assert_eq!(other, Ok(UnitHandover::default()));
    }
}
