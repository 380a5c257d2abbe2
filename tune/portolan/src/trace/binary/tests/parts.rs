//! The parts of the reader by themselves: pages, packed chunks, and the kernel's descriptions of events.

use std::io::{Cursor, Write};

use super::super::events::{EventTable, Moment};
use super::super::format::Format;
use super::super::input::PartReader;
use super::super::packed::{CpuData, Packing};
use super::super::recipe::Recipe;
use super::super::ring::{Damaged, LostBefore, Page, PageLayout};

const LAYOUT: &[u8] = b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

/// A page with time, length word and data.
fn page(time: u64, flags: u64, data: &[u8]) -> (Page, Result<LostBefore, Damaged>) {
    let layout = PageLayout::parse(LAYOUT).unwrap();
    let mut page = Page::default();
    let found = page.refill(layout, |bytes| {
        bytes[..8].copy_from_slice(&time.to_le_bytes());
        bytes[8..16].copy_from_slice(&(data.len() as u64 | flags).to_le_bytes());
        bytes[16..16 + data.len()].copy_from_slice(data);
        bytes[16 + data.len()..][..8].copy_from_slice(&77u64.to_le_bytes());
        Ok::<(), ()>(())
    });
    (page, found.unwrap())
}

fn word(kind: u32, delta: u32) -> [u8; 4] {
    (kind | delta << 5).to_le_bytes()
}

#[test]
fn times_of_a_page_add_up_over_each_kind_of_entry() {
    let mut data = Vec::new();
    // An event of 4 bytes, 10 later; one of 5 bytes with its length, 20 later.
    data.extend_from_slice(&[word(1, 10), *b"abcd"].concat());
    data.extend_from_slice(&[word(0, 20), 9u32.to_le_bytes()].concat());
    data.extend_from_slice(b"efghi\0\0\0");
    // One that was taken back, 1 later; a time far ahead; and an absolute one.
    data.extend_from_slice(&[word(29, 1), 4u32.to_le_bytes()].concat());
    data.extend_from_slice(&[word(30, 5), 1u32.to_le_bytes()].concat());
    data.extend_from_slice(&[word(1, 0), *b"jklm"].concat());
    data.extend_from_slice(&[word(31, 9), 64u32.to_le_bytes()].concat());
    data.extend_from_slice(&[word(1, 1), *b"nopq"].concat());
    // Nothing more.
    data.extend_from_slice(&[word(29, 0), *b"...."].concat());
    let (mut page, lost) = page(1000, 0, &data);
    assert_eq!(lost, Ok(LostBefore::None));
    let mut found = Vec::new();
    while let Some((time, event)) = page.next().unwrap() {
        found.push((time, page.bytes(event).to_vec()));
    }
    let later = 1031 + (1 << 27) + 5;
    let absolute = (64u64 << 27) + 10;
    let all = [(1010, "abcd"), (1030, "efghi"), (later, "jklm"), (absolute, "nopq")];
    let all = all.map(|(time, bytes)| (time, bytes.as_bytes().to_vec()));
    assert_eq!(found, all);
}

#[test]
fn a_time_stamp_takes_its_top_bits_from_the_page() {
    let data = [&word(31, 9)[..], &0u32.to_le_bytes(), &word(1, 0), b"abcd"].concat();
    let (mut page, _) = page((0x10 << 56) + 5, 0, &data);
    assert_eq!(page.next().unwrap().unwrap().0, (0x10 << 56) + 9);
}

#[test]
fn a_page_says_what_was_lost_before_it() {
    assert_eq!(page(0, 1 << 31, b"").1, Ok(LostBefore::Some));
    assert_eq!(page(0, 3 << 30, b"").1, Ok(LostBefore::Counted(77)));
    assert_eq!(page(0, 5000, b"").1, Err(Damaged));
}

#[test]
fn an_event_that_reaches_past_its_page_is_none() {
    for words in [
        &[28][..],
        &[0, 3],
        &[0, 900],
        &[0, 1 << 20],
        &[0, u32::MAX],
        &[0],
        &[29 | 1 << 5, u32::MAX],
        &[29 | 1 << 5, 1 << 30],
        &[30],
    ] {
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (mut page, _) = page(0, 0, &data);
        assert_eq!(page.last_time_ns(), Err(Damaged), "{words:?}");
        assert_eq!(page.next(), Err(Damaged), "{words:?}");
    }
    let layout = PageLayout::parse(LAYOUT).unwrap();
    assert_eq!(Page::of(vec![1, 2, 3], layout).unwrap_err(), Damaged);
    let whole = [0; 4096];
    for length in 0..=whole.len() {
        let page = Page::of(whole[..length].to_vec(), layout);
        assert_eq!(page.is_ok(), length >= 16, "{length}");
    }
}

