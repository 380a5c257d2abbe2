//! A unit loses power at each of its registers' accesses, for ever or for a while: the driver ends in time
//! with an error, what the hardware may use is kept, and another unit of the machine goes on.
//!
//! Without power registers read as ones, as they do where the platform catches an abort; afterwards they have the
//! values of reset.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::PhysAddr;
use portolan::inval::Gather;
use portolan::iommu::{Attach as _, AttachError, Domain as _, Iommu as _, IommuError};
use portolan::platform::Nanos;
use portolan_chips::inject::RegisterFaults;

use super::hostile::{HERE, Hosted, MAPPED};
use super::suite::{map, unmap};

/// Longest wait of the drivers of these tests.
pub(crate) const LIMIT: Nanos = Nanos::from_millis(10);
/// Waits that an operation may take: for some commands, and for what tidies up behind a failure.
pub(super) const MOST_WAITS: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Another stream is attached.
    Attach,
    Map,
    Unmap,
    Block,
    Release,
}

/// Accesses to registers for which the power is off.
#[derive(Clone, Copy, Debug)]
pub(super) enum Off {
    For(u64),
    Ever,
}

impl Off {
    pub(super) const ALL: [Self; 4] = [Self::Ever, Self::For(1), Self::For(3), Self::For(20)];

    /// The power goes at the access of that number.
    pub(super) fn from(self, access: u64) -> RegisterFaults {
        let back_at = match self {
            Self::For(accesses) => Some(access + accesses),
            Self::Ever => None,
        };
        RegisterFaults { gone_from: Some(access), back_at, ..RegisterFaults::NONE }
    }
}

/// A unit with a domain that is attached and has a page, and one beside it.
struct Rig<H: Hosted> {
    hosted: H,
    /// Until it is released.
    unit: Option<H::Unit>,
    domain: Arc<H::Tables>,
    beside: Beside<H>,
}

/// A unit over the same memory, which keeps its power.
pub(super) struct Beside<H: Hosted> {
    hosted: H,
    unit: H::Unit,
    domain: Arc<H::Tables>,
}

impl<H: Hosted> Rig<H> {
    fn new() -> Self {
        let hosted = H::new();
        let beside = Beside::of(H::from(hosted.machine().beside()));
        let (unit, domain) = hosted.attached();
        domain.sync(&mut map(&*domain, 1)).unwrap();
        Self { hosted, unit: Some(unit), domain, beside }
    }

    fn now(&self) -> u64 {
        self.hosted.machine().unit().clock().now_ns()
    }

    /// The debt of the operation, which touches no register.
    fn owed(&self, operation: Operation) -> Gather {
        match operation {
            Operation::Map => {
                let mut owed = unmap(&*self.domain, 1);
                self.domain.sync(&mut owed).unwrap();
                map(&*self.domain, 2)
            }
            Operation::Unmap => unmap(&*self.domain, 1),
            Operation::Attach | Operation::Block | Operation::Release => Gather::new(),
        }
    }

    fn carry_out(&mut self, operation: Operation, owed: &mut Gather) -> Result<(), IommuError> {
        let of_unit = |error| match error {
            AttachError::Iommu(error) => error,
            other => panic!("{other}"),
        };
        let [stream, another] = H::STREAMS;
        let domain = &self.domain;
        match (operation, &self.unit) {
            (Operation::Map | Operation::Unmap, _) => {
                domain.sync(owed).map(drop).map_err(IommuError::from)
            }
            (Operation::Attach, Some(unit)) => unit.attach(another, domain).map_err(of_unit),
            (Operation::Block, Some(unit)) => unit.block(stream).map_err(of_unit),
            (Operation::Release, _) => self.unit.take().map_or(Ok(()), H::release),
            (_, None) => Err(IommuError::Stopped),
        }
    }
}

impl<H: Hosted> Beside<H> {
    pub(super) fn of(hosted: H) -> Self {
        let (unit, domain) = hosted.attached();
        Self { hosted, unit, domain }
    }

    /// It serves as before.
    pub(super) fn goes_on(&self) {
        let Self { hosted, unit, domain } = self;
        unit.attach(H::STREAMS[1], domain).unwrap();
        domain.sync(&mut map(&**domain, 1)).unwrap();
        for stream in H::STREAMS {
            assert_eq!(hosted.read(stream, HERE), MAPPED.map(PhysAddr::get));
        }
        domain.sync(&mut unmap(&**domain, 1)).unwrap();
        assert_eq!(hosted.read(H::STREAMS[0], HERE), None);
        unit.block(H::STREAMS[0]).unwrap();
        // No page that was freed was read, by the other unit neither.
        hosted.machine().expect_obedience();
    }
}

/// Register accesses of an operation on a unit with power.
fn accesses<H: Hosted>(operation: Operation) -> u64 {
    let mut rig = Rig::<H>::new();
    let mut owed = rig.owed(operation);
    let before = rig.hosted.machine().unit().accesses();
    rig.carry_out(operation, &mut owed).unwrap();
    rig.hosted.machine().unit().accesses() - before
}

/// Faults of the driver where the power goes at the `access`-th access from now on.
fn cut_short<H: Hosted>(operation: Operation, access: u64, off: Off) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut rig = Rig::<H>::new();
    let mut owed = rig.owed(operation);
    let machine = rig.hosted.machine().clone();
    machine.wrong(off.from(machine.unit().accesses() + access));
    let (live, begin) = (machine.live(), rig.now());
    let outcome = rig.carry_out(operation, &mut owed);
    let took = rig.now() - begin;
    if took > MOST_WAITS * LIMIT.get() {
        wrong.push(format!("it took {took} ns"));
    }
    // It may have been carried out before the power went, or the power's loss have done it.
    let undone = [Operation::Unmap, Operation::Block, Operation::Release];
    let reached = rig.hosted.read(H::STREAMS[0], HERE);
    if outcome.is_ok() && undone.contains(&operation) && reached == MAPPED.map(PhysAddr::get) {
        wrong.push("it is told to be done, and the device still reaches the page".into());
    }
    // The next operation that needs the unit finds out at the latest.
    if let (Ok(()), Some(unit)) = (outcome, &rig.unit) {
        let another = H::STREAMS[1];
        let attached = unit.attach(another, &rig.domain);
        if attached.and_then(|()| unit.block(another)).is_ok() {
            wrong.push("nothing is told of it".into());
        }
    }
    let Rig { hosted, unit, domain, beside } = rig;
    drop((unit, domain));
    if outcome.is_err() && matches!(off, Off::Ever) && machine.live() < live {
        wrong.push(format!("of {live} pages {} are kept", machine.live()));
    }
    hosted.read(H::STREAMS[0], HERE);
    beside.goes_on();
    wrong
}

/// The power goes at each access of each operation, for ever and for so many accesses.
pub(crate) fn loses_power_at_each_access<H: Hosted>() {
    let mut wrong = Vec::new();
    for operation in
        [Operation::Attach, Operation::Map, Operation::Unmap, Operation::Block, Operation::Release]
    {
        for access in 1..=accesses::<H>(operation) {
            for off in Off::ALL {
                for what in cut_short::<H>(operation, access, off) {
                    wrong.push(format!("{operation:?}, access {access}, off {off:?}: {what}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
