//! Features that units lack, requests that are refused before anything is written, and words that
//! are rare.

use super::chips::changed;
use super::*;
use crate::promise::tests::all_memory;
use crate::smmuv3::features::TableUpdate;
use portolan::table::format::{DirtyTracking, Format as _, SplitRule};
use portolan_spec::smmuv3::{cd, ste};

const OTHER: StreamId = StreamId::new(0x77);
const UNSUPPORTED: AttachError = AttachError::Iommu(IommuError::Unsupported);
const MISMATCH: AttachError = AttachError::Mismatch;

fn guest(table: u64) -> GuestContexts {
    GuestContexts {
        table: Iova::new(table),
        format: GuestFormat::Linear,
        lg2: 0,
        without: WithoutSubstream::First,
    }
}

#[test]
fn a_guest_s_table_is_aligned_to_64_bytes_and_below_52_bits() {
    let (unit, driver) = setup();
    let domain = second(&driver);
    for table in [1, 0x20, 0x8000_0020, 1 << 52, u64::MAX] {
        let refused = driver.attach_nested(STREAM, &domain, &guest(table));
        assert_eq!(refused, Err(MISMATCH), "{table:#x}");
    }
    let last = (1 << 52) - 64;
    driver.attach_nested(STREAM, &domain, &guest(last)).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(ste::S1CONTEXTPTR.get(&entry) << 6, last);
    // The guest's accesses do not stall where the unit lets software choose, and software has not
    // chosen it.
    assert_eq!((ste::S1STALLD.get(&entry), ste::S2S.get(&entry)), (1, 0));
    driver.block(STREAM).unwrap();
    driver.enable_stalls(STREAM).unwrap();
    driver.attach_nested(STREAM, &domain, &guest(last)).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!((ste::S1STALLD.get(&entry), ste::S2S.get(&entry)), (0, 1));
    let (unit, driver) = changed(config(), |id| {
        id.idr[0] = FULL.idr[0] | 1 << 24;
    });
    let domain = second(&driver);
    driver.attach_nested(STREAM, &domain, &guest(64)).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(ste::S1STALLD.get(&entry), 0);
}

#[test]
fn each_command_that_a_guest_may_give_names_its_own_stream_or_number() {
    let (unit, driver) = setup();
    let domain = second(&driver);
    driver.attach_nested(STREAM, &domain, &guest(64)).unwrap();
    unit.take_log();
    // Another stream, and another VMID, as the guest knows them.
    let (streams, numbers) = (0x99 << 32, 0x55 << 32);
    let commands = [
        [0x06 | streams, 0],
        [0x40 | streams, 0x5000 | 3],
        [0x10 | numbers, 0],
        [0x11 | numbers | 7 << 48, 0],
    ];
    driver.guest_commands(STREAM, &commands).unwrap();
    let (stream, vmid) = (0x1234 << 32, 1 << 32);
    let expected = [
        [0x06 | stream, 0],
        [0x40 | stream, 0x5000 | 3],
        [0x10 | vmid, 0],
        [0x11 | vmid | 7 << 48, 0],
        [op::SYNC, 0],
    ];
    assert_eq!(unit.take_log(), expected);
}

#[test]
fn a_unit_with_a_hypervisor_s_translations_is_rid_of_them_as_well() {
    let (unit, _driver) = changed(config(), |id| {
        id.idr[0] = FULL.idr[0] | 1 << 9;
    });
    let codes = unit.take_codes();
    // TLBI_EL2_ALL is 0x20, TLBI_NSNH_ALL 0x30.
    assert!(codes.contains(&0x20) && codes.contains(&0x30), "{codes:x?}");
    let (unit, _driver) = setup();
    assert!(!unit.take_codes().contains(&0x20));
    // Invalid stream numbers are recorded, and invalidations of processors are not heard.
    assert_eq!(unit.reg32(0x2c), 0b110);
}

#[test]
fn the_largest_page_of_a_granule_is_named_with_its_level() {
    let (unit, driver) = setup();
    let domain = first(&driver);
    unit.take_log();
    let page = |lg2| {
        Step::Invalidate(Command::Page {
            context: domain.context(),
            iova: Iova::new(0),
            size: PageSize::of_lg2(lg2),
            depth: Depth::LeafOnly,
        })
    };
    let steps = [12, 21, 25, 29, 30].map(page).into_iter();
    driver.queue().pay(&mut steps.chain([Step::Sync]), TablesLeft::ByDepth).unwrap();
    // TG in bits 11:10, TTL in 9:8; the leaf.
    let words = unit.take_log();
    let found: Vec<u64> = words[..5].iter().map(|words| words[1] & 0xfff).collect();
    assert_eq!(found, [1, 1, 0xa01, 0xe01, 0x501]);
}

