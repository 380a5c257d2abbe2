//! State that real chips, their boards and earlier kernels leave behind.

use super::*;
use crate::promise::tests::{all_memory, described, promised};
use crate::reservations::{Reservations, Reserved};
use core::sync::atomic::AtomicU64;
use portolan::addr::{PageSize, PhysRange};
use portolan::iommu::{Awaited, ReservedKind, ReservedRegion};
use portolan::platform::{OutOfTableMemory, TableMem, UnitParts};
use portolan_chips::machine::Event;
use portolan_chips::smmuv3::{Pages, SmmuIdentification, SmmuSetup};
use portolan_spec::smmuv3::ste;
use portolan_tables::overrides::CoherencyOverride;
use spin::Mutex;

/// Registers by number: GERROR_IRQ_CFG0, EVENTQ_IRQ_CFG0, PRIQ_IRQ_CFG0.
const MESSAGES: [usize; 3] = [0x68, 0xb0, 0xd0];

/// A full unit that `change` was done to.
pub(super) fn changed(
    config: Config,
    change: impl FnOnce(&mut SmmuIdentification),
) -> (SmmuMachine, Driver) {
    let mut id = FULL;
    change(&mut id);
    let unit = machine(id);
    let driver = unit.enable(config).unwrap();
    (unit, driver)
}

#[test]
fn addresses_of_interrupt_messages_do_not_survive() {
    let wired = Config { interrupts: Want::IfThere, ..config() };
    let mut id = FULL;
    id.idr[0] |= MSI;
    let unit = machine(id);
    for offset in MESSAGES {
        unit.write32(offset, 0xdead_0000);
        unit.write32(offset + 4, 0xff);
    }
    unit.write32(reg::IRQ_CTRL, 7);
    let _driver = unit.enable(wired).unwrap();
    assert_eq!(unit.reg32(reg::IRQ_CTRL), 7);
    for offset in MESSAGES {
        let words = [offset, offset + 4].map(|offset| unit.reg32(offset));
        assert_eq!(words, [0, 0], "{offset:#x}");
    }
    // They must not be written while their interrupts are enabled (6.3.21).
    unit.expect_obedience();
}

#[test]
fn accesses_are_aborted_before_and_after() {
    let (unit, driver) = changed(config(), |_| ());
    let enables = |unit: &SmmuMachine| (unit.reg32(0x44), unit.reg32(0x20));
    // GBPA.ABORT; SMMUEN, PRIQEN, EVENTQEN, CMDQEN and ATSCHK.
    assert_eq!(enables(&unit), (1 << 20, 0b1_1111));
    driver.disable().unwrap();
    assert_eq!(enables(&unit), (1 << 20, 0));
    let bypass = Config { when_disabled: WhenDisabled::Bypass(all_memory()), ..config() };
    let (unit, driver) = changed(bypass, |_| ());
    assert_eq!(enables(&unit).0, 1 << 20);
    driver.disable().unwrap();
    assert_eq!(enables(&unit), (0, 0));
}

#[test]
fn a_unit_that_needs_syncs_often_gets_them() {
    for (identity, most) in [(0, 1_000), (0x4870_043b, 62)] {
        let (unit, driver) = changed(config(), |id| {
            id.iidr = identity;
            // Without ranges, so that there are many commands.
            id.idr[3] = 0;
            id.idr[1] = 8 << 21 | 4 << 16 | 16;
        });
        let domain = first(&driver);
        let mut owed = Gather::new();
        let (start, bytes) = (Iova::new(0x20_1000), 300 << 12);
        let range =
            domain.map(start, promised(PhysAddr::new(0), bytes), Access::READ, &mut owed).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        unit.take_log();
        domain.sync(&mut owed).unwrap();
        let log = unit.take_log();
        let runs = log.split(|words| words[0] & 0xff == op::SYNC);
        let longest = runs.map(<[_]>::len).max().unwrap();
        assert!(longest <= most, "{identity:#x}: {longest}");
        assert!(identity != 0 || longest > 64, "{longest}");
    }
}

