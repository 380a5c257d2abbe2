//! The forms in which tools print an event.

use portolan::dma::Direction;

use super::*;

/// A list's map and unmap, as libtraceevent prints events that it cannot parse.
pub(super) fn lists_of_libtraceevent() -> String {
    let pas = "ARRAY[00, 10, 1c, 18, 00, 00, 00, 00, 00, a0, cf, 19, 00, 00, 00, 00]";
    format!(
        "  fio-1  [000]     1.000000: dma_map_sg:           [FAILED TO PARSE] device=0000:00:01.0 full_nents=2 \
         full_ents=1 truncated=0 phys_addrs={pas} dma_addrs=ARRAY[00, 00, d0, bc, 00, 00, 00, 00] \
         lengths=ARRAY[00, 20, 00, 00] dir=1 attrs=0x0\n  \
         fio-1  [000]     1.000500: dma_unmap_sg:         [FAILED TO PARSE] device=0000:00:01.0 addrs={pas} dir=1 \
         attrs=0x0\n"
    )
}

/// An event in each form that is read.
pub(super) fn of_each_kind() -> String {
    FORMS.iter().map(|(_, before, ..)| in_form(before)).collect()
}

#[test]
fn lists_as_libtraceevent_prints_them_are_read() {
    let text = lists_of_libtraceevent();
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
    let op = reader.next_op().unwrap();
    let OpKind::Map { pieces, dma, bytes, direction, .. } = op.kind else { panic!("no map") };
    assert_eq!((dma, bytes, direction), (0xbcd0_0000, 8192, Some(Direction::ToDevice)));
    let pas: Vec<_> = pieces.iter().map(|piece| piece.pa.get()).collect();
    assert_eq!(pas, [0x181c_1000, 0x19cf_a000]);
    let sum = drain(reader);
    assert_eq!((sum.maps, sum.unmaps, sum.bad_lines), (1, 1, 0));
}

#[test]
fn a_list_whose_map_was_cut_finds_its_unmap() {
    let pieces = |count: u64| {
        let all = (0..count).map(|n| format!("{:#x}", 0x100_0000 + n * 8192));
        all.collect::<Vec<_>>().join(",")
    };
    let text = format!(
        "  fio-1  [000] ..... 1.000000: dma_map_sg: 0000:00:01.0 dir=FROM_DEVICE nents=128/130 ents=1/1 [TRUNCATED] \
         dma_addrs={{0xff000000}} sizes={{0x82000}} phys_addrs={{{}}} attrs=\n  \
         fio-1  [000] ..... 1.000500: dma_unmap_sg: 0000:00:01.0 dir=FROM_DEVICE phys_addrs={{{}}} attrs=\n",
        pieces(128),
        pieces(130)
    );
    let sum = read(&text).unwrap();
    assert_eq!((sum.unmaps, sum.orphan_unmaps, sum.left_mapped), (1, 0, 0));
    // Two of its pages are not told.
    let understood = sum.understood;
    let missing = understood.bytes - understood.bytes_understood;
    assert_eq!((understood.events_pct(), missing), (100.0, 8192));
}

#[test]
fn allocations_without_a_direction_are_read() {
    let text = "  a-1 [010] ..... 4.878079: dma_alloc: 0000:c2:00.0 dma_addr=fe980000 size=524288 \
                virt_addr=000000006cadbcb1 flags=GFP_KERNEL attrs=\n  \
                a-1 [011] ..... 327.747763: dma_free: 0000:c2:00.0 dma_addr=fe980000 size=524288 \
                virt_addr=000000006cadbcb1 attrs=\n";
    let sum = read(text).unwrap();
    assert_eq!((sum.coherent_allocs, sum.coherent_frees), (1, 1));
}

/// A page's map and unmap, with the text before the fields: `{at}` is the time, in microseconds `{us}`.
fn in_form(before: &str) -> String {
    let line = |n: u64, fields: &str| {
        let at = before.replace("{at}", &format!("1.{n:06}")).replace("{us}", &n.to_string());
        format!("{at}{fields}\n")
    };
    line(10, "dma_map_phys: nic dir=FROM_DEVICE dma_addr=fffff000 size=4096 phys_addr=1000 attrs=")
        + &line(99, "dma_unmap_phys: nic dir=FROM_DEVICE dma_addr=fffff000 size=4096 attrs=")
}

