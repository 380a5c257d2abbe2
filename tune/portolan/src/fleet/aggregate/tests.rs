//! Sums are the same in any order; devices that share a trace; traces that hold nothing.

use super::*;
use crate::fleet::DeviceWork;
use crate::replay::{Causes, CpuCost, MappingCost, Now, TraceReport};

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
        driver: Some(device.to_owned()).filter(|driver| driver != "nic"),
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
        kernel: None,
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
    let first = Aggregate::new(&entries, failed(), None);
    for seed in 0..20 {
        fastrand::Rng::with_seed(seed).shuffle(&mut entries);
        let mut failed = failed();
        failed.reverse();
        assert_eq!(Aggregate::new(&entries, failed, None), first, "seed {seed}");
    }
}

#[test]
fn sums_are_those_of_the_traces() {
    let sum = Aggregate::new(&some(), Vec::new(), None);
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
    let sum = Aggregate::new(&some(), Vec::new(), None);
    let [nic, nvme] = sum.by_device.as_slice() else { panic!("two devices") };
    assert_eq!((nvme.traces, nvme.maps, nvme.costed_traces), (2, 30, 1));
    assert!((nvme.least().unwrap().time_us.cpu - 1.01).abs() < 1e-9);
    assert_eq!((nic.traces, nic.maps, nic.costed_traces), (4, 20, 3));
}

#[test]
fn nothing_and_absurd_numbers_add_up_too() {
    let none = crate::fleet::add_up(&[], vec![Failed::new("x", "bad".into())], None);
    assert_eq!((none.all.traces, none.all.least_strict.as_deref()), (0, None));
    assert!(none.findings[0].contains('x'), "{:?}", none.findings);
    let mut odd = entry("a", "m", &[("d", u64::MAX / 8192)], &[("strict-range", 0.0)]);
    odd.trace.maps = u64::MAX;
    odd.trace.bytes_mapped = u64::MAX;
    odd.policies[0].operations = 0;
    let sum = Aggregate::new(&[odd.clone(), odd], Vec::new(), None);
    assert_eq!(sum.all.maps, u64::MAX);
    let least = sum.all.least().unwrap();
    assert_eq!((least.us_per_operation, least.saves_pct), (None, None));
}

/// An entry whose mapping costs `pct` of the load's time, of which a change saves `saves`.
fn costing(source: &str, kernel: Option<&str>, pct: f64, saves: Option<f64>) -> Entry {
    let cost = |pct_of_load| CpuCost {
        cpu_us: 1.0,
        cpu_us_per_s: 1.0,
        low: 1.0,
        high: 1.0,
        ns_per_request: 1.0,
        pct_of_load,
    };
    Entry {
        kernel: kernel.map(str::to_owned),
        cost: Some(MappingCost {
            policy: Now::Strict,
            now: cost(pct),
            causes: Causes::default(),
            device_wait_us: 0.0,
            invalidations: 7,
            exposed: None,
            span_us: 1.0,
            cpus: 1,
            assumes: Vec::new(),
            then: saves.map(|saves| cost(pct - saves)),
            worth_a_change: saves.is_some_and(|saves| saves >= 1.0),
        }),
        ..entry(source, "m", &[("nvme", 1)], &[("strict-range", 1.0)])
    }
}

fn costs() -> Vec<Entry> {
    let mut all: Vec<_> = (1..=12)
        .map(|n| costing(&format!("t{n:02}"), Some("6.12"), f64::from(n), Some(f64::from(n) / 2.0)))
        .collect();
    all.push(costing("t13", None, 40.0, None));
    all.push(costing("=t14", Some("6.1"), 30.0, Some(20.0)));
    all.push(entry("t15", "n", &[("nic", 7)], &[("lazy", 1.0)]));
    all
}

#[test]
fn the_ten_worst_come_first_and_percentiles_are_of_all() {
    let sum = Aggregate::new(&costs(), Vec::new(), None);
    let names: Vec<_> = sum.worst.iter().map(|one| one.source.as_str()).collect();
    let wanted = ["=t14", "t12", "t11", "t10", "t09", "t08", "t07", "t06", "t05", "t04"];
    assert_eq!(names, wanted);
    let costs = sum.costs.unwrap();
    let all =
        (costs.parts.traces, costs.parts.median_pct, costs.parts.p90_pct, costs.parts.most_pct);
    assert_eq!(all, (14, 7.0, 30.0, 40.0));
    let saves = costs.saves.unwrap();
    assert_eq!((saves.traces, saves.median_pct, saves.most_pct), (13, 3.5, 20.0));
    assert_eq!((saves.most_in.as_str(), costs.worth_a_change), ("=t14", 12));
}

#[test]
fn groups_by_a_fact_are_sorted_and_traces_that_do_not_tell_are_unknown() {
    let of = |by| {
        let sum = Aggregate::new(&costs(), Vec::new(), Some(by));
        let groups = sum.grouped.unwrap().groups.into_iter();
        groups.map(|group| (group.name, group.traces)).collect::<Vec<_>>()
    };
    let named = |some: &[(&str, u64)]| -> Vec<(String, u64)> {
        some.iter().map(|(name, traces)| ((*name).to_owned(), *traces)).collect()
    };
    assert_eq!(of(GroupKey::Kernel), named(&[("6.1", 1), ("6.12", 12), ("unknown", 2)]));
    assert_eq!(of(GroupKey::Driver), named(&[("nvme", 14), ("unknown", 1)]));
    assert_eq!(of(GroupKey::Policy), named(&[("strict", 14), ("unknown", 1)]));
    assert_eq!(of(GroupKey::Machine), named(&[("m", 14), ("n", 1)]));
}

#[test]
fn a_table_for_spreadsheets_has_a_row_a_trace_or_a_row_a_group() {
    let failed = || vec![Failed::new("bad, \"x\"", "no\ttrace".to_owned())];
    let entries = costs();
    let rows = |by| {
        let text = crate::fleet::csv(&entries, &Aggregate::new(&entries, failed(), by)).unwrap();
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
        reader.records().map(Result::unwrap).collect::<Vec<_>>()
    };
    let traces = rows(None);
    assert_eq!((traces.len(), &traces[0][9]), (17, "saves_pct_of_load"));
    assert_eq!((&traces[1][0], &traces[1][9]), ("'=t14", "20"), "nothing that is calculated");
    assert_eq!((&traces[15][0], &traces[15][8]), ("t15", ""));
    assert_eq!((&traces[16][0], &traces[16][14]), ("bad, \"x\"", "no\\u{9}trace"));
    let groups = rows(Some(GroupKey::Kernel));
    assert_eq!((groups.len(), &groups[0][0], &groups[1][0]), (4, "kernel", "6.1"));
    assert_eq!((&groups[3][0], &groups[3][8]), ("unknown", ""));
}
