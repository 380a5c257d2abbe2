//! Timers and queues, tick by tick; the commands of units; the effect of a release.

use portolan::dma::{PolicyPreference, Stage};
use portolan::inval::Caching;
use portolan_sim::profile::{Event, Profile};

use super::LinuxUnit;
use super::kernel::{CpuTime, Kernel, Release};
use super::queues::{Added, Bounds, Queues};
use super::timer::Timers;
use super::times::{LinuxPrices, PricedCounts};
use crate::facts::Facts;
use crate::trace::{self, Api, At, DeviceId, Running};

const MS: u64 = 1_000_000;
const DISK: DeviceId = DeviceId(0);

fn at(ms: u64, cpu: u16, task: u32) -> At {
    At {
        now_ns: ms * MS,
        cpu,
        running: match task {
            0 => Running::Idle,
            task => Running::Task(task),
        },
        timers_late: None,
    }
}

/// Timers of a machine with so many CPUs, and the number that have run.
struct Machine {
    timers: Timers,
    ran: u64,
}

impl Machine {
    fn new(cpus: u32, cpu_time: CpuTime) -> Self {
        let kernel = Kernel { cpus: Some(cpus), cpu_time, ..Kernel::default() };
        Self { timers: Timers::new(kernel), ran: 0 }
    }

    fn see(&mut self, at: At) -> u64 {
        let ran = &mut self.ran;
        self.timers.see(at, |_| *ran += 1);
        self.ran
    }

    fn start(&mut self, at: At) {
        self.see(at);
        self.timers.start(at, DISK);
    }
}

#[test]
fn the_timer_of_the_only_cpu_runs_four_ticks_later() {
    let mut machine = Machine::new(1, CpuTime::AsTraced);
    machine.start(at(7, 0, 12));
    assert_eq!(machine.see(at(19, 0, 12)), 0);
    assert_eq!(machine.see(at(20, 0, 12)), 1);
    assert_eq!(machine.see(at(99, 0, 12)), 1);
}

#[test]
fn of_busy_cpus_one_counts_ticks_and_the_others_are_late() {
    let mut machine = Machine::new(3, CpuTime::Always);
    let late = [1, 2, 3, 4, 5, 6].map(|turn: u64| {
        let begin = turn * 100;
        machine.start(at(begin, 0, 12));
        let before = machine.ran;
        [16, 20].map(|after| machine.see(at(begin + after, 1, 13)) - before)
    });
    let (on_time, one_late) = ([1, 1], [0, 1]);
    let wanted = [one_late, one_late, on_time, one_late, one_late, on_time];
    assert_eq!(late, wanted);
}

#[test]
fn a_busy_cpu_is_as_late_as_its_timers_were() {
    for (timers_late, when) in [(false, 16), (true, 20)] {
        let mut machine = Machine::new(8, CpuTime::Always);
        let begin = At { timers_late: Some(timers_late), ..at(0, 0, 12) };
        machine.start(begin);
        assert_eq!(machine.see(at(when - 1, 1, 13)), 0);
        assert_eq!(machine.see(at(when, 1, 13)), 1);
    }
}

#[test]
fn a_virtual_cpu_that_is_not_seen_at_work_is_waited_for() {
    let mut machine = Machine::new(1, CpuTime::AsTraced);
    machine.start(at(0, 0, 12));
    assert_eq!(machine.see(at(40, 1, 13)), 0);
    assert_eq!(machine.see(at(41, 0, 12)), 1);
}

#[test]
fn a_virtual_cpu_is_waited_for_no_longer_than_hosts_hold_one_up() {
    let mut machine = Machine::new(2, CpuTime::AsTraced);
    machine.start(at(0, 0, 12));
    // 25 ticks in which the other CPU works; what both of them rest is no evidence.
    machine.see(at(16, 1, 13));
    let ticks = (0..25).map(|tick| 5000 + 4 * tick);
    let ran: Vec<u64> = ticks.map(|ms| machine.see(at(ms, 1, 13))).collect();
    assert_eq!((ran[23], ran[24]), (0, 1));
}

