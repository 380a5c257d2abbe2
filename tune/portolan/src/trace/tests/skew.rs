//! CPUs whose clocks differ.

use super::*;

const MAPPER: u16 = 0;
const HANDLER: u16 = 1;
/// Time between two events, in nanoseconds.
const STEP_NS: u64 = 50_000;
const REQUESTS: u64 = 40;

/// Requests of one address, one after the other: mapped on one CPU and unmapped on the same, every fourth on another
/// whose clock is `behind_ns` late. Lines are in the true order.
fn requests(behind_ns: u64) -> Vec<(u64, String)> {
    let mut lines = Vec::new();
    let mut now = 1_000_000_000;
    let mut say = |cpu: u16, event: &str| {
        now += STEP_NS;
        let at = now - if cpu == HANDLER { behind_ns } else { 0 };
        let (seconds, ns) = (at / 1_000_000_000, at % 1_000_000_000);
        lines.push((at, format!("  fio-7 [{cpu:03}] ..... {seconds}.{ns:09}: {event}\n")));
    };
    for request in 0..REQUESTS {
        // Buffers begin anywhere in their page.
        let dma = format!("0000:00:03.0 dir=TO_DEVICE dma_addr=ff001{request:03x} size=64");
        say(MAPPER, "map: IOMMU: iova=0xff001000 paddr=0x2000 size=4096");
        say(MAPPER, &format!("dma_map_page: {dma} phys_addr=2000 attrs="));
        let cpu = match request % 4 {
            3 => HANDLER,
            _ => MAPPER,
        };
        say(cpu, "unmap: IOMMU: iova=0xff001000 size=4096 unmapped_size=4096");
        say(cpu, &format!("dma_unmap_page: {dma} attrs="));
    }
    lines
}

fn in_order_of_time(behind_ns: u64) -> String {
    let mut lines = requests(behind_ns);
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().map(|(_, line)| line).collect()
}

#[test]
fn an_unmap_that_comes_before_its_map_of_another_cpu_is_said() {
    let agree = read(&in_order_of_time(0)).unwrap();
    let maps = (agree.maps, agree.unmaps, agree.orphan_unmaps);
    assert_eq!(maps, (REQUESTS, REQUESTS, 0));
    assert_eq!((agree.early_unmaps, agree.skew_ns), (0, 0));

    let behind = 4 * STEP_NS - STEP_NS / 2;
    let differ = read(&in_order_of_time(behind)).unwrap();
    assert_eq!(differ.early_unmaps, REQUESTS / 4, "{differ:?}");
    assert_eq!(differ.early_unmap_lines.len() as u64, REQUESTS / 4);
    assert!(differ.early_ns > 0 && differ.early_ns < behind, "{differ:?}");
    let replayed = (differ.maps, differ.unmaps, differ.orphan_unmaps);
    assert_eq!(replayed, (REQUESTS * 3 / 4, REQUESTS * 3 / 4, REQUESTS / 4));
    assert_eq!((differ.out_of_order, differ.skew_ns), (0, 0));
    let understood = differ.understood.pct().events_pct;
    assert!(understood < 95.0, "no advice is given: {understood}");
}

#[test]
fn a_cpu_that_is_behind_in_the_order_of_lines_is_said() {
    let text: String = requests(7 * STEP_NS).into_iter().map(|(_, line)| line).collect();
    let differ = read(&text).unwrap();
    assert_eq!((differ.unmaps, differ.early_unmaps), (REQUESTS, 0));
    assert_eq!(differ.skew_ns, 6 * STEP_NS);
    // One CPU alone that goes back is no other's clock.
    let at = |time: &str| {
        format!("  fio-1 [000] ..... {time}: map: IOMMU: iova=0x1000 paddr=0x2000 size=4096\n")
    };
    let back = read(&(at("1.4") + &at("1.2") + &at("1.3"))).unwrap();
    assert_eq!((back.out_of_order, back.skew_ns), (2, 0));
}

/// Two devices have one address: one had it before the trace, and the other maps it again and again.
#[test]
fn an_unmap_of_memory_from_before_is_no_early_one() {
    let text = in_order_of_time(0);
    let other = "  fio-7 [001] ..... 1.001000025: dma_unmap_page: 0000:00:04.0 dir=TO_DEVICE dma_addr=ff001000 \
                 size=4096 attrs=\n  fio-7 [000] ..... 1.001000030: dma_map_page: 0000:00:04.0 dir=TO_DEVICE \
                 dma_addr=ff001000 size=4096 phys_addr=3000 attrs=\n";
    let (before, after) =
        text.split_at(text.find("1.0010").and_then(|at| text[..at].rfind('\n')).unwrap() + 1);
    let both = read(&format!("{before}{other}{after}")).unwrap();
    assert_eq!((both.orphan_unmaps, both.early_unmaps), (1, 0));
}
