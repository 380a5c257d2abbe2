//! Shared virtual addressing: one set of tables, walked by a CPU and, for a PASID, by a device.
//!
//! The CPU is software: it walks the process's tables and keeps translations until it is told. The device
//! reaches pages that the CPU's faults bring in without asking, and the other way around. Memory that the
//! process gives back is used again once the notifier has returned, and not by the device.

use std::cell::RefCell;
use std::collections::BTreeMap;

use portolan::addr::{Iova, Pasid, PhysAddr};
use portolan::iommu::Domain as _;

use super::asking::{FaultSource, MARK, Wrote};
use super::basic::PAGE;
use super::scene::{OnDemand, Scene};
use super::{Host, Machine, Verdict, expect, fail, must};

/// The process, as the device names it.
const PROCESS: Pasid = Pasid::new(3);

/// A CPU on the tables of a process.
struct ProcessCpu<'s, 'm, M: Machine> {
    machine: &'m M,
    scene: &'s Scene<'m, M>,
    process: &'s OnDemand<M::Domain>,
    tlb: RefCell<BTreeMap<u64, PhysAddr>>,
}

impl<M: Machine> ProcessCpu<'_, '_, M> {
    /// Address of a page, if it is mapped or still in this CPU's TLB.
    fn walk(&self, page: u64) -> Option<PhysAddr> {
        let known = self.tlb.borrow().get(&page).copied();
        let found = known.or_else(|| {
            let iova = Iova::new(M::BASE.get() + page * PAGE);
            Some(self.scene.on.domain.translate(iova)?.pa)
        })?;
        self.tlb.borrow_mut().insert(page, found);
        Some(found)
    }

    /// Writes to a page, which a fault of the CPU's brings in.
    fn write(&self, page: u64, value: u32) -> Verdict {
        let iova = Iova::new(M::BASE.get() + page * PAGE);
        let there = self.walk(page).or_else(|| {
            self.process.bring(iova)?;
            self.walk(page)
        });
        let pa = there.ok_or_else(|| fail("the process has no page left"))?;
        self.machine.host.poke(pa, value);
        Ok(())
    }

    fn read(&self, page: u64) -> Option<u32> {
        Some(self.machine.host.peek(self.walk(page)?))
    }

    /// The TLB maintenance of the process's own kernel.
    fn forget(&self, page: u64) {
        self.tlb.borrow_mut().remove(&page);
    }
}

fn shares<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    let scene = Scene::of(machine, way, Some(PROCESS))?;
    scene.desk.unregister(scene.on.device, Some(PROCESS));
    let process = scene.register(4)?;
    let cpu = ProcessCpu { machine, scene: &scene, process: &process, tlb: RefCell::default() };
    // The first side that touches a page brings it in for both.
    cpu.write(0, 1)?;
    expect("a write of the device", scene.reach(0, 1), Wrote::There)?;
    expect("what the CPU reads", cpu.read(0), Some(MARK))?;
    scene.must_ask(1, 2)?;
    scene.turn()?;
    scene.must_arrive(1)?;
    expect("what the CPU reads", cpu.read(1), Some(MARK))?;
    // The process gives a page back: the tables and the CPU's TLB no longer have it.
    let old = scene.pa(1)?;
    let owed = scene.on.unmap(Iova::new(M::BASE.get() + PAGE), PAGE)?;
    cpu.forget(1);
    expect("what the CPU reads of a page that is gone", cpu.read(1), None)?;
    if scene.reach(1, 3) != Wrote::There {
        return Err(fail("nothing was cached: the scenario proves nothing"));
    }
    // The notifier. From here on the page is used for something else.
    scene.on.sync(owed)?;
    process.give_back(old);
    cpu.write(5, 2)?;
    expect("the page that is used again", scene.pa(5)?, old)?;
    scene.must_ask(1, 4)?;
    scene.turn()?;
    scene.must_arrive(1)?;
    expect("what the CPU reads of that page", cpu.read(5), Some(2))?;
    // The process ends.
    scene.desk.unregister(scene.on.device, Some(PROCESS));
    if let Some(pasids) = machine.pasids.as_ref() {
        let (unit, device) = (&machine.unit, scene.on.device);
        must("blocking", (pasids.block)(unit, device, PROCESS))?;
    }
    let after = scene.asker.write(way, scene.on.device, Some(PROCESS), M::BASE);
    if after == Wrote::There {
        return Err(fail("a device reaches a process that has ended"));
    }
    scene.turn()?;
    scene.asker.settled();
    scene.settled()
}

pub(super) fn by_requests<M: Machine>(machine: &M) -> Verdict {
    shares(machine, FaultSource::Requests)
}

pub(super) fn by_stalls<M: Machine>(machine: &M) -> Verdict {
    shares(machine, FaultSource::Stalls)
}