const SECONDS: (u64, Clock) = (1_000_010_000, Clock::Seconds);

/// Beginnings of lines, with the CPU, the time and the clock that they say.
const FORMS: [(&str, &str, u16, (u64, Clock)); 17] = [
    ("ftrace", "  fio-1 [003] ..... {at}: ", 3, SECONDS),
    ("ftrace, trace_pipe, colon in a task", " a:b [7] c-1 [003] d.h1. {at}: ", 3, SECONDS),
    ("option record-tgid", "  fio-1  (      1) [003] ..... {at}: ", 3, SECONDS),
    ("option noirq-info", "  fio-1 [003] {at}: ", 3, SECONDS),
    ("flags of 2015", "  fio-1 [003] .... {at}: ", 3, SECONDS),
    ("flags with migrate-disable", "  fio-1 [003] ....... {at}: ", 3, SECONDS),
    ("option latency-format", "  fio-1  3d.h1. {us}us!: ", 3, (10_000, Clock::Microseconds)),
    (
        "latency-format without a mark",
        "  fio-1  3..... {us}us : ",
        3,
        (10_000, Clock::Microseconds),
    ),
    ("latency-format with a clock of ticks", "  fio-1  3..... {us}: ", 3, (10, Clock::Ticks)),
    ("trace-cmd report", "  fio-1  [003]  {at}: ", 3, SECONDS),
    ("trace-cmd report -t", "  fio-1  [003]  {at}000: ", 3, SECONDS),
    ("trace-cmd report -l", "  fio-1  3d.h1.  {at}: ", 3, SECONDS),
    ("trace-cmd report of several files", "guest:  fio-1  [003]  {at}: ", 3, SECONDS),
    ("perf script", "fio  1 [003]  {at}: dma:", 3, SECONDS),
    ("perf script with threads", "fio  1/1 [003]  {at}: dma:", 3, SECONDS),
    ("clocks x86-tsc, counter, uptime", "  fio-1 [003] ..... {us}: ", 3, (10, Clock::Ticks)),
    ("1,024 CPUs", "  fio-1 [1023] ..... {at}: ", 1023, SECONDS),
];

#[test]
fn each_form_of_a_line_is_read_with_its_cpu_task_and_time() {
    for (form, before, cpu, (time, clock)) in FORMS {
        let text = in_form(before);
        let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
        let op = reader.next_op().map(|op| (op.cpu, op.time_ns, op.running));
        assert_eq!(op, Some((cpu, time, Running::Task(1))), "{form}");
        let sum = drain(reader);
        assert_eq!((sum.maps, sum.unmaps, sum.bad_lines, sum.clock), (1, 1, 0, clock), "{form}");
    }
    for idle in [
        "<idle>-0 [003] ..s1. {at}: ",
        " <idle>-0  3..s1. {us}us : ",
        "swapper 0/0 [003] {at}: dma:",
    ] {
        let text = in_form(idle);
        let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
        assert_eq!(reader.next_op().map(|op| op.running), Some(Running::Idle), "{idle}");
    }
}

