//! Swapping the two swaps all sentences; equals are equal; replays that cannot be compared are named as such.

use std::io::Cursor;

use portolan_sim::profile::Profile;

use super::*;
use crate::replay::{Policy, Replay};
use crate::trace::Reader;

/// A replay of `maps` maps of `bytes` on `machine`.
fn replayed(maps: u64, bytes: u64, machine: &str) -> ReplayReport {
    let mut lines = String::from("# tracer: nop\n");
    for n in 0..maps.max(1) {
        let at = 10.0 + n as f64 / 1000.0;
        let (address, event) = (0x1000_0000 + n * 0x10_0000, "0000:00:01.0");
        if maps > 0 {
            lines += &format!(
                " a-1 [000] d.... {at:.6}: dma_map_page: {event} dir=FROM_DEVICE dma_addr={address:x} size={bytes} \
                 phys_addr={address:x} attrs=\n a-1 [000] d.... {:.6}: dma_unmap_page: {event} dir=FROM_DEVICE \
                 dma_addr={address:x} size={bytes} attrs=\n",
                at + 0.0001
            );
        } else {
            lines += " a-1 [000] d.... 1.000000: sched_wakeup: comm=a pid=1\n";
        }
    }
    let mut reader = Reader::new(Box::new(Cursor::new(lines))).unwrap();
    let profile = Profile::by_name(machine).unwrap();
    let report = Replay::new(&profile, &Policy::ALL).run(&mut reader).unwrap();
    assert_eq!(report.trace.maps, maps);
    report
}

fn all(two: &Comparison) -> impl Iterator<Item = &Difference> {
    let of_policies = two.policies.iter().flat_map(|pair| &pair.figures);
    two.work.iter().chain(of_policies)
}

#[test]
fn swapping_the_two_swaps_all_that_is_said() {
    let one = replayed(20, 4096, "xeon-vtd");
    let other = replayed(7, 300_000, "tegra210");
    let there = Comparison::new(one.clone(), other.clone());
    let back = Comparison::new(other, one);
    assert_eq!(there.measure, Some(Measure::Mib));
    assert_eq!(all(&there).count(), all(&back).count());
    let mut ratios = 0;
    for (there, back) in all(&there).zip(all(&back)) {
        assert_eq!((there.figure, there.by), (back.figure, back.by));
        assert_eq!((there.a, there.b), (back.b, back.a));
        assert_eq!(there.difference, back.difference.map(|d| -d));
        let swapped = back.better.map(|side| match side {
            Side::A => Side::B,
            Side::B => Side::A,
        });
        assert_eq!(there.better, swapped);
        if let (Some(ratio), Some(other)) = (there.ratio, back.ratio) {
            assert!((ratio * other - 1.0).abs() < 1e-12, "{there:?} {back:?}");
            ratios += 1;
        }
    }
    assert!(ratios > 50, "{ratios}");
    // The half that costs less is the same one, under the other name.
    let said = |two: &Comparison, words: &str| two.findings[1].contains(words);
    assert!(said(&there, "A costs ") != said(&there, "B costs "));
    assert_eq!(said(&there, "A costs "), said(&back, "B costs "));
    let pct = |two: &Comparison| {
        let costs = two.findings[1].rsplit(" costs ").next().unwrap().to_owned();
        costs.split(" than").next().unwrap().to_owned()
    };
    assert_eq!(pct(&there), pct(&back));
}

#[test]
fn equal_replays_are_equal_in_every_figure() {
    let two = Comparison::new(replayed(5, 4096, "grace"), replayed(5, 4096, "grace"));
    assert_eq!(two.measure, Some(Measure::Total));
    for one in all(&two) {
        assert_eq!((one.difference.unwrap_or(0.0), one.better), (0.0, None), "{one:?}");
        assert_eq!(one.ratio.unwrap_or(1.0), 1.0);
    }
    assert!(two.findings[1].contains("the same under each policy"), "{:?}", two.findings);
}

#[test]
fn other_amounts_are_compared_by_operation_and_other_loads_by_mib() {
    let of = |maps, bytes| replayed(maps, bytes, "xeon-vtd");
    let two = Comparison::new(of(10, 4096), of(30, 4096));
    assert_eq!(two.measure, Some(Measure::Operation));
    let range = two.policies.iter().find(|pair| pair.policy == "strict-range").unwrap();
    let total = range.figure("time_us.cpu", Measure::Total).unwrap();
    assert!(total.ratio.unwrap() > 2.5);
    let each = range.figure("invalidations", Measure::Operation).unwrap();
    assert_eq!((each.a, each.b), (Some(0.5), Some(0.5)));
    let two = Comparison::new(of(10, 4096), of(10, 65536));
    assert_eq!(two.measure, Some(Measure::Mib));
}

#[test]
fn what_cannot_be_compared_is_said_and_printed_all_the_same() {
    let nothing = || replayed(0, 0, "xeon-vtd");
    for (a, b, words) in [
        (nothing(), replayed(1, 4096, "xeon-vtd"), "A maps nothing"),
        (replayed(1, 4096, "xeon-vtd"), nothing(), "B maps nothing"),
        (nothing(), nothing(), "neither maps anything"),
    ] {
        let two = Comparison::new(a, b);
        assert_eq!(two.measure, None);
        assert!(two.findings[0].contains(words), "{:?}", two.findings);
        let text = text(&two, 80);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let json = serde_json::to_string(&two).unwrap();
        assert!(json.contains("\"measure\":null"));
    }
}

#[test]
fn another_trace_on_another_machine_is_said_to_be_both() {
    let mut other = replayed(3, 4096, "grace");
    other.trace.source = "another".to_owned();
    other.trace.orphan_unmaps = 2;
    let two = Comparison::new(replayed(3, 4096, "xeon-vtd"), other);
    let said = two.findings.join("\n");
    assert!(said.contains("Both the trace and the machine are others"), "{said}");
    assert!(said.contains("B is not whole: 2 unmaps without a map"), "{said}");
}
