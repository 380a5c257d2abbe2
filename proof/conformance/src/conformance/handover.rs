//! Units that the next kernel gets, as a former one has left them: without a word, or handed over.

use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::inval::Gather;
use portolan::iommu::handover::{AdoptedDomain, UnitHandover};
use portolan::iommu::{Domain, IommuDomains, IommuError};
use portolan::platform::TableClaims;
use portolan_hw::handover::AdoptError;

use super::basic::{Attached, PAGE, RW, arrives};
use super::{Host, Machine, Outcome, Run, Verdict, expect, fail, must, needs};
use crate::promise::{preserved, promised};

/// A driver of the next kernel.
type NextDriver<E> = Result<Arc<dyn IommuDomains>, E>;
/// Takes a unit over from the state that a former driver has recorded.
type Adopt = dyn Fn(&UnitHandover, &mut TableClaims<'_>) -> NextDriver<AdoptError>;

/// Functions with which the next kernel gets a unit of the driver `U`.
pub struct Next<U> {
    /// The former kernel's driver, which hands over.
    pub former: fn(&U) -> &dyn IommuDomains,
    /// Enables the unit as it was left.
    pub enable: Box<dyn Fn() -> NextDriver<IommuError>>,
    /// Takes the unit over with what is behind it at work.
    pub adopt: Box<Adopt>,
}

pub(super) const BLOCKS: &str = "next-kernel-blocks-devices";
pub(super) const FORGETS: &str = "next-kernel-hits-nothing-old";
pub(super) const GOES_ON: &str = "handed-over-at-work";

/// All scenarios of this module.
pub(super) fn all<M: Machine>() -> [(&'static str, Run<M>); 3] {
    [(BLOCKS, blocks_devices), (FORGETS, hits_nothing_old), (GOES_ON, goes_on)]
}

/// Lets three accesses loose: the first device to [`Machine::BASE`], and those that may reach nothing, it to `pa`
/// untranslated and the second device to what the first has.
pub(super) fn let_three_loose<M: Machine>(machine: &M, pa: PhysAddr) -> Verdict {
    let [first, second] = machine.host.devices();
    for (device, iova) in [(first, M::BASE), (first, Iova::new(pa.get())), (second, M::BASE)] {
        needs(machine.host.let_loose(device, iova))?;
    }
    Ok(())
}

/// Checks that the first of three accesses has reached `pa` or nothing and the others nothing; returns what the
/// first reached.
pub(super) fn reached_at_most<M: Machine>(
    machine: &M,
    pa: PhysAddr,
) -> Result<Vec<Option<PhysAddr>>, Outcome> {
    let reached = machine.host.reached();
    let [mapped, untranslated, others] = &reached[..] else {
        return Err(fail("not three accesses"));
    };
    let nothing = |at: &Option<PhysAddr>| at.is_none();
    let fits = mapped.iter().all(|at| at.is_none_or(|at| at == pa));
    if fits && untranslated.iter().all(nothing) && others.iter().all(nothing) {
        Ok(mapped.clone())
    } else {
        Err(fail(format!("of a page at {pa} devices reached {reached:?}")))
    }
}

/// A device at work in a former kernel, with a page that its unit has cached.
struct AtWork<'m, M: Machine> {
    next: &'m Next<M::Iommu>,
    former: &'m dyn IommuDomains,
    on: Attached<M>,
    pa: PhysAddr,
}

impl<'m, M: Machine> AtWork<'m, M> {
    fn new(machine: &'m M) -> Result<Self, Outcome> {
        let none = || Outcome::Skip("there is no next kernel here".to_owned());
        let next = machine.next.as_ref().ok_or_else(none)?;
        let on = Attached::new(machine)?;
        let pa = machine.host.memory(PAGE);
        on.map(M::BASE, pa, PAGE, RW)?;
        on.must_reach(machine, M::BASE, pa)?;
        Ok(Self { next, former: (next.former)(&machine.unit), on, pa })
    }

    /// The next kernel's driver of a unit of which it was not told.
    fn enable(&self) -> Result<Arc<dyn IommuDomains>, Outcome> {
        // A kernel that crashed does nothing more, also when these values are dropped.
        leave(self.former)?;
        must("enabling", (self.next.enable)())
    }
}

fn leave(former: &dyn IommuDomains) -> Verdict {
    match former.leave() {
        Err(IommuError::Unsupported) => {
            Err(Outcome::Skip("the driver leaves no unit as it is".to_owned()))
        }
        done => must("leaving", done),
    }
}

/// Maps a page of `domain`, and pays.
fn map(domain: &dyn Domain, iova: Iova, pa: PhysAddr) -> Verdict {
    let mut owed = Gather::new();
    must("mapping", domain.map(iova, promised(pa, PAGE), RW, &mut owed))?;
    must("syncing", domain.sync(&mut owed).map(drop))
}

fn blocks_devices<M: Machine>(machine: &M) -> Verdict {
    let work = AtWork::new(machine)?;
    let_three_loose(machine, work.pa)?;
    let next = work.enable()?;
    reached_at_most(machine, work.pa)?;
    let blocked = arrives(machine, work.on.device, M::BASE, work.pa);
    drop(next);
    expect("a write with the former kernel's address arrives", blocked, false)
}

fn hits_nothing_old<M: Machine>(machine: &M) -> Verdict {
    let work = AtWork::new(machine)?;
    let next = work.enable()?;
    let page = machine.host.memory(PAGE);
    let bound = must("making a domain", next.clone().new_domain())?;
    map(&**bound.domain(), M::BASE, page)?;
    for device in machine.host.devices() {
        must("attaching", bound.attach(device))?;
        let before = machine.host.peek(work.pa);
        let arrived = arrives(machine, device, M::BASE, page);
        expect("a write to the next kernel's page arrives", arrived, true)?;
        expect("the former one's page", machine.host.peek(work.pa), before)?;
    }
    Ok(())
}

fn goes_on<M: Machine>(machine: &M) -> Verdict {
    let work = AtWork::new(machine)?;
    let device = work.on.device;
    let state = match work.former.handover() {
        Err(IommuError::Unsupported) => {
            return Err(Outcome::Skip("the driver hands nothing of this over".to_owned()));
        }
        state => must("recording", state)?,
    };
    leave(work.former)?;
    let_three_loose(machine, work.pa)?;
    let all = [PhysRange::page(PhysAddr::new(0), PageSize::of_lg2(40))];
    machine.host.change_hands();
    let mut claims = TableClaims::new(preserved(&all, &all));
    let next = must("adopting", (work.next.adopt)(&state, &mut claims))?;
    let reached = reached_at_most(machine, work.pa)?;
    expect("accesses meanwhile", reached, vec![Some(work.pa)])?;
    let none = || fail("the device has no domain any more");
    let AdoptedDomain { bound, in_use } = next.clone().adopted(device).ok_or_else(none)?;
    let range = IovaRange::from_len(M::BASE, PAGE).ok_or_else(|| fail("empty range"))?;
    expect("addresses in use", in_use, vec![range])?;
    // The tables are the next kernel's.
    let (more, behind) = (machine.host.memory(PAGE), Iova::new(M::BASE.get() + PAGE));
    map(&**bound.domain(), behind, more)?;
    expect("a new page is reached", arrives(machine, device, behind, more), true)?;
    expect("the old page is reached", arrives(machine, device, M::BASE, work.pa), true)?;
    let mut owed = Gather::new();
    must("unmapping", bound.domain().unmap(range, &mut owed))?;
    must("syncing", bound.domain().sync(&mut owed).map(drop))?;
    expect("an unmapped page is reached", arrives(machine, device, M::BASE, work.pa), false)?;
    must("blocking", next.block(device))?;
    expect("a blocked device reaches", arrives(machine, device, behind, more), false)
}
