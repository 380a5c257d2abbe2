//! A unit is suspended and resumed, with its power lost in between or not, under DMA: what a device
//! reaches at each step; what is owed meanwhile; and the power goes at each access of either.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::PhysAddr;
use portolan::iommu::{Attach as _, AttachError, Domain as _, Iommu as _, IommuError};
use portolan_chips::inject::RegisterFaults;

use super::hostile::{HERE, Hosted, MAPPED, PASSED, observe};
use super::power::{Beside, LIMIT, MOST_WAITS, Off};
use super::suite::{PAGE, map, unmap};

/// Power of a unit while it is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    Kept,
    Lost,
}

impl Power {
    fn apply<H: Hosted>(self, hosted: &H) {
        if self == Self::Lost {
            hosted.machine().unit().cut_power();
        }
    }
}

/// A unit that is attached, with pages mapped.
fn attached<H: Hosted>(pages: u64) -> (H, H::Unit, Arc<H::Tables>) {
    let hosted = H::new();
    let (unit, domain) = hosted.attached();
    domain.sync(&mut map(&*domain, pages)).unwrap();
    (hosted, unit, domain)
}

/// Number of commands that a unit carries out while it is resumed.
fn resumed<H: Hosted>(hosted: &H, unit: &H::Unit) -> usize {
    hosted.machine().take_commands().for_each(drop);
    unit.resume().unwrap();
    hosted.machine().take_commands().count()
}

/// Mappings stand, and are those of the tables: what was unmapped meanwhile without the unit is not
/// reached, whatever it kept before.
pub(crate) fn comes_back<H: Hosted>() {
    let [stream, other] = H::STREAMS;
    for power in [Power::Kept, Power::Lost] {
        let (hosted, unit, domain) = attached::<H>(2);
        let second = HERE + PAGE;
        assert_eq!(unit.resume(), Ok(()), "it runs");
        assert_eq!(hosted.read(stream, HERE), Some(0x1123));
        assert_eq!(hosted.read(stream, second), Some(0x2123));
        unit.suspend().unwrap();
        assert_eq!(unit.suspend(), Ok(()), "it is suspended");
        assert_eq!([stream, other].map(|of| hosted.read(of, second)), [None, None]);
        power.apply(&hosted);
        let accesses = hosted.machine().unit().accesses();
        domain.sync(&mut unmap(&*domain, 1)).unwrap();
        assert_eq!(hosted.machine().unit().accesses(), accesses, "a unit without power");
        let stopped = Err(AttachError::Iommu(IommuError::Stopped));
        assert_eq!(unit.attach(other, &domain), stopped);
        assert_eq!(unit.block(stream), stopped);
        let commands = resumed(&hosted, &unit);
        assert_eq!(hosted.read(stream, HERE), None, "{power:?}");
        assert_eq!(hosted.read(stream, second), Some(0x2123), "{power:?}");
        assert_eq!(hosted.read(other, second), None);
        unit.attach(other, &domain).unwrap();
        assert_eq!(hosted.read(other, second), Some(0x2123));
        unit.block(stream).unwrap();
        assert_eq!(hosted.read(stream, second), None);
        hosted.machine().expect_obedience();
        unit.suspend().unwrap();
        // Those that the queue has from before are not carried out again.
        assert_eq!(resumed(&hosted, &unit), commands, "{power:?}");
        assert_eq!(hosted.read(other, second), Some(0x2123));
        H::release(unit).unwrap();
    }
}

/// Only between the return of its power and the first steps of the driver may a unit let anything
/// pass.
pub(crate) fn passes_nothing<H: Hosted>() {
    for power in [Power::Kept, Power::Lost] {
        let (hosted, unit, _domain) = attached::<H>(1);
        observe(&hosted);
        unit.suspend().unwrap();
        let seen = hosted.machine().unit().observed();
        assert_eq!(seen, [&[MAPPED, None][..], &[None]]);
        power.apply(&hosted);
        unit.resume().unwrap();
        let seen = hosted.machine().unit().observed();
        let [passed, after] = [&seen[0][..], &seen[1][..]].map(|seen| match seen {
            [first, rest @ ..] if *first == PASSED && power == Power::Lost => (1, rest),
            all => (0, all),
        });
        assert_eq!((passed.1, after.1), (&[None, MAPPED][..], &[None][..]), "{power:?}");
        hosted.machine().expect_obedience();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Suspend,
    Resume(Power),
}

impl Way {
    fn prepare<H: Hosted>(self, hosted: &H, unit: &H::Unit) {
        if let Self::Resume(power) = self {
            unit.suspend().unwrap();
            power.apply(hosted);
        }
    }

    fn go<H: Hosted>(self, unit: &H::Unit) -> Result<(), IommuError> {
        match self {
            Self::Suspend => unit.suspend(),
            Self::Resume(_) => unit.resume(),
        }
    }
}

/// Faults of a driver where the power goes at the `access`-th access of the way.
fn cut_short<H: Hosted>(way: Way, access: u64, off: Off) -> Vec<String> {
    let mut wrong = Vec::new();
    let (hosted, unit, domain) = attached::<H>(1);
    let beside = Beside::of(H::from(hosted.machine().beside()));
    way.prepare(&hosted, &unit);
    let machine = hosted.machine();
    let clock = machine.unit().clock();
    machine.wrong(off.from(machine.unit().accesses() + access));
    let begin = clock.now_ns();
    let outcome = way.go::<H>(&unit);
    if clock.now_ns() - begin > MOST_WAITS * LIMIT.get() {
        wrong.push("it took too long".into());
    }
    let [stream, other] = H::STREAMS;
    let reaches = || [stream, other].map(|of| hosted.read(of, HERE));
    let wanted = [MAPPED.map(PhysAddr::get), None];
    if outcome.is_ok() && matches!(way, Way::Resume(_)) && reaches() != wanted {
        // The next operation that needs the unit finds out at the latest.
        if unit.attach(other, &domain).and_then(|()| unit.block(other)).is_ok() {
            wrong.push("nothing is told of it".into());
        }
        let _ = unit.suspend();
    }
    machine.wrong(RegisterFaults::NONE);
    machine.unit().cut_power();
    if outcome.is_ok() && matches!(way, Way::Resume(_)) {
        let _ = unit.suspend();
    }
    if let Err(error) = unit.resume() {
        wrong.push(format!("it does not come back: {error}"));
    } else if reaches() != wanted {
        wrong.push(format!("devices reach {:x?}", reaches()));
    } else if domain.sync(&mut unmap(&*domain, 1)).is_err() || reaches() != [None; 2] {
        wrong.push("a page that is unmapped is reached".into());
    }
    // What was written to a unit without power may make no sense to one that is back.
    assert_eq!(machine.memory().reads_of_freed_pages(), 0);
    beside.goes_on();
    wrong
}

/// The power goes at each access, for ever and for so many accesses: that is an error in time, and once
/// it is back the unit is resumed.
pub(crate) fn loses_power_at_each_access<H: Hosted>() {
    let mut wrong = Vec::new();
    for way in [Way::Suspend, Way::Resume(Power::Kept), Way::Resume(Power::Lost)] {
        let (hosted, unit, _domain) = attached::<H>(1);
        way.prepare(&hosted, &unit);
        let before = hosted.machine().unit().accesses();
        way.go::<H>(&unit).unwrap();
        let accesses = hosted.machine().unit().accesses() - before;
        for access in 1..=accesses {
            for off in Off::ALL {
                let found = cut_short::<H>(way, access, off).into_iter();
                wrong.extend(found.map(|what| format!("{way:?} {access} off {off:?}: {what}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
