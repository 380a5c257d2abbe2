//! Sums are the same in any order; devices that share a trace; traces that hold nothing.

use super::*;
use crate::fleet::DeviceWork;
use crate::replay::TraceReport;

fn policy(name: &str, total: f64, operations: u64) -> PolicyReport {
    PolicyReport {
        policy: name.to_owned(),
        operations,
        time_us: TimeByCause { total, cpu: total, ..TimeByCause::default() },
        ..PolicyReport::default()
    }
}

fn entry(source: &str, machine: &str, devices: &[(&str, u64)], costs: &[(&str, f64)]) -> Entry {
    let maps = devices.iter().map(|(_, maps)| maps).sum();
    let work = |&(device, maps): &(&str, u64)| DeviceWork {
        device: device.to_owned(),
        maps,
        bytes_mapped: maps * 4096,
    };
    Entry {
        trace: TraceReport {
            source: source.to_owned(),
            maps,
            bytes_mapped: maps * 4096,
            ..TraceReport::default()
        },
        machine: machine.to_owned(),
        policies: costs.iter().map(|&(name, us)| policy(name, us, 2 * maps)).collect(),
        load: "up to 4 KiB, from device".to_owned(),
        by_device: devices.iter().map(work).collect(),
        cost: None,
        advice: Vec::new(),
    }
}

fn some() -> Vec<Entry> {
    let costs = |scale: f64| {
        [("strict-page", 10.1 * scale), ("strict-range", 10.1 * scale), ("lazy", 3.3 * scale)]
    };
    vec![
        entry("a", "m", &[("nvme", 10)], &costs(0.1)),
        entry("b", "m", &[("nvme", 20), ("nic", 5)], &costs(1e9)),
        entry("c", "n", &[("nic", 7)], &costs(0.7)),
        entry("c", "n", &[("nic", 7)], &costs(0.3)),
        entry("d", "n", &[("nic", 1)], &[("lazy", 1.0), ("strict-range", 0.5)]),
    ]
}

#[test]
fn the_order_of_traces_changes_nothing() {
    let mut entries = some();
    let failed = || vec![Failed::new("y", "bad".into()), Failed::new("x", "bad".into())];
    let first = Aggregate::new(&entries, failed());
    for seed in 0..20 {
        fastrand::Rng::with_seed(seed).shuffle(&mut entries);
        let mut failed = failed();
        failed.reverse();
        assert_eq!(Aggregate::new(&entries, failed), first, "seed {seed}");
    }
}

#[test]
fn sums_are_those_of_the_traces() {
    let sum = Aggregate::new(&some(), Vec::new());
    assert_eq!((sum.all.traces, sum.all.maps), (5, 50));
    let [m, n] = sum.by_machine.as_slice() else { panic!("two machines") };
    assert_eq!((m.name.as_str(), m.traces, m.maps), ("m", 2, 35));
    // Of equals the one by range is named; under it alone all traces of `n` were replayed.
    assert_eq!(n.least_strict.as_deref(), Some("strict-range"));
    let least = n.least().unwrap();
    assert_eq!((least.traces, least.least_strict_in, least.operations), (3, 3, 30));
    assert!((least.time_us.cpu - (10.1 * 0.7 + 10.1 * 0.3 + 0.5)).abs() < 1e-9);
    let page = n.policy("strict-page").unwrap();
    assert_eq!((page.traces, page.saves_pct), (2, None));
    let [low, high] = n.policy("lazy").unwrap().saves_pct_by_trace.unwrap();
    assert!((low + 100.0).abs() < 1e-9 && (high - 67.3).abs() < 0.1, "{low} {high}");
    let names: Vec<_> = n.policies.iter().map(|p| p.policy.as_str()).collect();
    assert_eq!(names, ["strict-page", "strict-range", "lazy"]);
}

#[test]
fn a_device_has_its_own_maps_and_the_costs_of_traces_that_hold_it_alone() {
    let sum = Aggregate::new(&some(), Vec::new());
    let [nic, nvme] = sum.by_device.as_slice() else { panic!("two devices") };
    assert_eq!((nvme.traces, nvme.maps, nvme.costed_traces), (2, 30, 1));
    assert!((nvme.least().unwrap().time_us.cpu - 1.01).abs() < 1e-9);
    assert_eq!((nic.traces, nic.maps, nic.costed_traces), (4, 20, 3));
}

#[test]
fn nothing_and_absurd_numbers_add_up_too() {
    let none = crate::fleet::add_up(&[], vec![Failed::new("x", "bad".into())]);
    assert_eq!((none.all.traces, none.all.least_strict.as_deref()), (0, None));
    assert!(none.findings[0].contains('x'), "{:?}", none.findings);
    let mut odd = entry("a", "m", &[("d", u64::MAX / 8192)], &[("strict-range", 0.0)]);
    odd.trace.maps = u64::MAX;
    odd.trace.bytes_mapped = u64::MAX;
    odd.policies[0].operations = 0;
    let sum = Aggregate::new(&[odd.clone(), odd], Vec::new());
    assert_eq!(sum.all.maps, u64::MAX);
    let least = sum.all.least().unwrap();
    assert_eq!((least.us_per_operation, least.saves_pct), (None, None));
}
