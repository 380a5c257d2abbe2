//! Operations from events of tables, with and without `dma:*` events.

use super::*;

/// A page of `iommu:map` at `at` microseconds.
pub(super) fn piece(at: u64, cpu: u16, iova: u64, pa: u64, bytes: u64) -> String {
    let end = iova + bytes;
    format!(
        "  fio-1  [{cpu:03}] ..... 1.{at:06}: map: IOMMU: iova={iova:#018x} - {end:#018x} \
         paddr={pa:#018x} size={bytes}\n"
    )
}

/// `iommu:unmap`.
pub(super) fn take_out(at: u64, cpu: u16, iova: u64, bytes: u64) -> String {
    let end = iova + bytes;
    format!(
        "  fio-1  [{cpu:03}] d.h1. 1.{at:06}: unmap: IOMMU: iova={iova:#018x} - {end:#018x} \
         size={bytes} unmapped_size={bytes}\n"
    )
}

/// `intel_iommu:qi_submit` of a page-selective invalidation.
pub(super) fn invalidate(at: u64, cpu: u16, iova: u64) -> String {
    format!(
        "  fio-1  [{cpu:03}] d.h3. 1.{at:06}: qi_submit: iotlb_inv dmar0: 0x300f2 {iova:#x} 0x0 0x0\n"
    )
}

/// `dma_map_phys` or `dma_unmap_phys` of a page.
pub(super) fn phys(at: u64, cpu: u16, name: &str, device: &str, iova: u64) -> String {
    let of_map = if name.contains("unmap") {
        String::new()
    } else {
        format!("phys_addr={:x} ", iova ^ 0x7000_0000)
    };
    format!(
        "  fio-1  [{cpu:03}] ..... 1.{at:06}: {name}: {device} dir=FROM_DEVICE dma_addr={iova:x} \
         size=4096 {of_map}attrs=\n"
    )
}

/// A page that is mapped at `at` and unmapped half a millisecond later, with all its events.
pub(super) fn page_at(at: u64, iova: u64) -> String {
    const DEVICE: &str = "0000:00:01.0";
    piece(at, 0, iova, iova ^ 0x7000_0000, 4096)
        + &phys(at + 1, 0, "dma_map_phys", DEVICE, iova)
        + &take_out(at + 500, 0, iova, 4096)
        + &invalidate(at + 501, 0, iova)
        + &phys(at + 502, 0, "dma_unmap_phys", DEVICE, iova)
}

/// Eight pieces, one unmap and one invalidation: a request of Linux before 6.12, and of NVMe since 6.17.
pub(super) fn list_of_eight(at: u64, iova: u64) -> String {
    let pieces = (0..8).map(|n| piece(at + n, 0, iova + n * 4096, 0x1000_0000 + n * 8192, 4096));
    pieces.collect::<String>()
        + &take_out(at + 500, 0, iova, 32768)
        + &invalidate(at + 501, 0, iova | 0x43)
}

fn whole(sum: &Summary) -> bool {
    let understood = sum.understood;
    (understood.events_pct(), understood.bytes_pct()) == (100.0, 100.0)
}

#[test]
fn what_one_unmap_takes_out_is_one_operation() {
    let sum = read(&list_of_eight(100, 0xfff0_0000)).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.bytes_mapped), (1, 1, 32768));
    assert!(whole(&sum), "{:?}", sum.understood);
}

#[test]
fn mappings_that_have_no_dma_event_are_not_dropped() {
    let sum = read(&(page_at(1, 0xffe0_0000) + &list_of_eight(1000, 0xfff0_0000))).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.bytes_mapped), (2, 2, 4096 + 32768));
    // The only device whose mappings are in a table is taken for the one.
    assert_eq!((sum.devices.len(), sum.inferred_devices), (1, 1));
    assert_eq!((sum.recorded.pages_after_unmap, sum.recorded.pages_after_map), (2, 0));
}

#[test]
fn requests_that_are_linked_to_addresses_are_operations_beside_dma_events() {
    let text = page("1.0", "dma_map_phys", "5000", "4096")
        + &piece(100, 0, 0x10_0000, 0x20_0000, 4096)
        + &piece(101, 0, 0x10_1000, 0x90_0000, 4096)
        + &take_out(102, 0, 0x10_0000, 8192)
        + &page("3.0", "dma_unmap_phys", "5000", "4096");
    let sum = read(&text).unwrap();
    assert_eq!(
        (sum.bytes_mapped, sum.unmaps, sum.bad_lines, sum.left_mapped),
        (4096 + 8192, 2, 0, 0)
    );
}

