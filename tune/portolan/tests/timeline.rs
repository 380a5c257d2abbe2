//! Observations of a replay over virtual time add up to the numbers of its report.

use std::fmt::Write as _;

use fastrand::Rng;
use portolan_sim::profile::Profile;
use portolan_tune::counts::Invalidations;
use portolan_tune::replay::{self, Policy, PolicyReport, Replay, Swiotlb, TraceInput};
use portolan_tune::trace::Reader;

/// The first figure that the intervals of `report` do not add up to.
fn disagrees(report: &PolicyReport) -> Option<String> {
    let intervals = &report.timeline.intervals;
    let sum = |of: fn(&replay::Interval) -> u64| intervals.iter().map(of).sum::<u64>();
    let most = |of: fn(&replay::Interval) -> u64| intervals.iter().map(of).max().unwrap_or(0);
    let us = intervals.iter().map(|interval| interval.reachable_us);
    let longest = us.fold(0.0, f64::max);
    let Invalidations { page, range, context, global } = report.invalidations;
    let pairs = [
        ("page", sum(|i| i.invalidations.page), page),
        ("range", sum(|i| i.invalidations.range), range),
        ("context", sum(|i| i.invalidations.context), context),
        ("global", sum(|i| i.invalidations.global), global),
        ("syncs", sum(|i| i.syncs), report.syncs),
        ("misses", sum(|i| i.iotlb_misses), report.device.iotlb_misses),
        ("bytes", most(|i| i.reachable_bytes), report.exposed.max_bytes),
        ("time", longest.to_bits(), report.exposed.max_us.to_bits()),
    ];
    let wrong = pairs.iter().find(|(_, found, told)| found != told);
    wrong.map(|(what, found, told)| format!("{}: {what}: {found}, {told}", report.policy))
}

fn without(report: &PolicyReport, left_out: impl Fn(&replay::Interval) -> bool) -> PolicyReport {
    let mut less = report.clone();
    less.timeline.intervals.retain(|interval| !left_out(interval));
    less
}

/// `report` with the timeline that its JSON has.
fn from_json(report: &PolicyReport) -> PolicyReport {
    let json = serde_json::to_value(report).unwrap();
    let told = &json["timeline"];
    let column = |key: &str| told[key].as_array().unwrap();
    let interval = |index: usize| {
        let count = |key: &str| column(key)[index].as_u64().unwrap();
        replay::Interval {
            invalidations: Invalidations {
                page: count("page"),
                range: count("range"),
                context: count("context"),
                global: count("global"),
            },
            syncs: count("syncs"),
            iotlb_misses: count("iotlb_misses"),
            reachable_bytes: count("reachable_bytes"),
            reachable_us: column("reachable_us")[index].as_f64().unwrap(),
            mapped_bytes: count("mapped_bytes"),
            span_bytes: count("span_bytes"),
        }
    };
    let lists: Vec<_> = told.as_object().unwrap().values().collect();
    let long = column("page").len();
    for list in lists.iter().filter_map(|one| one.as_array()) {
        assert_eq!(list.len(), long);
    }
    let mut read = report.clone();
    read.timeline.interval_ns = told["interval_ns"].as_u64().unwrap();
    read.timeline.intervals = (0..long).map(interval).collect();
    read
}

fn policies() -> Vec<Policy> {
    let mut policies = Policy::ALL.to_vec();
    policies.push(Policy::Bounce(Swiotlb::default()));
    policies
}

