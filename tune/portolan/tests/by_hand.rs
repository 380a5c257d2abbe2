//! A trace of a few lines whose counters are worked out by hand, for every policy that translates.

use portolan_sim::profile::{Event, Profile};
use portolan_tune::counts::Invalidations;
use portolan_tune::replay::{Policy, PolicyReport, Replay, ReplayReport};
use portolan_tune::trace::Reader;

/// Three pages in one list, one page with an offset, and two pages that a small buffer touches. The last unmap is 20
/// ms after the first, so that the lazy queue's timer fires in between.
const TRACE: &str = "\
# tracer: nop
#
 a-1 [000] ..... 1.000000: dma_map_sg: 0000:00:01.0 dir=TO_DEVICE nents=3/3 ents=1/1 \
    dma_addrs={0xfff00000} sizes={0x3000} phys_addrs={0x10000,0x30000,0x50000} attrs=
 a-1 [000] ..... 1.000100: dma_map_page: 0000:00:01.0 dir=FROM_DEVICE dma_addr=ffe00840 \
    size=1522 phys_addr=70840 attrs=
 a-1 [000] ..... 1.000200: dma_map_page: 0000:00:01.0 dir=FROM_DEVICE dma_addr=ffd00ff0 \
    size=32 phys_addr=90ff0 attrs=
 a-1 [000] ..... 1.001000: dma_unmap_sg: 0000:00:01.0 dir=TO_DEVICE phys_addrs={0x10000,0x30000,0x50000} attrs=
 a-1 [000] ..... 1.002000: dma_unmap_page: 0000:00:01.0 dir=FROM_DEVICE dma_addr=ffe00840 size=1522 attrs=
 a-1 [000] ..... 1.021000: dma_unmap_page: 0000:00:01.0 dir=FROM_DEVICE dma_addr=ffd00ff0 size=32 attrs=
";

fn run() -> (Profile, ReplayReport) {
    run_text(TRACE)
}

fn run_text(text: &'static str) -> (Profile, ReplayReport) {
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let mut reader = Reader::new(Box::new(text.as_bytes())).unwrap();
    let report = Replay::new(&profile, &Policy::ALL).run(&mut reader).unwrap();
    (profile, report)
}

fn of(report: &ReplayReport, policy: Policy) -> &PolicyReport {
    report.policies.iter().find(|p| p.policy == policy.name()).unwrap()
}

#[test]
fn trace_is_counted() {
    let (_, report) = run();
    let trace = &report.trace;
    assert_eq!((trace.events, trace.maps, trace.unmaps), (6, 3, 3));
    assert_eq!(trace.bytes_mapped, 3 * 4096 + 1522 + 32);
    assert_eq!((trace.orphan_unmaps, trace.bad_lines, trace.left_mapped), (0, 0, 0));
}

#[test]
fn commands_by_policy() {
    let (_, report) = run();
    let none = Invalidations::default();
    let page = of(&report, Policy::StrictPage);
    assert_eq!(page.invalidations, Invalidations { page: 3 + 1 + 2, ..none });
    assert_eq!(page.syncs, 3);
    let range = of(&report, Policy::StrictRange);
    assert_eq!(range.invalidations, Invalidations { range: 3, ..none });
    // Four pages for the three, one, two.
    assert_eq!(range.masks, [(2, 1), (0, 1), (1, 1)].into());
    assert_eq!(range.syncs, 3);
    let context = of(&report, Policy::StrictContext);
    assert_eq!((context.invalidations, context.syncs), (Invalidations { context: 3, ..none }, 3));
    // One when the timer fires at 1.011, one for the rest at the end.
    let lazy = of(&report, Policy::Lazy);
    assert_eq!((lazy.invalidations, lazy.syncs), (Invalidations { context: 2, ..none }, 2));
}