#[test]
fn a_request_is_where_its_last_piece_is_and_operations_keep_their_order() {
    let text = piece(1, 0, 0x10_0000, 0x20_0000, 4096)
        + &piece(2, 0, 0x10_1000, 0x90_0000, 4096)
        + &phys(3, 1, "dma_map_phys", "nic", 0x5000)
        + &phys(4, 1, "dma_unmap_phys", "nic", 0x5000)
        + &take_out(5, 0, 0x10_0000, 8192);
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
    let mut lines = Vec::new();
    while let Some(op) = reader.next_op() {
        if lines.is_empty() {
            let OpKind::Map { pieces, dma, .. } = op.kind else { panic!("no map") };
            assert_eq!((pieces.len(), dma), (2, 0x10_0000));
            assert!(op.text.starts_with(b"fio-1  [000] ..... 1.000002: map"));
        }
        lines.push((op.line, op.time_ns % 1_000_000));
    }
    assert_eq!(lines, [(2, 2000), (3, 3000), (4, 4000), (5, 5000)]);
}

#[test]
fn pieces_that_an_interrupt_divides_are_one_request() {
    let text = piece(1, 0, 0x10_0000, 0x20_0000, 4096)
        + &page_at(2, 0xffe0_0000)
        + &piece(600, 0, 0x10_1000, 0x90_0000, 4096)
        + &take_out(700, 0, 0x10_0000, 8192);
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.bytes_mapped), (2, 2, 4096 + 8192));
}

#[test]
fn neighbours_that_are_unmapped_one_by_one_are_mapped_one_by_one() {
    let pages = (0..4).map(|n| piece(n, 0, 0x10_0000 + n * 4096, 0x20_0000 + n * 8192, 4096));
    let ends = (0..4).map(|n| take_out(100 + n, 0, 0x10_0000 + n * 4096, 4096));
    let sum = read(&pages.chain(ends).collect::<String>()).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.orphan_unmaps), (4, 4, 0));
}

#[test]
fn a_piece_that_is_taken_out_in_parts_is_as_many_mappings() {
    // VFIO maps contiguous memory at once, and unmaps in the ranges that it is given.
    let text =
        piece(1, 0, 0, 0x1110_f8000, 8192) + &take_out(2, 0, 0, 4096) + &take_out(3, 0, 4096, 4096);
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.orphan_unmaps), (2, 2, 0));
    assert_eq!((sum.bytes_mapped, sum.left_mapped), (8192, 0));
}

#[test]
fn a_part_of_a_mapping_that_was_handed_out_ends_with_the_rest() {
    const DEVICE: &str = "0000:00:01.0";
    let text = piece(1, 0, 0x10_0000, 0x20_0000, 8192)
        + &phys(2, 0, "dma_map_phys", DEVICE, 0x10_0000)
        + &take_out(3, 0, 0x10_0000, 4096)
        + &take_out(4, 0, 0x10_1000, 4096)
        + &phys(5, 0, "dma_unmap_phys", DEVICE, 0x10_0000);
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.partial_unmaps), (1, 1, 1));
    assert_eq!((sum.orphan_unmaps, sum.left_mapped), (0, 0));
}

#[test]
fn two_domains_with_one_address_are_told_apart_by_device_or_counted() {
    let both = |map: fn(u64) -> String, unmap: fn(u64) -> String| {
        (0..5u64)
            .map(|n| {
                map(n * 1000)
                    + &map(n * 1000 + 10)
                    + &unmap(n * 1000 + 500)
                    + &unmap(n * 1000 + 510)
            })
            .collect::<String>()
    };
    let text = both(
        |at| piece(at, 0, 0xffff_f000, 0x100_0000 + at * 4096, 4096),
        |at| take_out(at, 0, 0xffff_f000, 4096),
    );
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.orphan_unmaps, sum.left_mapped), (10, 10, 0, 0));
    assert_eq!(sum.ambiguous_unmaps, 5);
    // With `dma:*` events the devices are told; the second is unmapped first.
    let map = |at, device| {
        piece(at, 0, 0xffff_f000, 0x100_0000, 4096)
            + &phys(at + 1, 0, "dma_map_phys", device, 0xffff_f000)
    };
    let unmap = |at, device| {
        take_out(at, 0, 0xffff_f000, 4096) + &phys(at + 1, 0, "dma_unmap_phys", device, 0xffff_f000)
    };
    let text = map(1, "a") + &map(3, "b") + &unmap(5, "b") + &unmap(7, "a");
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
    let mut done = Vec::new();
    while let Some(op) = reader.next_op() {
        done.push((op.device.0, matches!(op.kind, OpKind::Unmap { .. })));
    }
    assert_eq!(done, [(0, false), (1, false), (1, true), (0, true)]);
    let sum = reader.summary();
    assert_eq!((sum.ambiguous_unmaps, sum.orphan_unmaps), (0, 0));
    assert!(whole(sum));
}

