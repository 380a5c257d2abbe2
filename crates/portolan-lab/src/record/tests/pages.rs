//! Pages, their text, and the order of several CPUs' events.

use std::sync::atomic::AtomicU64;

use super::super::events::{Chosen, Events};
use super::super::merge::{Merge, put_page, put_round};
use super::super::output::{Destination, Existing};
use super::super::pages::{Layout, Page};
use super::super::print::Printer;
use super::machine::{HEADER_PAGE, MAP, Machine, PAGE, PIECE, UNMAP, event, format, page};

fn layout() -> Layout {
    Layout::parse(HEADER_PAGE).unwrap()
}

fn times(bytes: Vec<u8>) -> Option<Vec<u64>> {
    let mut page = Page::parse(bytes, layout())?;
    let taken = std::iter::from_fn(|| page.take().map(|(time, _)| time));
    Some(taken.collect())
}

/// A page with `words` for data.
fn raw(words: &[u32]) -> Vec<u8> {
    let data: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let head = [100u64, data.len() as u64];
    let head: Vec<u8> = head.iter().flat_map(|long| long.to_ne_bytes()).collect();
    let mut page = [head, data].concat();
    page.resize(PAGE, 0);
    page
}

#[test]
fn times_add_up_over_records_that_carry_time_alone() {
    let extend = [30 | 5 << 5, 1];
    let stamp = [31 | 7 << 5, 2];
    let one = [1 | 3 << 5, 0xabcd];
    let padding = [29 | 2 << 5, 8, 0];
    let words = [&one[..], &extend, &one, &padding, &one, &stamp, &one, &[29]].concat();
    let base = 100 + 3 + (1 << 27) + 5 + 3;
    assert_eq!(
        times(raw(&words)).unwrap(),
        [103, base, base + 2 + 3, (2 << 27) + 7 + 3]
    );
}

#[test]
fn a_record_that_reaches_past_its_page_is_none() {
    for words in [
        &[28][..],
        &[0, 3],
        &[0, 1 << 20],
        &[0, u32::MAX],
        &[0],
        &[29 | 1 << 5, u32::MAX],
        &[29 | 1 << 5, 1 << 30],
    ] {
        let times = times(raw(words));
        assert!(times.is_none_or(|times| times.is_empty()), "{words:?}");
    }
    let mut long = raw(&[]);
    long[8..16].copy_from_slice(&(PAGE as u64).to_ne_bytes());
    assert_eq!(times(long), None);
    assert_eq!(times(vec![1, 2, 3]), None);
}

#[test]
fn random_pages_are_read_or_refused() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let printer = Printer::parse(&format(MAP)).unwrap();
    let mut text = Vec::new();
    for _ in 0..2000 {
        let mut bytes = page(1, &[(1, event(MAP, 1)), (1, event(PIECE, 2))], 0);
        for _ in 0..random.usize(1..20) {
            let at = random.usize(8..200);
            bytes[at] = random.u8(..);
        }
        let Some(mut page) = Page::parse(bytes, layout()) else {
            continue;
        };
        while let Some((_, record)) = page.take() {
            printer.print(record, &mut text);
            text.clear();
        }
    }
}

#[test]
fn an_event_has_the_kernels_own_text() {
    let line = |format: &str, record: &[u8]| {
        let mut text = Vec::new();
        Printer::parse(format).unwrap().print(record, &mut text);
        String::from_utf8(text).unwrap()
    };
    assert_eq!(
        line(&format(PIECE), &event(PIECE, 0xfff_f000)),
        "IOMMU: iova=0x000000000ffff000 - 0x0000000010000000 paddr=0x0000000000001000 size=4096"
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
        long)((( gfp_t)1|( gfp_t)2)), \"B\"}) : \"none\", REC->full_nents, REC->virt_addr, odd(REC->flags)\n";
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
        format!("n=128/300 [TRUNCATED] a={{0xabc,0xdef}} f={flags} e=300 p=hidden t=0x10008")
    );
    record[8..12].copy_from_slice(&(-12i32).to_ne_bytes());
    record[20..24].fill(0);
    let text = line(&format, &record);
    assert!(
        text.contains("/-12 ") && text.contains("f=none e=-12"),
        "{text}"
    );
    // What is cut says nothing, and does no harm.
    assert!(line(&format, &record[..10]).starts_with("n=0/0 a={} f=none"));
}

