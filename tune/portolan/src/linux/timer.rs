//! The timers of flush queues: the CPU that runs one, and the tick at which it does.
//!
//! Read from Linux 6.12 and 7.3, `kernel/time/timer.c`, `tick-sched.c`, `timer_migration.c`:
//!
//! * `queue_iova` starts the timer on its own CPU (`mod_timer`), `msecs_to_jiffies(10)` after the tick counted last:
//!   10 ms rounded up to ticks. `calc_index` rounds up once more, since no timer may run early. At 250 ticks a second
//!   it runs 12 to 16 ms after the first unmap.
//! * Where that CPU is idle when the timer is due, one that is up runs it in its own tick (`tmigr_handle_remote`,
//!   since 6.9), or the last to go idle wakes for it: on time.
//! * A busy CPU runs it in its own tick (`run_local_timers`), if the tick has been counted. One CPU counts ticks
//!   (`tick_do_timer_cpu`); one that goes idle gives that up, and the next whose tick comes takes it. The CPU that
//!   counts is on time. Any other busy CPU may look first, and then runs the timer one tick later.
//!
//! Where a trace has runs of timers (`timer:timer_expire_entry`), a busy CPU is as late as it was when the last one ran
//! there. Without them nothing tells the CPU that counts. Each that is not known to be idle is as likely, so that of as
//! many timers as there are such CPUs one is on time here, and the others are a tick late.
//!
//! A CPU is known to be idle if the task that its last operation interrupted was the idle one, or has been seen on
//! another CPU since. A virtual CPU that is not being run has no ticks: a busy one is waited for until the trace shows
//! it at work, or has shown others at work for 100 ms, in which it would have been run. Where the kernel says that its
//! CPUs ran all the time, one that shows nothing has ticks: it rests, or its task does other things.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::kernel::{CpuTime, Kernel};
use crate::trace::{At, DeviceId, Running};

/// A timer that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Started {
    /// The first tick at which it may run.
    due: u64,
    domain: DeviceId,
    /// The CPU that started it.
    cpu: u16,
    /// Ticks by which the timers of that CPU are late if it is busy.
    late: u64,
}

impl Started {
    /// State of a timer that a busy CPU runs.
    fn later(self) -> Self {
        Self { due: self.due.saturating_add(self.late), late: 0, ..self }
    }
}

/// Longest time for which a host stops a virtual CPU to run others of the machine: the default period of `cpu.max`
/// (Linux, Documentation/admin-guide/cgroup-v2.rst).
const HELD_UP_NS: u64 = 100_000_000;

/// A timer that is due and waits for its CPU.
struct DueTimer {
    started: Started,
    /// Ticks in which the machine had worked until then.
    since: u64,
}

#[derive(Default)]
struct CpuTimers {
    /// Its running task; `None` if it is idle or unknown.
    task: Option<u32>,
    /// Timers that are due and wait for this CPU.
    waiting: Vec<DueTimer>,
}

/// The timers of all domains.
pub(super) struct Timers {
    kernel: Kernel,
    cpus: HashMap<u16, CpuTimers>,
    /// CPUs of `cpus` that are idle.
    idle: u64,
    /// CPU of each running task.
    tasks: HashMap<u32, u16>,
    started: BinaryHeap<Reverse<Started>>,
    /// The tick of the last operation, and ticks that had one.
    last_tick: Option<u64>,
    worked: u64,
    /// Timers that busy CPUs started since one was on time.
    turns: u64,
}

