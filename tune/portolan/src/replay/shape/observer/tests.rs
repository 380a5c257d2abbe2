//! Traces written by hand, of which every count is known.

use super::*;
use crate::trace::Reader;

fn shape(text: &str) -> TraceShape {
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.as_bytes().to_vec()))).unwrap();
    let mut observer = Observer::default();
    let mut now_ns = 0;
    while let Some(op) = reader.next_op() {
        now_ns = now_ns.max(op.time_ns);
        observer.note(&op, now_ns);
    }
    observer.finish(&reader.summary().devices)
}

const NETWORK: &str = "\
# tracer: nop
 x-1 [000] d. 1.000000: map: IOMMU: iova=0xfff00000 - 0xfff01000 paddr=0x5000 size=4096
 x-1 [000] d. 1.000000: dma_map_page: 0000:00:02.0 dir=FROM_DEVICE dma_addr=fff00040 size=1522 phys_addr=5040 attrs=
 x-1 [000] d. 1.000001: dma_alloc: 0000:00:03.0 dir=BIDIRECTIONAL dma_addr=fff10000 size=8192 virt_addr=1 flags= attrs=
 x-1 [001] d. 1.001000: dma_unmap_page: 0000:00:02.0 dir=FROM_DEVICE dma_addr=fff00040 size=1522 attrs=
 x-1 [001] d. 1.002000: dma_map_page: 0000:00:02.0 dir=FROM_DEVICE dma_addr=fff00840 size=1522 phys_addr=5840 attrs=
 x-1 [001] d. 1.003000: dma_map_page: 0000:00:02.0 dir=TO_DEVICE dma_addr=5040 size=8192 phys_addr=5040 attrs=
 x-1 [001] d. 1.003004: dma_unmap_page: 0000:00:02.0 dir=TO_DEVICE dma_addr=5040 size=8192 attrs=
";

#[test]
fn sizes_lifetimes_devices_and_cpus_are_counted_with_their_lines() {
    let shape = shape(NETWORK);
    let seen = |count, bytes, line| OperationGroup { count, bytes, first_line: Some(line) };
    assert_eq!(shape.span_ns, 3_004_000);
    assert_eq!(shape.streaming.maps, seen(3, 1522 + 1522 + 8192, 3));
    let sizes: Vec<_> = shape.streaming.sizes.iter().collect();
    assert_eq!(sizes, [(&10, &seen(2, 3044, 3)), (&13, &seen(1, 8192, 7))]);
    // A millisecond and four microseconds.
    let lived: Vec<_> = shape.streaming.lifetimes_ns.iter().collect();
    assert_eq!(lived, [(&11, &seen(1, 8192, 8)), (&19, &seen(1, 1522, 5))]);
    assert_eq!(shape.streaming.lifetimes_sum_ns, 1_004_000);
    assert_eq!(shape.streaming.left_mapped, 1);
    assert_eq!(shape.streaming.unmaps, seen(2, 9714, 5));
    assert_eq!(shape.coherent.maps, seen(1, 8192, 4));
    assert_eq!(shape.coherent.left_mapped, 1);
    let names: Vec<_> = shape.devices.iter().map(|share| &*share.name).collect();
    assert_eq!(names, ["0000:00:02.0", "0000:00:03.0"]);
    assert_eq!((shape.devices[0].maps.count, shape.devices[0].unmaps), (3, 2));
    let cpus = shape.cpus.iter().map(|share| share.maps.count);
    assert_eq!(cpus.collect::<Vec<_>>(), [2, 2]);
    assert_eq!(shape.directions.from_device.count, 2);
    assert_eq!(shape.directions.to_device, seen(1, 8192, 7));
}

#[test]
fn buffers_are_known_again_by_where_they_begin() {
    let shape = shape(NETWORK);
    // 5040 twice, 5840 once, and a page of unknown place that is coherent.
    assert_eq!((shape.reused.count, shape.reused.first_line), (1, Some(7)));
    assert_eq!((shape.buffers, shape.reuse_unknown), (2, 0));
    assert_eq!(shape.reused_lifetimes_ns.keys().collect::<Vec<_>>(), [&11]);
    assert_eq!((shape.off_page.count, shape.short.count), (3, 2));
    assert_eq!(shape.untranslated.first_line, Some(7));
    let line = shape.excerpt(&shape.reused).unwrap();
    assert!(line.line == 7 && line.text.starts_with("x-1 [001]"), "{line:?}");
    assert!(line.text.contains("dir=TO_DEVICE dma_addr=5040"), "{line:?}");
}