#[test]
fn a_command_of_a_unit_is_named_by_some_bits_of_its_first_word() {
    let format = "name: qi_submit\nID: 9\nformat:\n\tfield:u64 qw0;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:u64 qw1;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] iommu;\toffset:24;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"%s %s: 0x%llx 0x%llx\", __print_symbolic(REC->qw0 & 0xf, { 0x1, \"cc_inv\" }, \
        { 0x2, \"iotlb_inv\" }), __get_str(iommu), REC->qw0, REC->qw1\n";
    let mut record = vec![0u8; 28];
    record[8..16].copy_from_slice(&0x300f2u64.to_ne_bytes());
    record[16..24].copy_from_slice(&0xfffb_b040u64.to_ne_bytes());
    record[24..28].copy_from_slice(&(6u32 << 16 | 28).to_ne_bytes());
    record.extend(b"dmar0\0");
    let mut text = Vec::new();
    Printer::parse(format).unwrap().print(&record, &mut text);
    assert_eq!(text, b"iotlb_inv dmar0: 0x300f2 0xfffbb040");
}

#[test]
fn events_of_several_cpus_come_in_the_order_of_time_and_losses_where_they_were() {
    let machine = Machine::new("merge");
    let path = machine.root.join("out.gz");
    let mut output = Destination::open(&path, Existing::Keep).unwrap();
    let chosen = [MAP, UNMAP].map(|id| Chosen {
        path: String::new(),
        filter: None,
        format: format(id),
        maps: id == MAP,
    });
    let events = Events {
        chosen: chosen.to_vec(),
        ..Events::default()
    };
    let mut parcels = Vec::new();
    let one = |time, lost| {
        page(
            time,
            &[(0, event(MAP, time)), (20, event(UNMAP, time))],
            lost,
        )
    };
    // The first CPU is ahead; of the second a page comes late, a round after.
    put_page(&mut parcels, 0, &one(100, 0));
    put_round(&mut parcels, &[]);
    put_page(&mut parcels, 0, &one(200, 0));
    put_page(&mut parcels, 1, &one(110, 3));
    put_round(&mut parcels, &[]);
    put_page(&mut parcels, 1, &one(210, u64::from(u32::MAX)));
    put_page(&mut parcels, 0, &page(230, &[(0, event(99, 1))], 0));
    put_round(&mut parcels, &[]);
    let merge = Merge::new(
        layout(),
        &events,
        machine.root.join("tracing/saved_cmdlines"),
    );
    let written = merge
        .run(parcels.as_slice(), &mut output, &AtomicU64::new(0))
        .unwrap();
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
        [
            lost, "00100", "00110", "00120", "00130", later, "00200", "00210", "00220", "00230"
        ]
    );
}

#[test]
fn a_buffer_that_was_not_read_to_its_end_holds_the_others_back() {
    let machine = Machine::new("held-back");
    let path = machine.root.join("out.gz");
    let mut output = Destination::open(&path, Existing::Keep).unwrap();
    let events = Events {
        chosen: vec![Chosen {
            path: String::new(),
            filter: None,
            format: format(MAP),
            maps: true,
        }],
        ..Events::default()
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
    let merge = Merge::new(layout(), &events, machine.root.join("none"));
    merge
        .run(parcels.as_slice(), &mut output, &AtomicU64::new(0))
        .unwrap();
    output.finish().unwrap();
    let text = machine.recorded();
    let cpus: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once(" ["))
        .collect();
    let cpus: Vec<_> = cpus.iter().map(|(_, after)| &after[..3]).collect();
    assert_eq!(cpus, ["001", "001", "001", "000"]);
}