#[test]
fn cpus_that_ran_all_the_time_by_their_facts_are_not_waited_for() {
    let text = "fio-1 [000] 1.0: map: IOMMU: iova=0x1000 paddr=0x2000 size=4096\n";
    let reader = trace::from_bytes(text).unwrap();
    let of = |under_hypervisor, cpus_ran_pct| {
        let facts = Facts { under_hypervisor, cpus_ran_pct, ..Facts::default() };
        Kernel::of(&reader, Some(&facts)).cpu_time
    };
    assert_eq!(Kernel::of(&reader, None).cpu_time, CpuTime::AsTraced);
    assert_eq!(of(false, None), CpuTime::Always);
    assert_eq!(of(true, None), CpuTime::AsTraced);
    assert_eq!(of(true, Some(80)), CpuTime::AsTraced);
    assert_eq!(of(true, Some(99)), CpuTime::Always);
    // The timer of a task that rests between its requests.
    let mut machine = Machine::new(1, of(true, Some(99)));
    machine.start(at(0, 0, 12));
    assert_eq!(machine.see(at(40, 1, 13)), 1);
}

#[test]
fn an_idle_cpus_timers_run_on_any() {
    // By the idle task, or by a task that went elsewhere, before they are due or after.
    for (idle, when) in [(at(8, 0, 0), 16), (at(8, 1, 12), 16), (at(30, 1, 12), 30)] {
        let mut machine = Machine::new(2, CpuTime::AsTraced);
        machine.see(at(0, 1, 13));
        machine.start(at(0, 0, 12));
        machine.see(at(7, 1, 13));
        if when == 30 {
            assert_eq!(machine.see(at(29, 1, 13)), 0);
        }
        machine.see(idle);
        assert_eq!(machine.see(at(when - 1, 1, 13)), u64::from(when == 30));
        assert_eq!(machine.see(at(when, 1, 13)), 1);
    }
}

#[test]
fn any_tick_does_no_harm() {
    let kernel = Kernel { tick_ns: 0, timeout_ns: u64::MAX, ..Kernel::default() };
    let mut timers = Timers::new(kernel);
    let last =
        At { now_ns: u64::MAX, cpu: u16::MAX, running: Running::Task(u32::MAX), timers_late: None };
    timers.see(last, |_| panic!("no timer was started"));
    timers.start(last, DISK);
    let mut ran = 0;
    timers.end(|_, _| ran += 1);
    assert_eq!(ran, 1);
}

#[test]
fn the_256th_entry_of_a_cpu_flushes_and_frees_those_of_others() {
    let mut queues = Queues::new(Kernel::default());
    for _ in 0..200 {
        assert_eq!(queues.add(0, 1, 4096), Added::Room);
    }
    for _ in 0..255 {
        assert_eq!(queues.add(1, 0, 4096), Added::Room);
    }
    assert_eq!(queues.add(2, 0, 4096), Added::Flush);
    assert_eq!(queues.exposed(), (455 * 4096, 2));
    // CPU 1 has room for 255 again, CPU 0 for 254.
    for _ in 0..255 {
        assert_eq!(queues.add(3, 1, 4096), Added::Room);
    }
    for _ in 0..254 {
        assert_eq!(queues.add(3, 0, 4096), Added::Room);
    }
    assert_eq!(queues.add(3, 0, 4096), Added::Flush);
    // The timer is still the first one's.
    assert!(queues.start() && !queues.start());
    queues.run(4);
    assert!(queues.start());
}

#[test]
fn bounds_are_full_queues_and_periods_of_the_timer() {
    let mut queues = Queues::new(Kernel::default());
    assert_eq!(queues.bounds(), Bounds::default());
    // A pause is busy for no longer than the timer.
    for ms in [5, 8, 8, 1000, 999] {
        queues.add(ms * MS, 0, 4096);
    }
    assert_eq!(queues.busy_ns(), 13 * MS);
    assert_eq!(queues.bounds(), Bounds { least: 1, most: 2 });
    for _ in 0..510 {
        queues.add(1000 * MS, 0, 4096);
        queues.run(1000 * MS);
    }
    // Without the timer 515 entries fill a queue twice.
    assert_eq!(queues.bounds(), Bounds { least: 3, most: 4 });
}