#[test]
fn a_guest_s_table_that_the_unit_cannot_read_is_refused() {
    // IDR1.SSIDSIZE is 4; IDR0.CD2L is as said.
    let nested = |cd2l: u32, format, lg2| {
        let (_unit, driver) = changed(config(), |id| {
            let (idr0, idr1) = (FULL.idr[0], FULL.idr[1]);
            let two_level = (idr0 & !(1 << 19)) | cd2l << 19;
            id.idr[0] = two_level;
            let substreams = (idr1 & !(0x1f << 6)) | 4 << 6;
            id.idr[1] = substreams;
        });
        let guest = GuestContexts {
            table: Iova::new(0x8000_0040),
            format,
            lg2,
            without: WithoutSubstream::First,
        };
        driver.attach_nested(STREAM, &second(&driver), &guest)
    };
    let unsupported = Err(AttachError::Iommu(IommuError::Unsupported));
    let (linear, two_level) = (GuestFormat::Linear, GuestFormat::TwoLevel4K);
    assert_eq!(nested(0, linear, 4), Ok(()));
    assert_eq!(nested(0, linear, 5), unsupported);
    assert_eq!(nested(0, two_level, 4), unsupported);
    assert_eq!(nested(1, two_level, 4), Ok(()));
}

#[test]
fn nesting_is_refused_where_it_is_broken() {
    let guest = GuestContexts {
        table: Iova::new(0x8000_0040),
        format: GuestFormat::Linear,
        lg2: 0,
        without: WithoutSubstream::First,
    };
    for (identity, works) in
        [(0x4831_043b, false), (0x4832_043b, true), (0x4871_043b, false), (0x4871_143b, true)]
    {
        let (_unit, driver) = changed(config(), |id| {
            id.iidr = identity;
        });
        let nested = driver.attach_nested(STREAM, &second(&driver), &guest);
        let unsupported = Err(AttachError::Iommu(IommuError::Unsupported));
        let wanted = if works { Ok(()) } else { unsupported };
        assert_eq!(nested, wanted, "{identity:#x}");
        // Each stage alone works.
        driver.attach(STREAM, &second(&driver)).unwrap();
        driver.attach(STREAM, &first(&driver)).unwrap();
    }
}

#[test]
fn firmware_s_word_on_coherency_counts() {
    use CoherencyOverride::{AsRegistersSay, Coherent, NotCoherent};
    let coherent = |said: u32, coherency| {
        let board = Config { coherency, ..config() };
        let (unit, driver) = changed(board, |id| {
            id.idr[0] = FULL.idr[0] & !(1 << 4) | said << 4;
        });
        let attributes = unit.reg32(reg::CR1);
        driver.attach(STREAM, &first(&driver)).unwrap();
        let entry = unit.entry(STREAM.get()).unwrap();
        let cached = driver.features().coherent;
        assert_eq!(attributes, if cached { 0xd75 } else { 0x820 });
        assert_eq!(ste::S1CIR.get(&entry), u64::from(cached));
        cached
    };
    assert_eq!([0, 1].map(|said| coherent(said, AsRegistersSay)), [false, true]);
    assert_eq!([0, 1].map(|said| coherent(said, Coherent)), [true, true]);
    assert_eq!([0, 1].map(|said| coherent(said, NotCoherent)), [false, false]);
}

#[test]
fn indices_of_a_unit_without_a_second_page_are_in_the_first() {
    let board = Config { pages: RegisterPages::OnlyFirst, ..config() };
    let unit = kit::of(SmmuSetup {
        identification: FULL,
        pages: Pages::OnlyFirst,
        ..SmmuSetup::default()
    });
    let driver = unit.enable(board).unwrap();
    assert_eq!(driver.next_fault(), Ok(None));
    assert_eq!(driver.next_page_request(), Ok(None));
    unit.record([0x10, 0, 0, 0]);
    assert!(matches!(driver.next_fault(), Ok(Some(FaultEvent::Fault(_)))));
    assert_eq!(unit.reg32(0xac), 1);
    unit.expect_obedience();
}

#[test]
fn a_device_that_fills_the_event_queue_is_silenced() {
    let (unit, driver) = setup();
    driver.attach(STREAM, &first(&driver)).unwrap();
    driver.silence(STREAM).unwrap();
    // Valid, and all accesses are aborted without a record.
    assert_eq!(unit.entry(STREAM.get()).unwrap()[0] & 0xf, 1);
    driver.block(STREAM).unwrap();
    assert_eq!(unit.entry(STREAM.get()).unwrap()[0] & 1, 0);
}