#[test]
fn lists_of_single_pages_large_maps_and_high_addresses_are_seen() {
    let pages: Vec<String> =
        (0..33).map(|n| format!("{:x}", 0x1_0000_0000u64 + n * 0x2000)).collect();
    let trace = format!(
        " x-1 [000] d. 1.0: dma_map_sg: nvme dir=FROM_DEVICE dma_addrs={{0xfffff000}} sizes={{{:#x}}} \
         phys_addrs={{0x{}}} attrs=\n x-1 [000] d. 1.1: dma_map_page: nvme dir=TO_DEVICE dma_addr=7000 size=131072 \
         phys_addr=10000 attrs=\n",
        33 * 4096,
        pages.join(",0x"),
    );
    let shape = shape(&trace);
    assert_eq!(
        shape.pieces.iter().map(|(n, seen)| (*n, seen.count)).collect::<Vec<_>>(),
        [(0, 1), (5, 1)]
    );
    assert_eq!(shape.piece_sizes[&12].count, 33);
    assert_eq!((shape.scattered.count, shape.scattered.first_line), (1, Some(1)));
    assert_eq!(shape.scattered_pieces, 33);
    // 33 pages are more than the caches serve, 32 are not.
    assert_eq!((shape.above_caches.count, shape.above_caches.bytes), (1, 33 * 4096));
    assert_eq!((shape.dma_above_4g.count, shape.memory_above_4g.count), (1, 1));
}

#[test]
fn bounced_bytes_and_the_slots_they_take_at_once() {
    let trace = "\
 x-1 [000] d. 1.0: swiotlb_bounced: dev_name: d dma_mask=ffffffff dev_addr=5000 size=4096 FORCE
 x-1 [000] d. 1.0: dma_map_page: d dir=FROM_DEVICE dma_addr=70000 size=4096 phys_addr=5000 attrs=
 x-1 [000] d. 1.1: swiotlb_bounced: dev_name: d dma_mask=ffffffff dev_addr=6000 size=100 FORCE
 x-1 [000] d. 1.1: dma_map_page: d dir=FROM_DEVICE dma_addr=71000 size=100 phys_addr=6000 attrs=
 x-1 [000] d. 1.2: dma_unmap_page: d dir=FROM_DEVICE dma_addr=70000 size=4096 attrs=
 x-1 [000] d. 1.3: dma_map_page: d dir=FROM_DEVICE dma_addr=8000 size=4096 phys_addr=8000 attrs=
";
    let shape = shape(trace);
    assert_eq!((shape.bounced.count, shape.bounced.bytes), (2, 4196));
    assert_eq!(shape.bounce_copied_bytes, 2 * 4196);
    assert_eq!(shape.bounced_slots_peak, 3);
    assert_eq!(shape.bounced_slots_peak_at.as_ref().map(|at| at.line), Some(4));
    assert_eq!(shape.devices[0].bounced.count, 2);
    assert_eq!(shape.untranslated.count, 1);
}

#[test]
fn what_is_beyond_the_bounds_is_summed_and_odd_times_do_no_harm() {
    let mut trace = String::new();
    for n in 0..MOST_DEVICES + 3 {
        let time = if n % 2 == 0 { 18_446_744_073u64 } else { 0 };
        trace.push_str(&format!(
            " x-1 [{:03}] d. {time}.0: dma_map_page: d{n} dir=NONE dma_addr={n:x}000 size=1 phys_addr=1000 attrs=\n",
            n + MOST_CPUS - 1,
        ));
    }
    let shape = shape(&trace);
    assert_eq!(shape.devices.len(), MOST_DEVICES);
    assert_eq!(shape.other_devices.maps.count, 3);
    assert_eq!(shape.streaming.maps.count, MOST_DEVICES as u64 + 3);
    assert_eq!(shape.directions.none.count, shape.streaming.maps.count);
    assert_eq!(shape.reused.count, 0);
    assert_eq!(shape.span_ns, 0);
}