/// Kernels with words of four bytes count a page's bytes with one.
#[test]
fn a_page_may_have_a_length_of_four_bytes() {
    let text = std::str::from_utf8(LAYOUT)
        .unwrap()
        .replace("commit;\toffset:8;\tsize:8;", "commit;\toffset:8;\tsize:4;")
        .replace("offset:16;\tsize:4080;", "offset:12;\tsize:4084;");
    let layout = PageLayout::parse(text.as_bytes()).unwrap();
    let length = 8 | 3 << 30;
    let entry = [word(1, 10), *b"abcd"].concat();
    let bytes = [&1000u64.to_le_bytes()[..], &u32::to_le_bytes(length), &entry, &[5, 0, 0, 0]];
    let (mut page, lost) = Page::of(bytes.concat(), layout).unwrap();
    assert_eq!(lost, LostBefore::Counted(5));
    assert_eq!(page.next(), Ok(Some((1010, 16..20))));
}

#[test]
fn chunks_packed_with_zlib_are_read_across_their_borders() {
    let whole: Vec<u8> = (0..4096u32).map(|n| (n % 251) as u8).collect();
    let mut file = 2u32.to_le_bytes().to_vec();
    for half in whole.chunks(2500) {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(half).unwrap();
        let packed = encoder.finish().unwrap();
        file.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        file.extend_from_slice(&(half.len() as u32).to_le_bytes());
        file.extend_from_slice(&packed);
    }
    let mut data = CpuData::new(0, file.len() as u64, Packing::Zlib);
    let mut found = vec![0; 4096];
    let mut file = Cursor::new(file);
    data.fill(&mut file, &mut found[..100], 1 << 20).unwrap();
    data.fill(&mut file, &mut found[100..], 1 << 20).unwrap();
    assert!(found == whole && data.at_end());
    let mut again = CpuData::new(0, 5000, Packing::Zlib);
    let refused = again.fill(&mut file, &mut found, 100).unwrap_err();
    assert!(refused.to_string().contains("larger"), "{refused}");
}

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

/// A description in the kernel's form.
fn described(name: &str, fields: &str, recipe: &str) -> String {
    format!("name: {name}\nID: 7\nformat:\n{COMMON}{fields}\nprint fmt: {recipe}\n")
}

/// The line of one event.
fn line(description: &str, record: &[u8]) -> String {
    let mut input = 1u32.to_le_bytes().to_vec();
    input.extend_from_slice(&(description.len() as u64).to_le_bytes());
    input.extend_from_slice(description.as_bytes());
    let mut events = EventTable::default();
    events.read_own(&mut PartReader::new(&*input, "a test")).unwrap();
    events.name_tasks(b"12 dd [x] 1.0: map: \n");
    let mut line = Vec::new();
    let at = Moment { cpu: 3, time_ns: 1_000_000_007 };
    events.write_line(at, record, &mut line);
    String::from_utf8(line).unwrap()
}

