//! A round: a machine from start to end, and the work of each of its CPUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use portolan::platform::Clock as _;
use portolan_sim::cpus::{Hardware, Schedule};

use super::SmpPlan;
use super::buffers::Buffers;
use super::cpu::{Hands, SmpCpu};
use super::machine::{BETWEEN_NS, Model, SmpMachine};
use super::region::FaultingRegion;
use crate::record::Tally;

/// Longest random delay of an access to what CPUs share, in nanoseconds.
const RAGGED_NS: f64 = 40.0;

/// Runs a machine from start to end.
pub(super) fn run(
    plan: SmpPlan,
    tally: &Arc<Tally>,
    wrap: &dyn Fn(Arc<Model>) -> Box<dyn Hardware>,
) {
    let (load, hardware) = (plan.load.name(), plan.health.name());
    tally.begin(format!("{load}, {hardware} hardware, seed {}", plan.seed));
    let machine = SmpMachine::new(plan, tally, wrap);
    let buffers = plan.load.buffers().map(|mode| Buffers::new(&machine, mode));
    let region = plan.load.faults().then(|| FaultingRegion::new(&machine));
    let work = CpuWork {
        machine: &machine,
        buffers: buffers.as_ref(),
        region: region.as_ref(),
        end: tally.operations() + plan.operations,
        finished: AtomicU64::new(0),
    };
    let schedule = Schedule::of_seed(plan.seed).ragged(RAGGED_NS);
    if let Err(error) = machine.cpus.run(&schedule, |cpu| work.run(cpu.get().into())) {
        return tally.violation(error);
    }
    if let Some(buffers) = buffers {
        buffers.take_down();
    }
    let used = region.as_ref().map_or(0, FaultingRegion::take_down);
    tally.add("syncs", machine.model.counters().syncs);
    let live = machine.tables.0.live();
    if live != used {
        tally.violation(format!("{live} table pages are out of memory, {used} in use"));
    }
}

/// The work of all CPUs.
struct CpuWork<'m> {
    machine: &'m SmpMachine,
    buffers: Option<&'m Buffers<'m>>,
    region: Option<&'m FaultingRegion<'m>>,
    /// Operations of the run after which it ends.
    end: u64,
    /// CPUs that are done.
    finished: AtomicU64,
}

impl CpuWork<'_> {
    /// Runs one CPU's part.
    fn run(&self, number: u64) {
        let SmpMachine { plan, cpus, tally, .. } = self.machine;
        let mut rng = Rng::with_seed(plan.seed ^ (number << 40));
        let next = rng.u64(..);
        let mut cpu = SmpCpu { number, rng, hands: Hands::default(), next };
        while tally.operations() < self.end {
            cpus.work(cpu.rng.f64() * BETWEEN_NS);
            let begin = cpus.now().get();
            match (self.buffers, self.region) {
                (Some(buffers), None) => buffers.step(&mut cpu),
                (Some(buffers), Some(_)) if cpu.rng.bool() => buffers.step(&mut cpu),
                (_, Some(region)) => region.step(&mut cpu),
                (None, None) => return,
            }
            tally.most("longest_step_ns", cpus.now().get() - begin);
        }
        if let Some(buffers) = self.buffers {
            buffers.finish(&mut cpu);
        }
        if self.finished.fetch_add(1, Ordering::Relaxed) + 1 < plan.cpus {
            return;
        }
        // The last: the hardware works again, and nothing has an excuse.
        self.machine.failures.heal();
        if let Some(region) = self.region {
            region.finish();
        }
    }
}