#[test]
fn device_and_exposure() {
    let (profile, report) = run();
    for policy in &report.policies {
        assert_eq!((policy.operations, policy.mapped_peak), (6, 3), "{}", policy.policy);
        assert_eq!(policy.device.accesses, 6, "{}", policy.policy);
        assert_eq!(policy.device.faults, 0, "{}", policy.policy);
        // Root, two levels below it, and one leaf table: the first addresses of all sizes lie in it.
        assert_eq!(policy.table_pages_peak, 4, "{}", policy.policy);
    }
    let us = |events: &[(u64, Event)]| {
        let price = |event: &Event| profile.price(*event).unwrap();
        events.iter().map(|(n, event)| *n as f64 * price(event)).sum::<f64>() / 1000.0
    };
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} is not {b}");
    let page = of(&report, Policy::StrictPage);
    assert_eq!(page.exposed.max_bytes, 3 * 4096);
    close(page.exposed.max_us, us(&[(3, Event::CmdPage), (1, Event::Sync)]));
    close(page.time_us.invalidation, us(&[(6, Event::CmdPage)]));
    close(page.time_us.sync_wait, us(&[(3, Event::Sync)]));
    close(page.time_us.map, us(&[(3, Event::MapCall), (6, Event::PteWrite)]));
    let range = of(&report, Policy::StrictRange);
    close(range.exposed.max_us, us(&[(1, Event::CmdRange), (1, Event::Sync)]));
    let lazy = of(&report, Policy::Lazy);
    // The list and the page wait together; the oldest waits the full 10 ms.
    assert_eq!(lazy.exposed.max_bytes, 4 * 4096);
    close(lazy.exposed.max_us, 10_000.0 + us(&[(1, Event::CmdContext), (1, Event::Sync)]));
}

/// Three CPUs that unmap a page each at the same moment; one has mapped them all.
const MEETING: &str = "\
# tracer: nop
#
 a-1 [000] ..... 1.000000: dma_map_page: 0000:00:01.0 dir=TO_DEVICE dma_addr=fff00000 size=4096 phys_addr=10000 attrs=
 a-1 [000] ..... 1.000100: dma_map_page: 0000:00:01.0 dir=TO_DEVICE dma_addr=ffe00000 size=4096 phys_addr=30000 attrs=
 a-1 [000] ..... 1.000200: dma_map_page: 0000:00:02.0 dir=TO_DEVICE dma_addr=ffd00000 size=4096 phys_addr=50000 attrs=
 a-1 [000] ..... 1.001000: dma_unmap_page: 0000:00:01.0 dir=TO_DEVICE dma_addr=fff00000 size=4096 attrs=
 b-2 [001] ..... 1.001000: dma_unmap_page: 0000:00:01.0 dir=TO_DEVICE dma_addr=ffe00000 size=4096 attrs=
 c-3 [002] ..... 1.001000: dma_unmap_page: 0000:00:02.0 dir=TO_DEVICE dma_addr=ffd00000 size=4096 attrs=
";

#[test]
fn unmaps_that_meet_wait_for_each_other_or_share_a_sync() {
    let (profile, report) = run_text(MEETING);
    let price = |event| profile.price(event).unwrap() / 1000.0;
    let (command, sync) = (price(Event::CmdRange), price(Event::Sync));
    let check = |policy, syncs, longest_us: f64| {
        let found = of(&report, policy);
        assert_eq!((found.syncs, found.device.faults), (syncs, 0), "{policy}");
        assert_eq!(found.exposed.max_bytes, 3 * 4096, "{policy}");
        // A CPU that waits for another one looks every 100 ns.
        let late = found.exposed.max_us - longest_us;
        assert!((-1e-3..0.2).contains(&late), "{policy}: {found:?}");
    };
    check(Policy::StrictRange, 3, 3.0 * (command + sync));
    // The first is alone; the other two are submitted together once it has ended.
    check(Policy::Combined, 2, 3.0 * command + 2.0 * sync);
    // Each CPU's queue comes due at the same moment, and each sends a command: the first drops all of the space.
    let context = price(Event::CmdContext);
    check(Policy::Lazy, 3, 10_000.0 + context + sync);
}