#[test]
fn fields_by_name_and_value_are_those_that_the_kernel_prints() {
    let printed = "\
 t-1 [000] 1.1: map: IOMMU: iova=0x00000000fffff000 - 0x0000000100000000 paddr=0x0000000000001000 size=4096
 t-1 [000] 1.2: dma_map_phys: nic dir=FROM_DEVICE dma_addr=fffff000 size=4096 phys_addr=1000 attrs=
 t-1 [000] 1.3: unmap: IOMMU: iova=0x00000000fffff000 - 0x0000000100000000 size=4096 unmapped_size=4096
 t-1 [000] 1.4: qi_submit: iotlb_inv dmar0: 0x300f2 0xfffff040 0x0 0x0
 t-1 [000] 1.5: dma_unmap_phys: nic dir=FROM_DEVICE dma_addr=fffff000 size=4096 attrs=
 t-1 [000] 1.6: swiotlb_bounced: dev_name: nic dma_mask=ffffffff dev_addr=1f000 size=512 NORMAL
";
    let raw = "\
 t-1 [000] 1.1: map:   iova=4294963200 paddr=4096 size=4096
 t-1 [000] 1.2: dma_map_phys:   device=nic phys_addr=4096 dma_addr=4294963200 size=4096 dir=2 attrs=0x0
 t-1 [000] 1.3: unmap:   iova=4294963200 size=4096 unmapped_size=4096
 t-1 [000] 1.4: qi_submit:   qw0=196850 qw1=4294963264 qw2=0 qw3=0 iommu=dmar0
 t-1 [000] 1.5: dma_unmap_phys:   device=nic addr=4294963200 dma_addr=4294963200 size=4096 dir=2 attrs=0x0
 t-1 [000] 1.6: swiotlb_bounced:   dev_name=nic dma_mask=4294967295 dev_addr=126976 size=512 force=0
";
    let fields = "\
 t-1 [000] 1.1: map: iova=0xfffff000 (4294963200) paddr=0x1000 (4096) size=0x1000 (4096)
 t-1 [000] 1.2: dma_map_phys: device=nic phys_addr=0x1000 (4096) dma_addr=0xfffff000 (1) size=0x1000 (4096) dir=0x2 (2)
 t-1 [000] 1.3: unmap: iova=0xfffff000 (4294963200) size=0x1000 (4096) unmapped_size=0x1000 (4096)
 t-1 [000] 1.4: qi_submit: qw0=0x300f2 (196850) qw1=0xfffff040 (1) qw2=0x0 (0) qw3=0x0 (0) iommu=dmar0
 t-1 [000] 1.5: dma_unmap_phys: device=nic dma_addr=0xfffff000 (1) size=0x1000 (4096) dir=0x2 (2) attrs=0x0 (0)
 t-1 [000] 1.6: swiotlb_bounced: dev_name=nic dev_addr=0x1f000 (126976) size=0x200 (512) force=(0)
";
    for (form, text) in
        [("printed", printed), ("trace-cmd report -R", raw), ("option fields", fields)]
    {
        let sum = read(text).unwrap();
        assert_eq!(
            (sum.maps, sum.unmaps, sum.bytes_mapped, sum.bad_lines),
            (1, 1, 4096, 0),
            "{form}"
        );
        assert_eq!((sum.bounced_bytes, sum.recorded.page_masks.len()), (512, 1), "{form}");
        assert_eq!(
            (sum.recorded.pages_after_unmap, sum.devices.as_slice()),
            (1, &["nic".to_owned()][..]),
            "{form}"
        );
        assert_eq!(sum.understood.events_pct(), 100.0, "{form}");
    }
}

#[test]
fn lists_as_numbers_and_as_bytes_with_commas_are_read() {
    let decimal = " t-1 [000] 1.1: dma_map_sg: dev dir=TO_DEVICE nents=2/2 ents=1/1 dma_addrs=3168796672 sizes=8192 \
                   phys_addrs=404492288 433037312 attrs=\n \
                   t-1 [000] 1.2: dma_unmap_sg: dev dir=TO_DEVICE phys_addrs=404492288 433037312 attrs=\n";
    let pas = "00,10,1c,18,00,00,00,00,00,a0,cf,19,00,00,00,00";
    let bytes = format!(
        " t-1 [000] 1.1: dma_map_sg: device=dev full_nents=0x2 (2) full_ents=0x1 (1) truncated=(0) phys_addrs={pas} \
         dma_addrs=00,00,d0,bc,00,00,00,00 lengths=00,20,00,00 dir=0x1 (1)\n \
         t-1 [000] 1.2: dma_unmap_sg: device=dev addrs={pas} dir=0x1 (1)\n"
    );
    for text in [decimal, bytes.as_str()] {
        let sum = read(text).unwrap();
        assert_eq!(
            (sum.maps, sum.unmaps, sum.bytes_mapped, sum.bad_lines),
            (1, 1, 8192, 0),
            "{text}"
        );
    }
    let broken =
        ["ARRAY[00, 10", "ARRAY[00, 10, xx, 00]", "ARRAY[00, 10, 00]", "{0x1000", "{0x1,y}"];
    for list in broken {
        let text =
            format!(" t-1 [000] 1.1: dma_unmap_sg: [FAILED TO PARSE] device=dev addrs={list}\n");
        assert_eq!(read(&text).unwrap().bad_lines, 1, "{list}");
    }
}