#[test]
fn two_step_unmaps_are_queued_until_7_3() {
    let queued = |release| {
        let kernel = Kernel { release, ..Kernel::default() };
        let pieces = [(Api::DmaMap, 2), (Api::TwoStep, 2), (Api::Untold, 2), (Api::Untold, 1)];
        pieces.map(|(api, pieces)| kernel.queues(api, pieces))
    };
    assert_eq!(queued(Some(Release(6, 16))), [true, true, true, true]);
    assert_eq!(queued(Some(Release(7, 2))), [true, true, true, true]);
    assert_eq!(queued(Some(Release(7, 3))), [true, false, false, true]);
    assert_eq!(queued(Some(Release(7, 10))), [true, false, false, true]);
    assert_eq!(queued(None), [true, false, true, true]);
}

fn commands(unit: LinuxUnit, pages: u64) -> Vec<Option<u8>> {
    let mut submitted = Vec::new();
    unit.commands(pages, |mask| submitted.push(mask));
    submitted
}

#[test]
fn each_unit_has_its_commands() {
    let vtd = LinuxUnit::Vtd { caching: Caching::PresentOnly, stage: Stage::Second, max_mask: 6 };
    assert_eq!(commands(vtd, 0), [Some(0)]);
    assert_eq!(commands(vtd, 64), [Some(6)]);
    assert_eq!(commands(vtd, 65), [None]);
    let [real, played] = [Caching::PresentOnly, Caching::NotPresentToo];
    let amd = |caching| LinuxUnit::Amd { caching };
    assert_eq!(commands(amd(real), 1), [Some(0)]);
    assert_eq!(commands(amd(real), 0b1011), [Some(4)]);
    assert_eq!(commands(amd(real), 1 << 41), [None]);
    assert_eq!(commands(amd(played), 0b1011), [Some(0), Some(1), Some(3)]);
    let policies =
        [real, played].map(|caching| amd(caching).decision(PolicyPreference::Lazy).policy);
    assert_eq!(policies, [portolan::dma::Policy::Lazy, portolan::dma::Policy::Strict]);
    assert!(amd(played).is_shadowed() && !amd(real).is_shadowed());
}

#[test]
fn what_linux_takes_is_its_work_at_the_prices_of_its_own_code() {
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let prices = LinuxPrices::of(&profile).unwrap();
    let ns = |event| profile.price(event).unwrap();
    let mut work =
        PricedCounts { unmaps: 2, queued: 2, contexts: 1, syncs: 1, ..PricedCounts::default() };
    work.map(1, 1);
    work.map(33, 3);
    let times = prices.times(&work);
    let us = |sum: f64| sum / 1000.0;
    let map = us(2.0 * ns(Event::LinuxMap) + 2.0 * ns(Event::LinuxPiece));
    let addresses = us(ns(Event::IovaCached) + ns(Event::IovaTree));
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    assert!(near(times.map, map) && near(times.addresses, addresses), "{times:?}");
    let others = times.unmap + times.queues + times.commands + times.waits;
    assert!(near(times.total, map + addresses + others), "{times:?}");
    assert!(near(times.unmap, us(2.0 * ns(Event::LinuxUnmap))));
    assert!(near(times.queues, us(2.0 * ns(Event::FlushQueueEntry))));
    assert!(near(times.commands, us(ns(Event::CmdContext))));
    assert!(near(times.waits, us(ns(Event::Sync))));
    let [low, high] = times.range;
    assert!(low < times.total && times.total < high, "{times:?}");
    // Machines without such prices have no such times.
    assert!(LinuxPrices::of(&Profile::by_name("sm8150").unwrap()).is_err());
}