/// `dma_map_sg` of Linux 6.12: `min()` is a block, lists lie behind the fields.
#[test]
fn a_scatter_list_prints_as_the_kernel_prints_it() {
    let fields = "\tfield:__data_loc char[] device;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:int full_nents;\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:bool truncated;\toffset:16;\tsize:1;\tsigned:0;\n\
        \tfield:__data_loc u64[] dma_addrs;\toffset:20;\tsize:4;\tsigned:0;\n\
        \tfield:__data_loc unsigned int[] lengths;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:enum dma_data_direction dir;\toffset:28;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned long attrs;\toffset:32;\tsize:8;\tsigned:0;\n";
    let recipe = "\"%s dir=%s nents=%d/%d%s dma_addrs=%s sizes=%s attrs=%s\", __get_str(device), \
        __print_symbolic(REC->dir, { 0, \"BIDIRECTIONAL\" }, { 1, \"TO_DEVICE\" }), \
        ({ int __UNIQUE_ID_x_1 = (REC->full_nents); int __UNIQUE_ID_y_2 = (128); \
        ((__UNIQUE_ID_x_1) < (__UNIQUE_ID_y_2) ? (__UNIQUE_ID_x_1) : (__UNIQUE_ID_y_2)); }), \
        REC->full_nents, REC->truncated ? \" [TRUNCATED]\" : \"\", \
        __print_array(__get_dynamic_array(dma_addrs), __get_dynamic_array_len(dma_addrs) / sizeof(u64), sizeof(u64)), \
        __print_array(__get_dynamic_array(lengths), \
        __get_dynamic_array_len(lengths) / sizeof(unsigned int), sizeof(unsigned int)), \
        __print_flags(REC->attrs, \"|\", { (1UL << 1), \"WEAK_ORDERING\" }, { (1UL << 5), \"SKIP_CPU_SYNC\" })";
    let mut record = vec![0; 40];
    record[0] = 7;
    record[4] = 12;
    record[8..12].copy_from_slice(&(40u32 | 4 << 16).to_le_bytes());
    record[12..16].copy_from_slice(&200u32.to_le_bytes());
    record[16] = 1;
    record[20..24].copy_from_slice(&(48u32 | 16 << 16).to_le_bytes());
    record[24..28].copy_from_slice(&(64u32 | 8 << 16).to_le_bytes());
    record[28] = 1;
    record[32] = 0xa2;
    record.extend_from_slice(b"nvm\0....");
    record.extend_from_slice(&[0x1000u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat());
    record.extend_from_slice(&[4096u32.to_le_bytes(), 512u32.to_le_bytes()].concat());
    let description = described("dma_map_sg", fields, recipe);
    assert_eq!(
        line(&description, &record),
        "dd (x] 1.0: map: -12 [003] 1.000000007: dma_map_sg: nvm dir=TO_DEVICE nents=128/200 [TRUNCATED] \
         dma_addrs={0x1000,0xffffffffffffffff} sizes={0x1000,0x200} \
         attrs=WEAK_ORDERING|SKIP_CPU_SYNC|0x80\n"
    );
    // A record that is cut has the text of its rest, without its lists.
    let cut = line(&description, &record[..40]);
    assert!(cut.contains("dma_map_sg: ? dir=TO_DEVICE") && cut.contains("sizes=?"), "{cut}");
    assert!(line(&description, &[9, 0]).starts_with("CPU 3: event 9, which"));
}

#[test]
fn numbers_print_in_every_width_and_base() {
    let fields = "\tfield:s32 a;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:u64 b;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:char comm[8];\toffset:24;\tsize:8;\tsigned:0;\n";
    let mut record = vec![7, 0, 0, 0, 0, 0, 0, 0];
    record.extend_from_slice(&[(-5i32).to_le_bytes(), [0; 4]].concat());
    record.extend_from_slice(&0x1234_5678_9abc_def0u64.to_le_bytes());
    record.extend_from_slice(b"a\nb\0zzzz");
    for (recipe, says) in [
        (
            "\"%d %u %x %5d|%-4d|%03d\", REC->a, REC->a, REC->a, REC->a, REC->a, REC->a",
            "-5 4294967291 fffffffb    -5|-5  |-05",
        ),
        (
            "\"%llx %#llx %016llx %x\", REC->b, REC->b, REC->b, REC->b",
            "123456789abcdef0 0x123456789abcdef0 123456789abcdef0 9abcdef0",
        ),
        ("\"%s|%6s|%.1s|%*d\", REC->comm, REC->comm, REC->comm, 4, REC->a", "a?b|   a?b|a|  -5"),
        (
            "\"%llu%%\", (REC->b >> 60) * 2 + 7 % 4 - (unsigned char)(0x1ff)",
            "18446744073709551366%",
        ),
        ("\"%s %d\", REC->a < 0 && !(REC->b == 1) ? \"low\" : \"high\", MISSING_NAME", "low ?"),
        ("\"%s %p\", some_function(REC->a, \"x\"), REC->b", "? 123456789abcdef0"),
        // Tables of newer kernels end with an entry that is not a name.
        (
            "\"%s %s\", __print_flags(REC->b >> 4 & 0xf, \"|\", { 1, \"A\" }, { 0, ((void *)0) } ), \
             __print_symbolic(REC->a & 0xf, { 0xb, \"B\" }, { -1, NULL })",
            "A|0xe B",
        ),
    ] {
        let found = line(&described("x", fields, recipe), &record);
        let text = found.split_once(": x: ").unwrap().1.trim_end();
        assert_eq!(text, says, "{recipe}");
    }
    let failed = line(&described("x", fields, "\"%d\", REC->a ="), &record);
    assert!(failed.contains("x: [FAILED TO PARSE] a=0xfffffffffffffffb b=0x1234"), "{failed}");
    assert!(failed.contains("comm=a?b"), "{failed}");
}

#[test]
fn descriptions_without_end_are_not_followed() {
    for inside in [
        "(".repeat(100_000),
        "!".repeat(100_000),
        "REC->a ? ".repeat(100_000),
        "REC->a + ".repeat(100_000),
        "sizeof(".repeat(100_000),
        "({ int a = ".repeat(10_000),
    ] {
        let fields = "\tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n";
        let description = described("x", fields, &format!("\"%d\", {inside}"));
        let format = Format::parse(&description).unwrap();
        assert!(Recipe::parse(&format).is_none());
    }
}