#[test]
fn substreams_of_a_stream_that_was_passed_through_are_looked_at() {
    let (unit, driver) = setup();
    driver.enable_pasids(STREAM, 4).unwrap();
    driver.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(unit.entry(STREAM.get()).unwrap()[0] & 0xf, 0b1001);
    let domain = first(&driver);
    driver.attach_pasid(STREAM, Pasid::new(3), &domain).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!((entry[0] & 0xf, entry[0] >> 59), (0b1011, 4));
    assert_eq!(entry[1] & 3, 1, "accesses without a substream pass through still");
    let descriptor = unit.descriptor(&entry, 3).unwrap();
    assert_eq!(descriptor[1], domain.table().root().get());
}

#[test]
fn a_guest_s_reserved_bits_do_not_reach_the_unit() {
    let (unit, driver) = setup();
    let guest = GuestContexts {
        table: Iova::new(0x8000_0040),
        format: GuestFormat::Linear,
        lg2: 0,
        without: WithoutSubstream::First,
    };
    let domain = second(&driver);
    driver.attach_nested(STREAM, &domain, &guest).unwrap();
    unit.take_log();
    let words = |code| [code | !0xff, u64::MAX];
    let commands = [op::TLBI_NH_VAA, op::TLBI_NH_VA, op::CFGI_CD].map(words);
    driver.guest_commands(STREAM, &commands).unwrap();
    let log = unit.take_log();
    let (vmid, stream) = (1 << 32, 0x1234 << 32);
    let range = 0x1f << 12 | 0x3f << 20;
    let address = u64::MAX << 12 | 0xf00 | 1;
    assert_eq!(log[0], [op::TLBI_NH_VAA | vmid | range, address]);
    let asid = 0xffff << 48;
    assert_eq!(log[1], [op::TLBI_NH_VA | asid | vmid | range, address]);
    assert_eq!(log[2], [op::CFGI_CD | stream | 0xfffff << 12, 1]);
}

fn at_work(streams: &[StreamId]) -> alloc::vec::Vec<AtWork> {
    let all = all_memory();
    let of = |&stream| AtWork { stream, all };
    streams.iter().map(of).collect()
}

#[test]
fn devices_that_firmware_has_at_work_go_on_from_the_start() {
    let memory_at = |start, last| IovaRange::new(Iova::new(start), Iova::new(last)).unwrap();
    let direct = ReservedRegion {
        range: memory_at(0x9000_0000, 0x907f_ffff),
        kind: ReservedKind::Direct(Access::READ),
    };
    let doorbell =
        ReservedRegion { range: memory_at(0x0808_0000, 0x0808_ffff), kind: ReservedKind::Doorbell };
    let config = || Config {
        reserved: {
            let mut reserved = Reservations::default();
            reserved.believe(described());
            reserved.add(Reserved::everywhere(doorbell)).unwrap();
            reserved.add(Reserved::one(STREAM, direct)).unwrap();
            reserved
        },
        at_work: at_work(&[STREAM]),
        ..config()
    };
    let unit = machine(FULL);
    let driver = unit.enable(config()).unwrap();
    // The table was complete when the unit was told of it.
    assert_eq!(unit.take_codes().last(), Some(&op::SYNC));
    let entry = |stream| unit.entry(stream).map(|entry: [u64; 8]| entry[..2].to_vec());
    assert_eq!(entry(STREAM.get()), Some([9, 1 << 44].to_vec()));
    // It has not been named.
    assert_eq!(entry(7), None);
    let reserved = |stream| {
        let mut found = Vec::new();
        driver.reserved(stream, &mut |region| found.push(region));
        found
    };
    assert_eq!(reserved(STREAM), [doorbell, direct]);
    assert_eq!(reserved(StreamId::new(7)), [doorbell]);
    // It moves like any other.
    driver.attach(STREAM, &first(&driver)).unwrap();
    driver.block(STREAM).unwrap();
    assert_eq!(entry(STREAM.get()), Some([0, 0].to_vec()));
    drop(driver);
    // A stream that no unit has: the others go on.
    let outside = Config { at_work: at_work(&[STREAM, StreamId::new(u32::MAX)]), ..config() };
    let driver = unit.enable(outside).unwrap();
    assert_eq!(entry(STREAM.get()), Some([9, 1 << 44].to_vec()));
    drop(driver);
    assert_eq!(unit.live(), 0);
}