impl Timers {
    pub(super) fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            cpus: HashMap::new(),
            idle: 0,
            tasks: HashMap::new(),
            started: BinaryHeap::new(),
            last_tick: None,
            worked: 0,
            turns: 0,
        }
    }

    fn tick(&self, now_ns: u64) -> u64 {
        now_ns / self.kernel.tick_ns.max(1)
    }

    /// Sees that a CPU does something, and hands those domains to `run` whose timers have run by then.
    pub(super) fn see(&mut self, at: At, mut run: impl FnMut(DeviceId)) {
        self.place(at);
        let tick = self.tick(at.now_ns);
        if self.last_tick.replace(tick) != Some(tick) {
            self.worked += 1;
            self.give_up(&mut run);
        }
        while let Some(Reverse(first)) = self.started.peek().copied() {
            if first.due > tick {
                break;
            }
            self.started.pop();
            let cpu = self.cpus.get_mut(&first.cpu);
            match cpu.filter(|cpu| cpu.task.is_some()) {
                None => run(first.domain),
                Some(cpu) if self.kernel.cpu_time == CpuTime::AsTraced => {
                    let since = self.worked;
                    cpu.waiting.push(DueTimer { started: first, since });
                }
                Some(_) if first.late == 0 => run(first.domain),
                Some(_) => self.started.push(Reverse(first.later())),
            }
        }
        if let Some(cpu) = self.cpus.get_mut(&at.cpu) {
            cpu.waiting.retain(|one| {
                let ran = one.started.later().due <= tick;
                if ran {
                    run(one.started.domain);
                }
                !ran
            });
        }
    }

    /// Notes the task of a CPU.
    fn place(&mut self, at: At) {
        let now = match at.running {
            Running::Idle => None,
            Running::Task(task) => Some(task),
        };
        let known = self.cpus.contains_key(&at.cpu);
        let cpu = self.cpus.entry(at.cpu).or_default();
        if known && cpu.task == now {
            return;
        }
        let before = std::mem::replace(&mut cpu.task, now);
        self.idle -= u64::from(known && before.is_none());
        if let Some(task) = before
            && self.tasks.get(&task) == Some(&at.cpu)
        {
            self.tasks.remove(&task);
        }
        match now {
            None => self.rest(at.cpu),
            // Without a number nothing tells one task from another.
            Some(0) => {}
            Some(task) => {
                if let Some(left) = self.tasks.insert(task, at.cpu)
                    && let Some(cpu) = self.cpus.get_mut(&left)
                {
                    cpu.task = None;
                    self.rest(left);
                }
            }
        }
    }

    /// Runs the timers of CPUs that have shown nothing for so long that they can not be held up.
    fn give_up(&mut self, run: &mut impl FnMut(DeviceId)) {
        let most = HELD_UP_NS / self.kernel.tick_ns.max(1);
        for cpu in self.cpus.values_mut() {
            cpu.waiting.retain(|one| {
                let waits = self.worked - one.since < most;
                if !waits {
                    run(one.started.domain);
                }
                waits
            });
        }
    }

    /// An idle CPU's timers wait for it no longer.
    fn rest(&mut self, cpu: u16) {
        self.idle += 1;
        let waiting = self.cpus.get_mut(&cpu).map(|cpu| &mut cpu.waiting);
        let waiting = waiting.into_iter().flat_map(|waiting| waiting.drain(..));
        self.started.extend(waiting.map(|one| Reverse(one.started)));
    }

    /// Starts the timer of `domain`, which is not running.
    pub(super) fn start(&mut self, at: At, domain: DeviceId) {
        let ticks = self.kernel.timeout_ns.div_ceil(self.kernel.tick_ns.max(1));
        let late = match (at.running, at.timers_late) {
            (Running::Idle, _) => 0,
            (Running::Task(_), Some(is_late)) => u64::from(is_late),
            (Running::Task(_), None) => {
                let seen = self.cpus.len() as u64;
                let cpus = self.kernel.cpus.map_or(seen, u64::from).max(seen);
                self.turns += 1;
                let late = self.turns < cpus - self.idle.min(cpus - 1);
                self.turns *= u64::from(late);
                u64::from(late)
            }
        };
        self.started.push(Reverse(Started {
            due: self.tick(at.now_ns).saturating_add(ticks).saturating_add(1),
            domain,
            cpu: at.cpu,
            late,
        }));
    }

    /// Runs all remaining timers, which would have run after the trace, the earliest first.
    pub(super) fn end(&mut self, mut run: impl FnMut(DeviceId, u64)) {
        let waiting = self.cpus.values_mut().flat_map(|cpu| cpu.waiting.drain(..));
        self.started.extend(waiting.map(|one| Reverse(one.started)));
        while let Some(Reverse(one)) = self.started.pop() {
            let tick = one.later().due;
            run(one.domain, tick.saturating_mul(self.kernel.tick_ns.max(1)));
        }
    }
}
