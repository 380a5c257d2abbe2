//! Streams that are at work, and domains that several callers prepare for them at a time.

use spin::Mutex;

use super::*;
use crate::chassis::tests::suite::{Driven, PAGE};
use crate::promise::tests::described;
use crate::reservations::{Reserved, Streams};
use portolan::addr::TableId;
use portolan::inval::{Flushed, SyncError, WrongTable};
use portolan::iommu::{DomainUnmapError, ReservedKind, Shadowing, SpaceClaim};
use portolan::platform::DmaMemory;
use portolan::table::Translation;
use portolan_chips::vtd::VtdMachine;

const STREAM: StreamId = StreamId::new(8);

fn pages(first: u64, end: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(first * PAGE), (end - first) * PAGE).unwrap()
}

#[test]
fn a_device_whose_addresses_are_only_kept_free_is_not_at_work() {
    let both = Access::READ_WRITE;
    let kinds =
        [ReservedKind::Unusable, ReservedKind::Direct(both), ReservedKind::DirectUntilDriven(both)];
    let mut reserved = Reservations::default();
    for (number, kind) in (0x21..).zip(kinds) {
        let start = Iova::new(u64::from(number) << 20);
        let range = IovaRange::new(start, Iova::new(start.get() + 0xfff)).unwrap();
        let region = ReservedRegion { range, kind };
        let one = Reserved::one(StreamId::new(number), region);
        reserved.add(one).unwrap();
    }
    // A claim to more streams than a device has.
    let [first, last] = [0x100, 0x110].map(StreamId::new);
    let region = reserved.iter().nth(1).unwrap().region;
    let streams = Streams::new(first, last).unwrap();
    reserved.add(Reserved { streams, region }).unwrap();
    assert_eq!(reserved.at_work().unwrap(), [0x22, 0x23].map(StreamId::new));
}

/// A domain in which another caller maps a range just before the next map.
struct Raced<D> {
    domain: D,
    other: Mutex<Option<(IovaRange, DmaMemory)>>,
}

impl<D: Domain> Domain for Raced<D> {
    fn id(&self) -> TableId {
        self.domain.id()
    }

    fn claim(&self) -> &SpaceClaim {
        self.domain.claim()
    }

    fn input_range(&self) -> IovaRange {
        self.domain.input_range()
    }

    fn granule(&self) -> PageSize {
        self.domain.granule()
    }

    fn grants(&self, access: Access) -> Option<Access> {
        self.domain.grants(access)
    }

    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[DmaMemory],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        self.domain.map_sg(iova, pieces, access, owed)
    }

    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable> {
        self.domain.absorb(into, from)
    }

    fn map(
        &self,
        iova: Iova,
        memory: DmaMemory,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        if let Some((range, memory)) = self.other.lock().take() {
            let its = &mut Gather::new();
            self.domain.map(range.start(), memory, Access::READ_WRITE, its).unwrap();
            self.domain.sync(its).unwrap();
        }
        self.domain.map(iova, memory, access, owed)
    }

    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), DomainUnmapError> {
        self.domain.unmap(range, owed)
    }

    fn sync(&self, owed: &mut Gather) -> Result<Flushed, SyncError<IommuError>> {
        self.domain.sync(owed)
    }

    fn shadowing(&self) -> Shadowing {
        self.domain.shadowing()
    }

    fn translate(&self, iova: Iova) -> Option<Translation> {
        self.domain.translate(iova)
    }
}

/// Two streams with the same memory are attached at a time: each maps it unless the other has.
#[test]
fn memory_that_another_caller_maps_meanwhile_is_not_in_the_way() {
    let mut reserved = Reservations::default();
    reserved.believe(described());
    let (range, kind) = (pages(0x100, 0x108), ReservedKind::Direct(Access::READ_WRITE));
    reserved.add(Reserved::one(STREAM, ReservedRegion { range, kind })).unwrap();
    let unit = VtdMachine::ordinary();
    let unit = unit.enable(VtdMachine::config()).unwrap();
    // All of it, its beginning, its middle and its end.
    for other in [(0x100, 0x108), (0x100, 0x103), (0x103, 0x105), (0x107, 0x108)] {
        let range = pages(other.0, other.1);
        let race = |memory| Raced {
            domain: VtdMachine::tables(&unit).unwrap(),
            other: Mutex::new(Some((range, memory))),
        };
        let same = race(of_firmware(range).unwrap());
        assert_eq!(reserved.map_into(STREAM, &same), Ok(()), "{other:x?}");
        assert!(same.other.lock().is_none(), "the other caller mapped nothing");
        for page in 0x100..0x108 {
            let found = same.translate(Iova::new(page * PAGE)).unwrap();
            assert_eq!(found.pa.get(), page * PAGE, "{other:x?}");
        }
        // To other memory.
        let elsewhere = pages(other.0 + 0x1000, other.1 + 0x1000);
        let apart = race(of_firmware(elsewhere).unwrap());
        assert_eq!(reserved.map_into(STREAM, &apart), Err(AttachError::Mismatch));
    }
}
