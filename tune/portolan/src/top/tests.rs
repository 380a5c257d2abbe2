//! Counts from a folder that looks like tracefs: what is shown, what is lost, and how the kernel's tracing is left.

mod shown;

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::Command;

use anyhow::bail;
use clap::Parser;

use super::*;
use crate::record::tests::latency::latencies;
use crate::record::tests::machine::{
    DEVICE, MAP, Machine, PAGE, PIECE, TIMER, UNMAP, event, page, two,
};

#[derive(Parser)]
struct Words {
    #[command(flatten)]
    args: TopArgs,
}

fn arguments(words: &[&str]) -> TopArgs {
    Words::parse_from([&["top"], words].concat()).args
}

/// Number of intervals told while latencies are measured.
const REST: u64 = u64::MAX;

/// Steps in a given order, with something that happens before each.
struct Script<F> {
    steps: VecDeque<Tick>,
    told: f64,
    before: F,
}

impl<F: FnMut(u64)> Ticker for Script<F> {
    fn rest(&mut self, _: u64) {
        (self.before)(REST);
    }

    fn begin(&mut self) {}

    fn next(&mut self) -> Tick {
        (self.before)(self.told as u64);
        let step = self.steps.pop_front().unwrap_or(Tick::Over);
        self.told += f64::from(u8::from(step != Tick::Sweep));
        step
    }

    fn seconds(&self) -> f64 {
        self.told
    }
}

fn script<F: FnMut(u64)>(steps: &[Tick], before: F) -> Script<F> {
    Script { steps: steps.iter().copied().collect(), told: 0.0, before }
}

/// A machine whose device has a group of this type.
fn machine(name: &str, kind: &str) -> Machine {
    let machine = Machine::new(&format!("top-{name}"));
    machine.write("sys/kernel/iommu_groups/3/type", &format!("{kind}\n"));
    machine.write(&format!("sys/kernel/iommu_groups/3/devices/{DEVICE}/vendor"), "0x1b36\n");
    machine
}

/// Pages of `count` maps, each with its unmap.
fn pairs(begin_ns: u64, count: u64) -> Vec<u8> {
    let pair = |at: u64| [(1000, event(MAP, at << 12)), (1000, event(UNMAP, at << 12))];
    let mut pages = Vec::new();
    for from in (0..count).step_by(10) {
        let records: Vec<_> = (from..count.min(from + 10)).flat_map(pair).collect();
        pages.extend(page(begin_ns + from * 10_000, &records, 0));
    }
    pages
}

