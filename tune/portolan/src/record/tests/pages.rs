//! Pages, their text, and the order of several CPUs' events.

use std::sync::atomic::AtomicU64;

use super::super::events::{Chosen, EventSelection, Tells};
use super::super::merge::{Merge, put_page, put_round};
use super::super::names::TaskNames;
use super::super::output::{Existing, RecordingOutput};
use super::machine::{HEADER_PAGE, MAP, Machine, PIECE, UNMAP, event, format, page};
use crate::trace::binary::events::EventPrinter;
use crate::trace::binary::ring::{Page, PageLayout};
use crate::trace::binary::value::Disclosure;

fn layout() -> PageLayout {
    PageLayout::parse(HEADER_PAGE.as_bytes()).unwrap()
}

fn printer(format: &str) -> EventPrinter {
    EventPrinter::parse(format, Disclosure::Masked).unwrap()
}

/// The name and text of an event.
fn line(format: &str, record: &[u8]) -> String {
    let mut text = Vec::new();
    printer(format).write_event(record, &mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn random_pages_are_read_or_refused() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let printer = printer(&format(MAP));
    let mut text = Vec::new();
    for _ in 0..2000 {
        let mut bytes = page(1, &[(1, event(MAP, 1)), (1, event(PIECE, 2))], 0);
        for _ in 0..random.usize(1..20) {
            let at = random.usize(8..200);
            bytes[at] = random.u8(..);
        }
        let Ok((mut page, _)) = Page::of(bytes, layout()) else {
            continue;
        };
        let whole = page.last_time_ns().is_ok();
        loop {
            let event = page.next();
            assert!(event.is_ok() || !whole, "the same events as at first");
            let Ok(Some((_, event))) = event else {
                break;
            };
            printer.write_event(page.bytes(event), &mut text);
            text.clear();
        }
    }
}

#[test]
fn an_event_has_the_kernels_own_text() {
    assert_eq!(
        line(&format(PIECE), &event(PIECE, 0xfff_f000)),
        "map: IOMMU: iova=0x000000000ffff000 - 0x0000000010000000 paddr=0x0000000000001000 size=4096\n"
    );
    let fields = "name: dma_map_sg\nID: 3\nformat:\n\tfield:int full_nents;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:bool truncated;\toffset:12;\tsize:1;\tsigned:0;\n\
        \tfield:__data_loc u64[] dma_addrs;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:gfp_t flags;\toffset:20;\tsize:4;\tsigned:0;\n\
        \tfield:void * virt_addr;\toffset:24;\tsize:8;\tsigned:0;\n\n";
    let print = "print fmt: \"n=%d/%d%s a=%s f=%s e=%d p=%p t=%#x\", ({ int __x = (REC->full_nents); int __y = (128); \
        ((__x) < (__y) ? (__x) : (__y)); }), REC->full_nents, REC->truncated ? \" [TRUNCATED]\" : \"\", \
        __print_array(__get_dynamic_array(dma_addrs), __get_dynamic_array_len(dma_addrs) / sizeof(u64), sizeof(u64)), \
        (REC->flags) ? __print_flags(REC->flags, \"|\", {( unsigned long)(((1UL)) << (3)), \"A\"}, {( unsigned \
        long)((( gfp_t)1|( gfp_t)2)), \"B\"}, { 0, ((void *)0) } ) : \"none\", REC->full_nents, \
        REC->virt_addr, REC->flags\n";
    let mut record = [0u8; 48];
    record[8..12].copy_from_slice(&300i32.to_ne_bytes());
    record[12] = 1;
    record[16..20].copy_from_slice(&(16u32 << 16 | 32).to_ne_bytes());
    record[20..24].copy_from_slice(&0x1_0008u32.to_ne_bytes());
    record[32..40].copy_from_slice(&0xabcu64.to_ne_bytes());
    record[40..48].copy_from_slice(&0xdefu64.to_ne_bytes());
    let format = format!("{fields}{print}");
    let flags = "A|0x10000";
    assert_eq!(
        line(&format, &record),
        format!(
            "dma_map_sg: n=128/300 [TRUNCATED] a={{0xabc,0xdef}} f={flags} e=300 p=hidden t=0x10008\n"
        )
    );
    record[8..12].copy_from_slice(&(-12i32).to_ne_bytes());
    record[20..24].fill(0);
    let text = line(&format, &record);
    assert!(text.contains("/-12 ") && text.contains("f=none e=-12"), "{text}");
    // A record that is cut says nothing, and does no harm.
    let cut = line(&format, &record[..10]);
    assert!(cut.starts_with("dma_map_sg: n=?/?? a=? f="), "{cut}");
}

#[test]
fn pointers_and_words_of_a_name_stay_out_of_the_file() {
    let format = |print: &str| {
        format!(
            "name: x\nID: 3\nformat:\n\tfield:char name[8];\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:void * at;\toffset:16;\tsize:8;\tsigned:0;\n\
             \tfield:int n;\toffset:24;\tsize:4;\tsigned:1;\n\nprint fmt: {print}\n"
        )
    };
    let mut record = [0u8; 28];
    record[8..16].copy_from_slice(b"a b\n\xc3\xa4]\0");
    record[16..24].copy_from_slice(&0xffff_8881_0000_1000u64.to_ne_bytes());
    record[24] = 5;
    for (print, says) in [
        (
            "\"%s %p %pS %d\", REC->name, REC->at, (void *)REC->at, REC->n",
            "x: a_b___] hidden hidden 5\n",
        ),
        // Beyond the printer: the fields by name.
        ("\"%d\", REC->n =", "x: [FAILED TO PARSE] name=a_b___] at=hidden n=0x5\n"),
    ] {
        assert_eq!(line(&format(print), &record), says);
    }
}

#[test]
fn events_of_several_cpus_come_in_the_order_of_time_and_losses_where_they_were() {
    let machine = Machine::new("merge");
    let path = machine.root.join("out.gz");
    let mut output = RecordingOutput::open(&path, Existing::Keep).unwrap();
    let chosen = [MAP, UNMAP].map(|id| Chosen {
        path: String::new(),
        filter: None,
        format: format(id),
        tells: match id {
            MAP => Tells::Map,
            _ => Tells::Dma,
        },
    });
    let events = EventSelection { chosen: chosen.to_vec(), ..EventSelection::default() };
    let mut parcels = Vec::new();
    let one = |time, lost| page(time, &[(0, event(MAP, time)), (20, event(UNMAP, time))], lost);
    // The first CPU is ahead; of the second a page comes late, a round after.
    put_page(&mut parcels, 0, &one(100, 0));
    put_round(&mut parcels, &[]);
    put_page(&mut parcels, 0, &one(200, 0));
    put_page(&mut parcels, 1, &one(110, 3));
    put_round(&mut parcels, &[]);
    put_page(&mut parcels, 1, &one(210, u64::from(u32::MAX)));
    put_page(&mut parcels, 0, &page(230, &[(0, event(99, 1))], 0));
    put_round(&mut parcels, &[]);
    let merge = Merge::new(layout(), &events, TaskNames::of(&machine.tracefs("", Vec::new())));
    let written = merge.run(parcels.as_slice(), &mut output, &AtomicU64::new(0)).unwrap();
    output.finish().unwrap();
    assert_eq!((written.events, written.maps), (9, 4));
    let text = machine.recorded();
    assert_eq!(written.bytes, text.len() as u64);
    let time = |line: &str| match line.strip_prefix("CPU:") {
        Some(lost) => lost.to_owned(),
        None => line.split(". 0.0000").nth(1).unwrap()[..5].to_owned(),
    };
    let times: Vec<_> = text.lines().map(time).collect();
    let lost = "1 [LOST 3 EVENTS]";
    let later = "1 [LOST 4294967295 EVENTS]";
    assert_eq!(
        times,
        [lost, "00100", "00110", "00120", "00130", later, "00200", "00210", "00220", "00230"]
    );
}

#[test]
fn a_buffer_that_was_not_read_to_its_end_holds_the_others_back() {
    let machine = Machine::new("held-back");
    let path = machine.root.join("out.gz");
    let mut output = RecordingOutput::open(&path, Existing::Keep).unwrap();
    let events = EventSelection {
        chosen: vec![Chosen {
            path: String::new(),
            filter: None,
            format: format(MAP),
            tells: Tells::Map,
        }],
        ..EventSelection::default()
    };
    let mut parcels = Vec::new();
    let at = |time| page(time, &[(0, event(MAP, time))], 0);
    put_page(&mut parcels, 0, &at(900));
    put_page(&mut parcels, 1, &at(100));
    put_round(&mut parcels, &[1]);
    put_page(&mut parcels, 1, &at(110));
    put_round(&mut parcels, &[1]);
    put_page(&mut parcels, 1, &at(120));
    put_round(&mut parcels, &[]);
    let merge = Merge::new(layout(), &events, TaskNames::of(&machine.tracefs("", Vec::new())));
    merge.run(parcels.as_slice(), &mut output, &AtomicU64::new(0)).unwrap();
    output.finish().unwrap();
    let text = machine.recorded();
    let cpus: Vec<_> = text.lines().filter_map(|line| line.split_once(" [")).collect();
    let cpus: Vec<_> = cpus.iter().map(|(_, after)| &after[..3]).collect();
    assert_eq!(cpus, ["001", "001", "001", "000"]);
}