/// A request of `pages` pages, each a piece, that takes `ms` milliseconds, with or without an invalidation at its
/// unmap.
fn request(ms: u64, pages: u64, invalidated: bool) -> String {
    let line = |us: u64, name: &str, says: &str| {
        let at = ms * 1000 + us;
        let (s, us) = (1 + at / 1_000_000, at % 1_000_000);
        format!(" a-1 [000] ..... {s}.{us:06}: {name}: {says}\n")
    };
    let start = 0xfff0_0000u64;
    let piece = |n: u64| {
        let (first, end) = (start + n * 4096, start + (n + 1) * 4096);
        let pa = 0x1000_0000 + n * 8192;
        let says = format!("IOMMU: iova={first:#018x} - {end:#018x} paddr={pa:#018x} size=4096");
        line(n, "map", &says)
    };
    let bytes = pages * 4096;
    let end = start + bytes;
    let says =
        format!("IOMMU: iova={start:#018x} - {end:#018x} size={bytes} unmapped_size={bytes}");
    let unmap = line(500, "unmap", &says);
    let command = if invalidated {
        format!("iotlb_inv dmar0: 0x300f2 {:#x} 0x0 0x0", start | 0x43)
    } else {
        return (0..pages).map(piece).collect::<String>() + &unmap;
    };
    (0..pages).map(piece).collect::<String>() + &unmap + &line(501, "qi_submit", &command)
}

fn predicted(text: String) -> serde_json::Value {
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
    let report = Replay::new(&profile, &Policy::ALL).run(&mut reader).unwrap();
    serde_json::to_value(&report).unwrap()
}

/// Since 7.3 Linux waits for requests of several pieces, lazy or not; before, it does not.
#[test]
fn a_lazy_kernel_of_unknown_release_sends_a_range() {
    let strict = predicted((0..300).map(|ms| request(ms, 2, true)).collect());
    let range = &strict["predicted"]["lazy_range"];
    assert!(range["least"].as_u64() < Some(30), "{range}");
    assert!(range["most"].as_u64() >= Some(300), "{range}");
    assert!(range["reason"].as_str().unwrap().contains("nothing tells"), "{range}");
    let lazy = &strict["advice"][0];
    assert_eq!(lazy["value"], "iommu.strict=0");
    assert!(lazy["assumes"].to_string().contains("older than 7.3"), "{lazy}");
    let least_saved = lazy["effect"]["saving"]["range_pct"][0].as_f64().unwrap();
    assert!(least_saved < 5.0, "{lazy}");
}

/// Pages without and requests with an invalidation: evidence in the trace outranks its release.
#[test]
fn the_invalidations_of_a_lazy_kernel_tell_its_release() {
    let flush = " a-1 [000] ..... 1.000900: qi_submit: iotlb_inv dmar0: 0x300e2 0x0 0x0 0x0\n";
    let text = |invalidated| -> String {
        let four = |ms: u64| match ms % 4 {
            0 => request(ms, 2, invalidated),
            _ => request(ms, 1, false),
        };
        flush.to_owned() + &(0..400).map(four).collect::<String>()
    };
    let newest = predicted(text(true));
    assert_eq!(newest["situation"]["now"], "lazy");
    assert_eq!(newest["predicted"]["lazy_unqueued"], 100);
    let older = predicted(text(false));
    assert_eq!(older["predicted"]["lazy_unqueued"], 0);
    for report in [newest, older] {
        let range = &report["predicted"]["lazy_range"];
        assert!(!range["reason"].as_str().unwrap().contains("perhaps"), "{range}");
    }
}

/// Times of the clock x86-tsc are numbers without a unit: the work of a lazy kernel by them is not told.
#[test]
fn times_without_a_unit_give_no_advice_that_depends_on_time() {
    let text: String = (0..300).map(|ms| request(ms, 2, true)).collect();
    let ticks = text.replace("000] ..... 1.", "000] ..... 1");
    let [seconds, ticks] = [text, ticks].map(predicted);
    assert_eq!(
        (seconds["trace"]["clock"].as_str(), ticks["trace"]["clock"].as_str()),
        (Some("seconds"), Some("ticks"))
    );
    let policies = |report: &serde_json::Value| {
        let settings = report["advice"].as_array().unwrap().iter();
        settings.filter(|one| one["value"] == "iommu.strict=0").count()
    };
    assert_eq!((policies(&seconds), policies(&ticks)), (1, 0));
    assert!(seconds["cost"].is_object() && ticks["cost"].is_null());
    assert_eq!(ticks["sent"], seconds["sent"]);
}