fn agree(reader: &mut Reader) -> Vec<PolicyReport> {
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let report = Replay::new(&profile, &policies()).run(reader).unwrap();
    for policy in &report.policies {
        assert_eq!(disagrees(policy), None);
        assert!(policy.timeline.intervals.len() <= 256, "{}", policy.policy);
        let width = policy.timeline.interval_ns.to_string();
        let digits = width.trim_end_matches('0');
        assert!(["1", "2"].contains(&digits), "people do not count in {width} ns");
        assert_eq!(from_json(policy), *policy);
        let coarse = policy.timeline.in_intervals_of(policy.timeline.interval_ns * 8);
        assert!(coarse.intervals.len() <= 32);
        let coarse = PolicyReport { timeline: coarse, ..policy.clone() };
        assert_eq!(disagrees(&coarse), None);
    }
    // Counts of the recorded system add up too.
    let sent = report.sent.map_or(0, |sent| sent.invalidations.total());
    assert_eq!(report.recorded.invalidations.iter().sum::<u64>(), sent);
    let requests = report.recorded.devices.iter();
    let requests: u64 = requests.flat_map(|device| &device.requests).sum();
    assert_eq!(requests, report.trace.maps + report.trace.coherent_allocs);
    report.policies
}

#[test]
fn a_bundled_traces_intervals_add_up_and_not_without_any_of_them() {
    let mut reader = TraceInput::Bundled.open().unwrap();
    for policy in agree(&mut reader) {
        let busy = |interval: &replay::Interval| interval.syncs > 0 || interval.iotlb_misses > 0;
        if !policy.timeline.intervals.iter().any(busy) {
            assert_eq!(policy.policy, "bounce");
            continue;
        }
        for index in 0..policy.timeline.intervals.len() {
            let mut less = policy.clone();
            let out = less.timeline.intervals.remove(index);
            assert_eq!(disagrees(&less).is_some(), busy(&out), "{} {index}", policy.policy);
        }
        let most = policy.exposed.max_bytes;
        assert!(disagrees(&without(&policy, |i| i.reachable_bytes == most)).is_some());
        let longest = policy.exposed.max_us;
        assert!(disagrees(&without(&policy, |i| i.reachable_us == longest)).is_some());
    }
}

/// Maps and unmaps of random sizes on four CPUs, with pauses from nanoseconds to days and times that go back.
fn random(rng: &mut Rng, events: usize) -> String {
    let mut text = "# tracer: nop\n#\n".to_owned();
    let (mut at_us, mut live, mut next) = (5_000_000u64, Vec::new(), 0u64);
    for _ in 0..events {
        let pause = if rng.u32(0..200) == 0 { 36 } else { 12 };
        at_us += 1u64 << rng.u32(0..pause);
        let now = at_us.saturating_sub(rng.u64(0..3) * rng.u64(0..500));
        let stamp = format!("{}.{:06}", now / 1_000_000, now % 1_000_000);
        let cpu = rng.u32(0..4);
        if live.len() > 40 || (!live.is_empty() && rng.bool()) {
            let (dma, bytes): (u64, u64) = live.swap_remove(rng.usize(0..live.len()));
            let _ = writeln!(
                text,
                " a-1 [{cpu:03}] ..... {stamp}: dma_unmap_page: 0000:00:01.0 dir=FROM_DEVICE dma_addr={dma:x} \
                 size={bytes} attrs="
            );
            continue;
        }
        let most_lg2 = rng.u32(4..20);
        let bytes = 1 + rng.u64(0..1 << most_lg2);
        let dma = 0x1_0000_0000 + next * 0x20_0000;
        let memory = 0x10_0000 + rng.u64(0..1 << 18) * 0x1000;
        next += 1;
        live.push((dma, bytes));
        let _ = writeln!(
            text,
            " a-1 [{cpu:03}] ..... {stamp}: dma_map_page: 0000:00:01.0 dir=FROM_DEVICE dma_addr={dma:x} \
             size={bytes} phys_addr={memory:x} attrs="
        );
    }
    text
}

#[test]
fn a_random_traces_intervals_add_up() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for events in [1, 2, 100, 3000] {
        let text: &'static str = random(&mut rng, events).leak();
        let mut reader = Reader::new(Box::new(text.as_bytes())).unwrap();
        let policies = agree(&mut reader);
        if events == 3000 {
            let busy = |i: &replay::Interval| i.iotlb_misses > 0;
            assert!(disagrees(&without(&policies[0], busy)).is_some());
        }
    }
}