#[test]
fn the_last_substream_has_a_descriptor_of_its_own() {
    let (unit, driver) = setup();
    driver.enable_pasids(STREAM, 12).unwrap();
    for pasid in [1, 0x3ff, 0x400, 0xfff] {
        let domain = first(&driver);
        driver.attach_pasid(STREAM, Pasid::new(pasid), &domain).unwrap();
        let entry = unit.entry(STREAM.get()).unwrap();
        let descriptor = unit.descriptor(&entry, pasid).unwrap();
        assert_eq!(descriptor[1], domain.table().root().get(), "{pasid:#x}");
    }
    let domain = first(&driver);
    for pasid in [0, 0x1000] {
        let refused = driver.attach_pasid(STREAM, Pasid::new(pasid), &domain);
        assert_eq!(refused, Err(MISMATCH));
    }
}

#[test]
fn a_stream_has_as_many_substreams_as_the_unit_at_most_and_keeps_their_number() {
    let (_unit, driver) = setup();
    for lg2 in [0, 13, 20, 64] {
        assert_eq!(driver.enable_pasids(STREAM, lg2), Err(UNSUPPORTED));
    }
    assert_eq!(driver.enable_pasids(STREAM, 12), Ok(()));
    assert_eq!(driver.enable_pasids(STREAM, 12), Ok(()));
    assert_eq!(driver.enable_pasids(STREAM, 11), Err(MISMATCH));
    // Not while it is attached.
    driver.attach(OTHER, &first(&driver)).unwrap();
    assert_eq!(driver.enable_pasids(OTHER, 4), Err(MISMATCH));
    // And only over a first stage.
    let domain = first(&driver);
    let pasid = Pasid::new(1);
    assert_eq!(driver.attach_pasid(OTHER, pasid, &domain), Err(MISMATCH));
    driver.attach(STREAM, &second(&driver)).unwrap();
    assert_eq!(driver.attach_pasid(STREAM, pasid, &domain), Err(MISMATCH));
}

#[test]
fn translations_of_its_own_are_for_a_blocked_device_however_it_is_blocked() {
    let (_unit, driver) = setup();
    driver.silence(STREAM).unwrap();
    assert_eq!(driver.enable_ats(STREAM, all_memory()), Ok(()));
    driver.pass_through(OTHER, all_memory()).unwrap();
    assert_eq!(driver.enable_ats(OTHER, all_memory()), Err(MISMATCH));
    driver.block(OTHER).unwrap();
    assert_eq!(driver.enable_ats(OTHER, all_memory()), Ok(()));
}

#[test]
fn a_device_that_is_gone_takes_no_other_s_translations_with_it() {
    let (unit, driver) = setup();
    let domain = first(&driver);
    for stream in [STREAM, OTHER] {
        driver.enable_ats(stream, all_memory()).unwrap();
        driver.attach(stream, &domain).unwrap();
    }
    driver.device_gone(STREAM).unwrap();
    unit.take_log();
    domain.sync(&mut debt(&*domain, 0x7000)).unwrap();
    let asked: Vec<u64> = unit
        .take_log()
        .iter()
        .filter(|words| words[0] & 0xff == op::ATC_INV)
        .map(|words| words[0] >> 32)
        .collect();
    assert_eq!(asked, [u64::from(OTHER.get())]);
}

#[test]
fn what_a_table_needs_of_the_unit_is_refused_where_it_is_missing() {
    let with = |idr0: u32, bbml: u32| {
        changed(config(), |id| {
            id.idr[0] = FULL.idr[0] | idr0;
            id.idr[3] = 1 << 10 | bbml << 11;
        })
        .1
    };
    // HTTU: none, access flags, dirty state too.
    let updates = [0, 1, 2, 3].map(|httu| with(httu << 6, 0).features().update);
    let dirty = TableUpdate::Dirty;
    assert_eq!(updates, [TableUpdate::None, TableUpdate::Access, dirty, dirty]);
    let hardware = SmmuDomainOptions { dirty: DirtyTracking::Hardware, ..OPTIONS() };
    let direct = SmmuDomainOptions { split: Some(SplitRule::Direct), ..OPTIONS() };
    for (httu, bbml, fits) in [(0, 0, [false; 2]), (2, 0, [true, false]), (1, 2, [false, true])] {
        let driver = with(httu << 6, bbml);
        let made = [&hardware, &direct].map(|options| driver.first_stage::<12>(options).is_ok());
        assert_eq!(made, fits);
        assert!(driver.first_stage::<12>(&OPTIONS()).is_ok());
    }
}