/// Counts intervals of a made machine.
fn watched(
    machine: &Machine,
    tracefs: &Tracefs,
    ticker: &mut impl Ticker,
) -> Result<Vec<TopInterval>> {
    let mut seen = Vec::new();
    let watch = Watch { args: &arguments(&[]), profile: None, tracefs, root: &machine.root };
    watch.run(ticker, |interval| {
        seen.push(interval.clone());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(seen)
}

fn only(interval: &TopInterval) -> &DeviceRow {
    let [row] = interval.devices.as_slice() else { panic!("one device: {interval:?}") };
    row
}

const TWICE: [Tick; 4] = [Tick::Sweep, Tick::Interval, Tick::Sweep, Tick::Over];

#[test]
fn counts_are_exact_and_the_instance_is_given_back() {
    let machine = machine("exact", "DMA");
    let tracefs = machine.tracefs("", vec![pairs(1_000_000_000, 25), Vec::new()]);
    let mut more = Some(pairs(2_000_000_000, 17));
    let mut ticker = script(&TWICE, |told| {
        if let (1, Some(pages)) = (told, more.take_if(|_| told == 1)) {
            machine.seen.lock().unwrap().pipes[1].write_all(&pages).unwrap();
        }
    });
    let seen = watched(&machine, &tracefs, &mut ticker).unwrap();
    let sums = seen.iter().map(|interval| (interval.t, interval.seconds, only(interval)));
    let sums: Vec<_> =
        sums.map(|(t, s, row)| (t, s, row.maps, row.unmaps, row.invalidations)).collect();
    assert_eq!(sums, [(1.0, 1.0, 25, 25, Some(25)), (2.0, 1.0, 17, 17, Some(17))]);
    // What the kernel says it lost: of the first interval, four on each CPU.
    assert_eq!(seen.iter().map(|one| one.lost_events).collect::<Vec<_>>(), [8, 0]);
    let row = only(&seen[0]);
    assert_eq!((row.policy, row.group_type.as_deref()), (GroupPolicy::Strict, Some("DMA")));
    assert_eq!((row.device.as_str(), row.exposed_bytes), (DEVICE, Some(0)));
    assert!(row.cpu_us.is_some_and(|us| us > 1.0), "{row:?}");
    assert_eq!(seen[0].kernel_invalidations, None, "this kernel has no such events");
    assert_eq!(machine.instances(), 0);
    assert_eq!(machine.set("tracing_on").lines().next(), Some("0"));
    assert_eq!(machine.set("buffer_size_kb").lines().next(), Some("1024"));
}

#[test]
fn a_lazy_group_exposes_what_waits_for_the_next_flush() {
    let machine = machine("lazy", "DMA-FQ");
    let tracefs = machine.tracefs("", vec![pairs(1_000_000_000, 25)]);
    let mut ticker = script(&[Tick::Sweep, Tick::Over], |_| {});
    let seen = watched(&machine, &tracefs, &mut ticker).unwrap();
    let row = only(&seen[0]);
    assert_eq!((row.policy, row.exposed_bytes), (GroupPolicy::Lazy, Some(25 * 4096)));
    assert_eq!((row.unmaps, row.invalidations), (25, Some(1)), "one flush, by the timer");
}

/// A group's type may be written while its devices work.
#[test]
fn a_group_whose_type_changes_is_seen() {
    let machine = machine("changed", "DMA");
    let tracefs = machine.tracefs("", vec![pairs(1_000_000_000, 5)]);
    let mut ticker = script(&TWICE, |told| {
        if told == 0 {
            return;
        }
        machine.write("sys/kernel/iommu_groups/3/type", "identity\n");
        let pages = pairs(3_000_000_000, 5);
        machine.seen.lock().unwrap().pipes[0].write_all(&pages).unwrap();
    });
    let seen = watched(&machine, &tracefs, &mut ticker).unwrap();
    let policies: Vec<_> = seen.iter().map(|one| only(one).policy).collect();
    assert_eq!(policies, [GroupPolicy::Strict, GroupPolicy::Identity]);
    let last = only(&seen[1]);
    assert_eq!((last.cpu_us, last.exposed_bytes, last.unmaps), (Some(0.0), None, 10));
}

#[test]
fn an_unmap_whose_map_came_before_is_one_of_its_device() {
    let machine = machine("before", "DMA");
    let records = [(1, event(UNMAP, 0x5000)), (1, event(UNMAP, 0x6000))];
    let tracefs = machine.tracefs("", vec![page(5, &records, 0)]);
    let mut ticker = script(&[Tick::Over], |_| {});
    let seen = watched(&machine, &tracefs, &mut ticker).unwrap();
    let row = only(&seen[0]);
    assert_eq!((row.maps, row.unmaps, row.invalidations), (0, 2, Some(2)));
}

#[test]
fn a_device_without_an_iommu_costs_nothing_and_reaches_all() {
    let machine = Machine::new("top-direct");
    let tracefs = machine.tracefs("", vec![two(), page(9, &[(1, event(TIMER, 77))], 0)]);
    let mut ticker = script(&[Tick::Over], |_| {});
    let seen = watched(&machine, &tracefs, &mut ticker).unwrap();
    let row = only(&seen[0]);
    assert_eq!((row.policy, row.cpu_us, row.exposed_bytes), (GroupPolicy::None, Some(0.0), None));
    assert_eq!((row.maps, row.unmaps, row.invalidations), (1, 1, Some(0)));
}

/// Mappings whose unmap was lost do not stay for ever.
#[test]
fn pairing_begins_anew_where_events_were_lost() {
    let machine = machine("lost", "DMA-FQ");
    let maps: Vec<_> = (1..20).map(|at| (1, event(MAP, at << 12))).collect();
    let tracefs = machine.tracefs("", vec![page(1_000, &maps, 0)]);
    let unmaps: Vec<_> = (1..20).map(|at| (1, event(UNMAP, at << 12))).collect();
    let mut ticker = script(&TWICE, |told| {
        if told == 1 {
            let stats = "tracing/instances/portolan-1/per_cpu/cpu0/stats";
            machine.write(stats, "read events: 9\noverrun: 50\ndropped events: 1\n");
            let pages = page(2_000_000_000, &unmaps, 0);
            machine.seen.lock().unwrap().pipes[0].write_all(&pages).unwrap();
        }
    });
    let seen = watched(&machine, &tracefs, &mut ticker).unwrap();
    assert_eq!((seen[0].lost_events, seen[1].lost_events), (4, 47));
    assert_eq!((only(&seen[0]).maps, only(&seen[1]).unmaps), (19, 38));
    // The unmaps do not know their maps any more, and so not their sizes.
    assert_eq!(only(&seen[1]).exposed_bytes, Some(0));
}

#[test]
fn devices_that_cost_most_come_first() {
    let machine = machine("order", "DMA");
    machine.write("sys/kernel/iommu_groups/4/type", "DMA\n");
    let pieces: Vec<_> = (1..60).map(|at| (1, event(PIECE, at << 20))).collect();
    let tracefs = machine.tracefs("", vec![two(), page(2_000_000_000, &pieces, 0)]);
    let seen = watched(&machine, &tracefs, &mut script(&[Tick::Over], |_| {})).unwrap();
    let names: Vec<_> = seen[0].devices.iter().map(|row| row.device.as_str()).collect();
    // Pieces of mappings that no event gives a device.
    assert_eq!(names, ["iommu", DEVICE], "{seen:?}");
    let costs: Vec<_> = seen[0].devices.iter().map(|row| row.cpu_us.unwrap()).collect();
    assert!(costs[0] > costs[1] && seen[0].devices[0].maps > 1, "{seen:?}");
}

#[test]
fn latencies_give_prices_of_this_machine_and_the_tracer_is_put_back() {
    let mut machine = machine("latency", "DMA");
    machine.tracers = "function_graph nop\n";
    machine.with_tracer();
    let printed = latencies();
    let tracefs = machine.tracefs("", vec![two()]);
    let args = &arguments(&["--latency", "1"]);
    let watch = Watch { args, profile: None, tracefs: &tracefs, root: &machine.root };
    let mut ticker = script(&[Tick::Over], |told| {
        if told == REST {
            machine.write("tracing/instances/portolan-1/trace", &printed);
        }
    });
    let mut prices = Vec::new();
    let ended = watch.run(&mut ticker, |interval| {
        prices.push(interval.prices.clone());
        Ok(ControlFlow::Continue(()))
    });
    ended.unwrap();
    assert!(prices[0].contains("of this very machine"), "{prices:?}");
    assert_eq!((machine.set("current_tracer").trim(), machine.instances()), ("nop", 0));
}

#[test]
fn nothing_is_left_however_it_ends() {
    let gone = |_: &TopInterval| Ok(ControlFlow::Break(()));
    let fails = |_: &TopInterval| bail!("standard output cannot be written");
    for (name, without) in [("no-buffer", "buffer_size_kb"), ("no-switch", "tracing_on")] {
        let machine = machine(name, "DMA");
        let tracefs = machine.tracefs(without, vec![two()]);
        let error = watched(&machine, &tracefs, &mut script(&TWICE, |_| {})).unwrap_err();
        assert!(error.to_string().contains("cannot be set"), "{name}: {error}");
        assert_eq!(machine.instances(), 0, "{name}");
    }
    let machine = machine("left", "DMA");
    let tracefs = machine.tracefs("", vec![two()]);
    let run = |show: &mut dyn FnMut(&TopInterval) -> Result<ControlFlow<()>>| {
        let mut ticker = script(&TWICE, |_| {});
        let args = &arguments(&[]);
        let watch = Watch { args, profile: None, tracefs: &tracefs, root: &machine.root };
        let ended = watch.run(&mut ticker, show);
        assert_eq!(machine.instances(), 0);
        assert!(machine.set("events/enable").starts_with('0'));
        machine.remove("tracing/gone");
        ended
    };
    run(&mut { gone }).unwrap();
    run(&mut { fails }).unwrap_err();
    let tracefs = machine.tracefs("", vec![vec![0xff; PAGE]]);
    let error = watched(&machine, &tracefs, &mut script(&TWICE, |_| {})).unwrap_err();
    assert!(error.to_string().contains("header_page"), "{error}");
    assert_eq!(machine.instances(), 0);
}

#[test]
fn what_is_wrong_with_the_request_is_said_before_anything_is_made() {
    let machine = machine("request", "DMA");
    let tracefs = machine.tracefs("", vec![two()]);
    let with = |words: &[&str]| {
        let mut ticker = script(&TWICE, |_| {});
        let none = |_: &TopInterval| Ok(ControlFlow::Continue(()));
        let args = &arguments(words);
        let watch = Watch { args, profile: None, tracefs: &tracefs, root: &machine.root };
        watch.run(&mut ticker, none)
    };
    let unknown = with(&["--device", "0000:00:04.0"]).unwrap_err();
    assert!(unknown.to_string().contains("no device is called"), "{unknown}");
    fs::remove_dir_all(machine.root.join("tracing/events")).unwrap();
    let none = with(&[]).unwrap_err();
    assert!(none.to_string().contains("has no events"), "{none}");
    assert!(machine.seen.lock().unwrap().made.is_empty());
    for bad in ["0", "-1", "nan", "1e9", "x"] {
        let words = ["top", "--interval", bad];
        assert!(Words::try_parse_from(words).is_err(), "{bad}");
    }
}

#[test]
fn a_signal_ends_it_after_one_more_interval() {
    let alone = "top::tests::signalled";
    let mut test = Command::new(std::env::current_exe().unwrap());
    let ran = test.args(["--exact", "--ignored", alone]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "its signal reaches all tests of a process: another test runs it in one of its own"]
fn signalled() {
    let machine = machine("signal", "DMA");
    let tracefs = machine.tracefs("", vec![two()]);
    let signals = Signals::take().unwrap();
    let mut clock = WallClock::new(&signals, 0.1, None);
    let mut shown = 0;
    let args = &arguments(&[]);
    let watch = Watch { args, profile: None, tracefs: &tracefs, root: &machine.root };
    let ended = watch.run(&mut clock, |_| {
        shown += 1;
        if shown == 1 {
            let us = std::process::id().to_string();
            let sent = Command::new("kill").args(["-TERM", &us]).status().unwrap();
            assert!(sent.success());
        }
        Ok(ControlFlow::Continue(()))
    });
    ended.unwrap();
    assert_eq!((shown, machine.instances()), (2, 0));
}

#[test]
fn so_many_intervals_come_as_were_asked_for() {
    let machine = machine("count", "DMA");
    let tracefs = machine.tracefs("", vec![two()]);
    let signals = Signals::take().unwrap();
    let mut clock = WallClock::new(&signals, 0.1, Some(2));
    let seen = watched(&machine, &tracefs, &mut clock).unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen.iter().flat_map(|one| &one.devices).map(|row| row.maps).sum::<u64>(), 1);
}