#[test]
fn stacks_and_headers_are_known_lines() {
    let text = "version = 7\ncpus=2\nCPU 1 is empty\n".to_owned()
        + &in_form("  fio-1 [000] ..... {at}: ")
        + "  fio-1 [000] ..... 1.5: <stack trace>\n => dma_map_page_attrs\n => nvme_map_data\n"
        + "  fio-1 [000] 1.6: kernel_stack:         <stack trace >\n=> dma_map_page_attrs (ffffffff9e1b2c3d)\n"
        + "\tffffffff9e1b2c3d dma_map_page_attrs+0x123 ([kernel.kallsyms])\n"
        + "\t    7f1e2d3c4b5a [unknown] (/usr/bin/fio)\n\n";
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.bad_lines, sum.header_lines), (1, 0, 9), "{:?}", sum.first_bad);
}

#[test]
fn losses_are_counted_whichever_tool_tells_them() {
    let rows = [
        ("CPU:2 [LOST 9 EVENTS]", 9, 0),
        ("CPU:3 [LOST EVENTS]", 1, 1),
        ("CPU:7 [204600 EVENTS DROPPED]", 204_600, 0),
        ("CPU:7 [EVENTS DROPPED]", 1, 1),
        ("fio 77 [000] 1.2: PERF_RECORD_LOST lost 123", 123, 0),
        ("PERF_RECORD_LOST_SAMPLES lost 5", 5, 0),
    ];
    for (line, lost, unknown) in rows {
        let sum = read(&(in_form("  fio-1 [000] ..... {at}: ") + line + "\n")).unwrap();
        assert_eq!(
            (sum.lost_events, sum.lost_unknown, sum.bad_lines),
            (lost, unknown, 0),
            "{line}"
        );
        assert_eq!(
            (sum.understood.events, sum.understood.events_understood),
            (2 + lost, 2),
            "{line}"
        );
    }
}

#[test]
fn times_and_machines_that_do_not_fit_together_are_said() {
    let at = |time: &str| {
        format!("  fio-1 [000] ..... {time}: map: IOMMU: iova=0x1000 paddr=0x2000 size=4096\n")
    };
    let jumps = read(&(at("1.0") + &at("200000000.0") + &at("1.5") + &at("1.4"))).unwrap();
    assert_eq!((jumps.clock_jumps, jumps.clock_jump_lines.as_slice()), (2, &[2, 3][..]));
    assert_eq!(jumps.out_of_order, 2);
    let ticks = read(&(at("430150656786") + &at("930150656786"))).unwrap();
    assert_eq!((ticks.clock, ticks.clock_jumps), (Clock::Ticks, 0));
    let machines = in_form("host:  fio-1 [000] {at}: ") + &in_form("guest:  fio-1 [000] {at}: ");
    assert_eq!(read(&machines).unwrap().machines, ["host", "guest"]);
}

#[test]
fn lines_that_end_with_a_carriage_return_are_read_after_a_feed_alone() {
    let text = in_form("  fio-1 [000] ..... {at}: ");
    let both = read(&text.replace('\n', "\r\n")).unwrap();
    assert_eq!((both.maps, both.unmaps, both.bad_lines), (1, 1, 0));
    let alone = read(&text.replace('\n', "\r")).err();
    assert!(matches!(alone, Some(OpenError::CarriageReturns)), "{alone:?}");
}

#[test]
fn events_without_context_are_called_so() {
    let refused = read(&in_form("")).err();
    assert!(matches!(refused, Some(OpenError::WithoutContext)), "{refused:?}");
}

#[test]
fn forms_that_are_not_read_are_refused() {
    let rows = [
        ("verbose", "  fio 77 0 1 00000000 00001234 [000abcde] 1.234ms (+0.001ms): "),
        ("raw", "77 0 1000010000 "),
        ("hex", "0000004d 00000000 3b9af0da "),
        ("perf script without CPU and time", "fio 77 dma:"),
    ];
    for (form, before) in rows {
        let refused = read(&in_form(before)).err();
        assert!(matches!(refused, Some(OpenError::NotATrace)), "{form}: {refused:?}");
    }
}

#[test]
fn a_release_that_perf_script_prints_is_read() {
    let text = "# ========\n# os release : 7.3.4+deb13-cloud-amd64\n".to_owned()
        + &in_form("  fio-1 [003] ..... {at}: ");
    let reader =
        |text: String| Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
    assert_eq!(reader(text).release(), Some((7, 3)));
    let odd = "# os release : seven\n".to_owned() + &in_form("  fio-1 [003] ..... {at}: ");
    assert_eq!(reader(odd).release(), None);
}
