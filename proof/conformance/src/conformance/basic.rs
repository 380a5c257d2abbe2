//! Scenarios of one device and one domain: mapped pages are reached, other accesses are refused and recorded as
//! faults.

use crate::promise::promised;
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach, Domain, FaultAccess, FaultEvent, FaultReason, FaultRecord, IommuError,
};
use portolan::table::Access;

use super::{Has, Host, Machine, Outcome, Verdict, drain, expect, fail, must, needs};

const EVENTS: u64 = 4096;

/// Tells if a write of `device` arrives at `pa`.
pub(super) fn arrives<M: Machine>(machine: &M, device: StreamId, iova: Iova, pa: PhysAddr) -> bool {
    let value = machine.host.peek(pa).wrapping_add(0x5eed) & 0xffff;
    machine.host.device_write(device, iova, value);
    machine.host.peek(pa) == value
}

/// A device attached to a domain.
pub(super) struct Attached<M: Machine> {
    pub(super) domain: Arc<M::Domain>,
    pub(super) device: StreamId,
}

impl<M: Machine> Attached<M> {
    /// The first device on a new domain.
    pub(super) fn new(machine: &M) -> Result<Self, Outcome> {
        Self::with(machine, machine.host.devices()[0])
    }

    pub(super) fn with(machine: &M, device: StreamId) -> Result<Self, Outcome> {
        let domain: Result<_, IommuError> = machine.domain();
        let domain = must("making a domain", domain)?;
        must("attaching", machine.unit.attach(device, &domain))?;
        Ok(Self { domain, device })
    }

    /// Maps and pays at once.
    pub(super) fn map(&self, iova: Iova, pa: PhysAddr, bytes: u64, access: Access) -> Verdict {
        let mut owed = Gather::new();
        must("mapping", self.domain.map(iova, promised(pa, bytes), access, &mut owed))?;
        self.sync(owed)
    }

    /// Unmaps and owes. A block that is cut is split before, and that is paid.
    pub(super) fn unmap(&self, iova: Iova, bytes: u64) -> Result<Gather, Outcome> {
        let mut owed = Gather::new();
        let range = IovaRange::from_len(iova, bytes).ok_or_else(|| fail("empty range"))?;
        must("unmapping", self.domain.unmap_part(range, &mut owed))?;
        Ok(owed)
    }

    pub(super) fn sync(&self, mut owed: Gather) -> Verdict {
        must("syncing", self.domain.sync(&mut owed).map(drop))
    }

    /// Tells if a write of the device arrives at `pa`.
    pub(super) fn reaches(&self, machine: &M, iova: Iova, pa: PhysAddr) -> bool {
        arrives(machine, self.device, iova, pa)
    }

    pub(super) fn must_reach(&self, machine: &M, iova: Iova, pa: PhysAddr) -> Verdict {
        if self.reaches(machine, iova, pa) {
            return Ok(());
        }
        let events = drain(machine, EVENTS)?;
        Err(fail(format!("a write to {iova} did not arrive at {pa}: {events:?}")))
    }

    /// A write must not arrive at `pa`, and the unit must record the device, the access and the reason.
    pub(super) fn must_fault(
        &self,
        machine: &M,
        iova: Iova,
        pa: PhysAddr,
        reasons: &[FaultReason],
    ) -> Verdict {
        drain(machine, EVENTS)?;
        if self.reaches(machine, iova, pa) {
            return Err(fail(format!("a write to {iova} arrived at {pa}")));
        }
        let abilities = machine.abilities;
        if abilities.records != Has::Yes {
            return Ok(());
        }
        let events = drain(machine, EVENTS)?;
        let fits = |record: &FaultRecord| {
            let page = |iova: Iova| iova.get() >> 12;
            let told = abilities.reasons == Has::Yes;
            let details = record.iova.is_none_or(|at| page(at) == page(iova))
                && record.access.is_none_or(|access| access == FaultAccess::Write);
            let detailed =
                record.reason != FaultReason::Blocked || abilities.details_of_blocked == Has::Yes;
            record.stream == self.device
                && (details || !detailed)
                && (!told || reasons.contains(&record.reason))
        };
        let found = events.iter().any(|event| match event {
            FaultEvent::Fault(record) => fits(record),
            FaultEvent::Lost => false,
        });
        if found {
            Ok(())
        } else {
            let (device, wanted) = (self.device, reasons);
            Err(fail(format!("no record of {device:?} writing {iova} for {wanted:?}: {events:?}")))
        }
    }
}