#[test]
fn the_device_of_a_request_is_the_one_that_its_event_names_if_it_does() {
    let of = "IOMMU: dev=1d84000.ufshc iova=0x0000000fffa88000";
    let text = format!(
        "   kworker/0:0-5 [000] ..... 714.634398: map: {of} paddr=0x1063db000 size=4096\n   \
         kworker/0:0-5 [000] ..... 714.634399: unmap: {of} size=4096 unmapped_size=4096\n"
    );
    let sum = read(&text).unwrap();
    assert_eq!((sum.devices, sum.maps, sum.unmaps), (vec!["1d84000.ufshc".to_owned()], 1, 1));
}

#[test]
fn dma_events_that_begin_late_name_what_comes_with_them() {
    let early = (0..10_000u64).map(|n| list_of_eight(n % 900_000, 0xfff0_0000));
    let text = early.collect::<String>() + &page_at(1, 0xffe0_0000);
    assert!(text.len() > 8 << 20);
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps), (10_001, 10_001));
    assert_eq!(sum.devices, ["iommu", "0000:00:01.0"]);
}

#[test]
fn a_list_that_is_mapped_twice_ends_where_the_unmap_beside_it_says() {
    let list = |at, name, extra: &str| {
        format!(
            "  fio-1  [000] ..... 1.{at:06}: {name}: dev dir=TO_DEVICE \
             {extra}phys_addrs={{0x5000,0x9000}} attrs=\n"
        )
    };
    let map = |at, start: u64| {
        let dma = format!("nents=2/2 ents=1/1 dma_addrs={{{start:#x}}} sizes={{0x2000}} ");
        piece(at, 0, start, 0x5000, 4096)
            + &piece(at + 1, 0, start + 4096, 0x9000, 4096)
            + &list(at + 2, "dma_map_sg", &dma)
    };
    let unmap = |at, start: u64| list(at, "dma_unmap_sg", "") + &take_out(at + 1, 0, start, 8192);
    let text = map(1, 0xff00_0000)
        + &map(11, 0xfe00_0000)
        + &unmap(21, 0xfe00_0000)
        + &unmap(31, 0xff00_0000);
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.orphan_unmaps, sum.left_mapped), (2, 2, 0, 0));
    assert!(whole(&sum));
}

#[test]
fn what_is_not_paired_or_read_lowers_what_is_understood() {
    let good = list_of_eight(1, 0xfff0_0000);
    let orphan = read(&(good.clone() + &take_out(900, 0, 0xfff0_0000, 4096))).unwrap();
    assert_eq!(
        (orphan.orphan_unmaps, orphan.understood.events, orphan.understood.events_understood),
        (1, 10, 9)
    );
    assert_eq!(
        (orphan.understood.bytes, orphan.understood.bytes_understood),
        (32768 + 4096, 32768)
    );
    let bad =
        read(&(good.clone() + "  fio-1  [000] ..... 1.5: map: IOMMU: iova=0x1000\n")).unwrap();
    assert_eq!(
        (bad.bad_lines, bad.understood.events, bad.understood.events_understood),
        (1, 10, 9)
    );
    let lost = read(&(good.clone() + "CPU:0 [LOST 9 EVENTS]\n")).unwrap();
    assert_eq!(lost.understood.events_pct(), 50.0);
    // Events that the ring buffer overwrote come before the trace.
    let overwritten = "# entries-in-buffer/entries-written: 10/5000   #P:1\n".to_owned() + &good;
    let overwritten = read(&overwritten).unwrap();
    assert_eq!((overwritten.lost_events, overwritten.understood.events_pct()), (4990, 100.0));
}

#[test]
fn what_firmware_reserves_is_no_operation() {
    let sum = read(&(piece(1, 0, 0, 0, 1 << 24) + &list_of_eight(10, 0xfff0_0000))).unwrap();
    assert_eq!((sum.maps, sum.direct_maps, sum.left_mapped), (1, 1, 0));
}