#[test]
fn a_descriptor_and_an_entry_say_their_granule() {
    let (unit, driver) = setup();
    // 4 KiB is 0, 64 KiB is 1, 16 KiB is 2.
    let tg0 = |unit: &SmmuMachine| {
        let entry = unit.entry(STREAM.get()).unwrap();
        cd::TG0.get(&unit.descriptor(&entry, 0).unwrap())
    };
    let s2tg = |unit: &SmmuMachine| ste::S2TG.get(&unit.entry(STREAM.get()).unwrap());
    let options = OPTIONS();
    driver.attach(STREAM, &first(&driver)).unwrap();
    assert_eq!(tg0(&unit), 0);
    let domain = driver.first_stage::<14>(&options).unwrap();
    driver.attach(STREAM, &Arc::new(domain)).unwrap();
    assert_eq!(tg0(&unit), 2);
    let domain = driver.first_stage::<16>(&options).unwrap();
    driver.attach(STREAM, &Arc::new(domain)).unwrap();
    assert_eq!(tg0(&unit), 1);
    driver.attach(STREAM, &second(&driver)).unwrap();
    assert_eq!(s2tg(&unit), 0);
    let domain = driver.second_stage::<14>(&options).unwrap();
    driver.attach(STREAM, &Arc::new(domain)).unwrap();
    assert_eq!(s2tg(&unit), 2);
    let domain = driver.second_stage::<16>(&options).unwrap();
    driver.attach(STREAM, &Arc::new(domain)).unwrap();
    assert_eq!(s2tg(&unit), 1);
}

#[test]
fn a_table_of_one_level_has_every_stream_blocked_as_is_wanted() {
    for (blocking, entry) in [(Blocking::Silent, 1), (Blocking::Recorded, 0)] {
        let board = Config { blocking, ..config() };
        let (unit, driver) = changed(board, |id| {
            // No two-level tables; streams of eight bits.
            id.idr[0] = FULL.idr[0] & !(1 << 27);
            id.idr[1] = FULL.idr[1] & !0x3f | 8;
        });
        for stream in 0..256 {
            assert_eq!(unit.entry(stream).unwrap()[0], entry, "{stream:#x}");
        }
        assert_eq!(unit.entry(256), None);
        for n in [0, 1, 255] {
            let stream = StreamId::new(n);
            driver.attach(stream, &first(&driver)).unwrap();
            assert_eq!(unit.entry(n).unwrap()[0] & 0xf, 0xb);
            driver.block(stream).unwrap();
        }
        let stream = StreamId::new(256);
        let none = Err(AttachError::NoSuchStream { stream });
        assert_eq!(driver.attach(stream, &first(&driver)), none);
    }
}

#[test]
fn tables_of_the_second_level_have_every_stream_blocked_as_is_wanted() {
    let board = Config { blocking: Blocking::Silent, ..config() };
    let (unit, driver) = changed(board, |_| {});
    driver.attach(StreamId::new(0x180), &first(&driver)).unwrap();
    // 256 streams have one table.
    for stream in (0x100..0x200).filter(|stream| *stream != 0x180) {
        assert_eq!(unit.entry(stream).unwrap()[0], 1);
    }
}

#[test]
fn only_accesses_that_may_wait_do_and_only_translated_ones() {
    let (unit, driver) = setup();
    driver.enable_stalls(STREAM).unwrap();
    let s2s = || ste::S2S.get(&unit.entry(STREAM.get()).unwrap());
    driver.attach(STREAM, &second(&driver)).unwrap();
    assert_eq!(s2s(), 1);
    driver.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(s2s(), 0);
    driver.attach(OTHER, &second(&driver)).unwrap();
    assert_eq!(ste::S2S.get(&unit.entry(OTHER.get()).unwrap()), 0);
}

#[test]
fn errors_of_queues_are_left_to_whoever_reads_them() {
    let (unit, driver) = setup();
    let seen = || unit.reg32(reg::GERRORN);
    let base = seen();
    // Of the event queue, which its reader tells, and of the page-request queue.
    unit.unit().raise(1 << 2 | 1 << 3);
    let both = GlobalErrors::EVENT_QUEUE | GlobalErrors::PAGE_REQUEST_QUEUE;
    assert_eq!(driver.service_errors(), Ok(both));
    assert_eq!(seen(), base ^ 1 << 3);
    assert_eq!(driver.next_fault(), Ok(Some(FaultEvent::Lost)));
    assert_eq!(seen(), base ^ 1 << 3 ^ 1 << 2);
    assert_eq!(driver.service_errors(), Ok(GlobalErrors::empty()));
}

#[test]
fn a_unit_whose_memory_is_somebody_else_s_choice_is_refused() {
    // Queues, tables, and both of them at places that the unit says.
    for preset in [1 << 29, 1 << 30, 3 << 29] {
        let mut id = FULL;
        id.idr[1] |= preset;
        let made = machine(id).enable(config());
        assert_eq!(made.err(), Some(IommuError::Unsupported), "{preset:#x}");
    }
}

#[test]
fn tables_of_64_kib_pages_reach_52_bits_of_memory_and_others_48() {
    let (_unit, driver) = changed(config(), |id| {
        // OAS of 52 bits; granules of 4, 16 and 64 KiB.
        id.idr[5] = 6 | 0x70;
    });
    let options = SmmuDomainOptions::default();
    let small = driver.first_stage::<12>(&options).unwrap();
    assert_eq!(small.table().format().output_lg2(), 48);
    let large = driver.first_stage::<16>(&options).unwrap();
    assert_eq!(large.table().format().output_lg2(), 52);
}