pub(super) const RW: Access = Access::READ.union(Access::WRITE);
pub(super) const PAGE: u64 = PageSize::SIZE_4K.bytes();

pub(super) fn mapped_access_succeeds<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    expect("faults", drain(machine, EVENTS)?, Vec::new())
}

pub(super) fn unmapped_access_faults<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    let owed = on.unmap(M::BASE, PAGE)?;
    on.sync(owed)?;
    on.must_fault(machine, M::BASE, pa, &[FaultReason::NotMapped])
}

pub(super) fn read_only_refuses_writes<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, Access::READ)?;
    machine.host.poke(pa, 77);
    if machine.abilities.reads == Has::Yes {
        expect("read", machine.host.device_read(on.device, M::BASE), Some(77))?;
    }
    on.must_fault(machine, M::BASE, pa, &[FaultReason::Permission])
}

pub(super) fn write_only_refuses_reads<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities.reads)?;
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    let none = || Outcome::Skip("the table format has no write-only".to_owned());
    let mut owed = Gather::new();
    let mapped = on.domain.map(M::BASE, promised(pa, PAGE), Access::WRITE, &mut owed);
    on.sync(owed)?;
    let found = on.domain.translate(M::BASE).map(|translation| translation.access);
    if mapped.is_err() || found.is_some_and(|access| access.contains(Access::READ)) {
        return Err(none());
    }
    on.must_reach(machine, M::BASE, pa)?;
    expect("read", machine.host.device_read(on.device, M::BASE), None)
}

pub(super) fn page_ends_are_exact<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(4 * PAGE);
    let at = |pages: u64| PhysAddr::new(pa.get() + pages * PAGE);
    let iova = |bytes: u64| Iova::new(M::BASE.get() + bytes);
    on.map(iova(PAGE), at(1), 2 * PAGE, RW)?;
    let last = PhysAddr::new(at(3).get() - 4);
    on.must_reach(machine, iova(PAGE), at(1))?;
    on.must_reach(machine, iova(3 * PAGE - 4), last)?;
    on.must_fault(
        machine,
        iova(PAGE - 4),
        PhysAddr::new(at(1).get() - 4),
        &[FaultReason::NotMapped],
    )?;
    on.must_fault(machine, iova(3 * PAGE), at(3), &[FaultReason::NotMapped])
}

pub(super) fn block_split_keeps_the_rest<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities.blocks)?;
    let on = Attached::new(machine)?;
    let block = machine.abilities.block;
    let bytes = block.bytes();
    let pa = machine.host.memory(bytes);
    on.map(M::BASE, pa, bytes, RW)?;
    let size = on.domain.translate(M::BASE).map(|translation| translation.size);
    expect("leaf size", size, Some(block))?;
    let page = |n: u64| (Iova::new(M::BASE.get() + n * PAGE), PhysAddr::new(pa.get() + n * PAGE));
    let (iova, target) = page(100);
    on.must_reach(machine, iova, target)?;
    let owed = on.unmap(iova, PAGE)?;
    // Until the sync a neighbour may be refused, but not for a reason of the hardware's own: the
    // block has to be gone from all caches before there are pages.
    drain(machine, EVENTS)?;
    let mut events = Vec::new();
    for n in [0, 99, 101, bytes / PAGE - 1] {
        let (iova, target) = page(n);
        on.reaches(machine, iova, target);
        // One at a time: some units keep one record.
        events.extend(drain(machine, EVENTS)?);
    }
    let strange = |event: &FaultEvent| match event {
        FaultEvent::Fault(record) => record.reason != FaultReason::NotMapped,
        FaultEvent::Lost => true,
    };
    if let Some(event) = events.iter().find(|event| strange(event)) {
        return Err(fail(format!("during the split: {event:?}")));
    }
    on.sync(owed)?;
    on.must_fault(machine, iova, target, &[FaultReason::NotMapped])?;
    for n in [0, 99, 101, bytes / PAGE - 1] {
        let (iova, target) = page(n);
        on.must_reach(machine, iova, target)?;
    }
    Ok(())
}