/// A display goes from passing by the unit to passing through it where firmware leaves the unit
/// off.
#[test]
fn devices_at_work_behind_a_unit_that_is_off_are_not_aborted_meanwhile() {
    let unit = machine(FULL);
    let config = Config { at_work: at_work(&[STREAM]), ..config() };
    let _driver = unit.enable(config).unwrap();
    let log = unit.take();
    let position = |of: fn(&Event) -> bool| log.iter().position(of);
    let abort =
        position(|event| matches!(event, Event::Write(reg::GBPA, value) if value >> 20 & 1 == 1));
    let on = position(|event| matches!(event, Event::Write(reg::CR0, value) if value & 1 == 1));
    assert!(on.is_some() && (abort.is_none() || abort > on), "{abort:?}, {on:?}");
}

#[test]
fn streams_at_work_make_the_table_wide_enough() {
    let mut wide = FULL;
    wide.idr[1] = wide.idr[1] & !0x3f | 24;
    let unit = machine(wide);
    let stream = StreamId::new(0x7_0018);
    let config = Config { stream_lg2: 16, at_work: at_work(&[stream]), ..config() };
    let _driver = unit.enable(config).unwrap();
    assert_eq!(unit.entry(stream.get()).map(|entry: [u64; 8]| entry[0]), Some(9));
}

/// Table memory that a CPU's cache lies before.
struct Cached {
    memory: SmmuMachine,
    /// Ranges that the cache was made to drop.
    dropped: Mutex<Vec<PhysRange>>,
}

impl TableMem<AtomicU64> for Cached {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.memory.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.memory.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.memory.table(table, size)
    }

    fn invalidate(&self, bytes: PhysRange) {
        self.dropped.lock().push(bytes);
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}
}

#[test]
fn records_of_a_unit_that_does_not_snoop_are_read_past_the_cache() {
    use CoherencyOverride::{Coherent, NotCoherent};
    for (coherency, lines) in [(Coherent, 0), (NotCoherent, 2)] {
        let unit = machine(FULL);
        let cached = Arc::new(Cached { memory: unit.clone(), dropped: Mutex::default() });
        let board = Config { coherency, ..config() };
        let driver =
            Smmu::enable(unit.clone(), cached.clone(), UnitParts::new(unit.clone()), board)
                .unwrap();
        for event in 0..2 {
            unit.record([0x10 | event << 32, 0, 0, 0]);
        }
        while driver.next_fault().unwrap().is_some() {}
        let dropped = cached.dropped.lock();
        assert_eq!(dropped.len(), lines);
        for (event, bytes) in dropped.iter().enumerate() {
            let offsets = (bytes.start().get() & 0xfff, bytes.last().get() & 0xfff);
            assert_eq!(offsets, (event as u64 * 32, event as u64 * 32 + 31));
        }
    }
}

#[test]
fn a_stalled_access_whose_answer_finds_no_room_is_not_lost() {
    let (unit, driver) = setup();
    unit.drain(Drain::Never);
    let filler = [op::RESUME, 1];
    while driver.shared.queue.post(&filler) == Ok(true) {}
    unit.record([0x1234_0000_0010, 1 << 31 | 0x77, 0, 0]);
    let full = driver.next_fault().unwrap_err();
    let room = Awaited::QueueRoom;
    assert!(matches!(full, IommuError::TimedOut { awaited, .. } if awaited == room));
    unit.drain(SLOWLY);
    assert!(matches!(driver.next_fault(), Ok(Some(FaultEvent::Fault(_)))));
    driver.pass_through(StreamId::new(1), all_memory()).unwrap();
    let log = unit.take_log();
    let ended = log.iter().filter(|words| words[1] == 0x77);
    assert_eq!(ended.count(), 1);
    assert_eq!(driver.next_fault(), Ok(None));
}