#[test]
fn mappings_beyond_a_million_are_counted_and_not_kept() {
    let most = 1u64 << 20;
    let maps = (1..most + 10).map(|n| {
        let (at, dma) = (format!("1.{n:07}"), format!("{:x}", n << 12));
        page(&at, "dma_map_page", &dma, "4096")
    });
    let sum = drain(Reader::new(Box::new(Generated::new(maps))).unwrap());
    assert_eq!((sum.maps, sum.maps_beyond, sum.max_live), (most, 9, most));
    let understood = sum.understood;
    assert_eq!(understood.events - understood.events_understood, 9);
}

/// A card's ring is full when the recording begins.
#[test]
fn what_was_mapped_before_the_trace_is_understood_when_it_is_unmapped() {
    let event = |name: &str, at: u64, dma: u64| {
        let of = format!("nic dir=FROM_DEVICE dma_addr={dma:x} size=4096");
        format!("  n-1 [000] ..... 1.{at:06}: {name}: {of} phys_addr={dma:x} attrs=\n")
    };
    let buffer = |n: u64| {
        event("dma_unmap_phys", 2 * n, 0xff00_0000 + n * 4096)
            + &event("dma_map_phys", 2 * n + 1, 0xfe00_0000 + n * 4096)
    };
    let sum = read(&(0..64).map(buffer).collect::<String>()).unwrap();
    assert_eq!((sum.maps, sum.orphan_unmaps), (64, 64));
    assert_eq!((sum.understood.events_pct(), sum.understood.bytes_pct()), (100.0, 100.0));
    // More than were ever mapped at once are no ring.
    let text: String = (0..9)
        .map(|n| event("dma_unmap_phys", n, 0xff00_0000 + n * 4096))
        .chain((0..8).map(|n| event("dma_map_phys", 20 + n, 0xfe00_0000 + n * 4096)))
        .collect();
    let sum = read(&text).unwrap();
    assert_eq!((sum.understood.events, sum.understood.events_understood), (17, 8));
    // If the trace has mapped and unmapped there before, an event is missing.
    let text = [
        event("dma_map_phys", 1, 0xff00_0000),
        event("dma_unmap_phys", 2, 0xff00_0000),
        event("dma_unmap_phys", 3, 0xff00_0000),
    ];
    let sum = read(&text.concat()).unwrap();
    assert_eq!((sum.understood.events, sum.understood.events_understood), (3, 2));
}

/// A card's buffer from before the trace is unmapped; its address goes to another CPU before that is printed.
#[test]
fn an_address_that_is_given_out_before_its_unmap_is_printed_is_unmapped_once() {
    let named = |at: u64, cpu: u16, name: &str| {
        let of = "nic dir=TO_DEVICE dma_addr=ff0000be size=1526";
        format!("  n-1 [{cpu:03}] ..... 1.{at:06}: {name}: {of} phys_addr=50be attrs=\n")
    };
    let text = take_out(1, 0, 0xff00_0000, 4096)
        + &piece(2, 1, 0xff00_0000, 0x5000, 4096)
        + &named(3, 1, "dma_map_page")
        + &named(4, 0, "dma_unmap_page")
        + &take_out(5, 1, 0xff00_0000, 4096)
        + &named(6, 1, "dma_unmap_page");
    let sum = read(&text).unwrap();
    assert_eq!((sum.maps, sum.unmaps, sum.orphan_unmaps, sum.left_mapped), (1, 1, 1, 0));
}

/// The other CPU unmaps the address again before either event is printed; then the same by clocks that differ.
#[test]
fn an_address_that_two_cpus_unmap_at_once_is_unmapped_twice() {
    let named = |at: u64, cpu: u16, name| phys(at, cpu, name, "nic", 0xff00_0000);
    let map = piece(2, 1, 0xff00_0000, 0x5000, 4096) + &named(3, 1, "dma_map_phys");
    let [ours, theirs] = [0, 1].map(|cpu| take_out(4, cpu, 0xff00_0000, 4096));
    let ends = named(5, 0, "dma_unmap_phys") + &named(6, 1, "dma_unmap_phys");
    let late = named(5, 1, "dma_unmap_phys") + &named(6, 0, "dma_unmap_phys");
    for text in [ours.clone() + &map + &theirs + &ends, map + &ours + &theirs + &late] {
        let sum = read(&text).unwrap();
        assert_eq!(
            (sum.maps, sum.unmaps, sum.orphan_unmaps, sum.left_mapped),
            (1, 1, 1, 0),
            "{text}"
        );
    }
}
