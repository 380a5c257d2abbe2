//! Tests that every driver passes on a machine that is not obliging: a device has DMA under way at
//! every access to a register, registers are locked, read as ones or abort.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::{Attach, Domain, Iommu as _, IommuError};
use portolan_chips::machine::{Design, Event, Machine, Withheld};
use portolan_sim::decode::AccessKind;

use super::suite::{BASE, Driven, map, unmap};

pub(super) const HERE: u64 = BASE.get() + 0x123;
pub(super) const MAPPED: Option<PhysAddr> = Some(PhysAddr::new(0x1123));
/// Address that a device reaches that passes.
pub(super) const PASSED: Option<PhysAddr> = Some(PhysAddr::new(HERE));

/// A machine whose unit a driver drives, with any kind of commands.
pub(crate) trait Hosted: Sized + From<Machine<Self::Kind>> {
    type Kind: Design;
    type Unit: Attach<Self::Tables>;
    type Tables: Domain;

    /// The stream that is attached, and another.
    const STREAMS: [StreamId; 2];
    /// Registers of commands that read as nothing, so that no driver can see that they are locked.
    const UNSEEN: &'static [usize] = &[];

    fn new() -> Self;
    fn bring_up(&self) -> Result<Self::Unit, IommuError>;
    fn release(unit: Self::Unit) -> Result<(), IommuError>;
    fn tables(unit: &Self::Unit) -> Result<Self::Tables, IommuError>;
    fn machine(&self) -> &Machine<Self::Kind>;
    /// Address that the device of a stream reads at `iova`.
    fn read(&self, stream: StreamId, iova: u64) -> Option<u64>;

    /// A unit with one stream attached to one domain.
    fn attached(&self) -> (Self::Unit, Arc<Self::Tables>) {
        let unit = self.bring_up().unwrap();
        let domain = Arc::new(Self::tables(&unit).unwrap());
        unit.attach(Self::STREAMS[0], &domain).unwrap();
        (unit, domain)
    }
}

impl<D: Driven + From<Machine<<D as Driven>::Kind>>> Hosted for D {
    type Kind = <D as Driven>::Kind;
    type Unit = <D as Driven>::Unit;
    type Tables = <D as Driven>::Tables;

    const STREAMS: [StreamId; 2] = <D as Driven>::STREAMS;

    fn new() -> Self {
        D::ordinary()
    }

    fn bring_up(&self) -> Result<Self::Unit, IommuError> {
        Driven::enable(self, D::config())
    }

    fn release(unit: Self::Unit) -> Result<(), IommuError> {
        <D as Driven>::release(unit)
    }

    fn tables(unit: &Self::Unit) -> Result<Self::Tables, IommuError> {
        <D as Driven>::tables(unit)
    }

    fn machine(&self) -> &Machine<Self::Kind> {
        Driven::machine(self)
    }

    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        Driven::read(self, stream, iova)
    }
}

/// Tests that every driver passes.
macro_rules! on_a_hostile_machine {
    ($hosted:ty: $($test:ident)*) => {
        mod on_a_hostile_machine {
            $(
                #[test]
                fn $test() {
                    $crate::chassis::tests::hostile::$test::<$hosted>();
                }
            )*

            #[test]
            fn a_unit_that_loses_power_is_an_error_keeps_memory_and_harms_no_other() {
                $crate::chassis::tests::power::loses_power_at_each_access::<$hosted>();
            }

            #[test]
            fn a_suspended_unit_owes_nothing_and_comes_back_with_its_mappings() {
                $crate::chassis::tests::suspend::comes_back::<$hosted>();
            }

            #[test]
            fn at_every_write_of_suspend_and_resume_a_device_reaches_what_it_did_or_nothing() {
                $crate::chassis::tests::suspend::passes_nothing::<$hosted>();
            }

            #[test]
            fn a_unit_that_loses_power_while_it_is_suspended_or_resumed_comes_back() {
                $crate::chassis::tests::suspend::loses_power_at_each_access::<$hosted>();
            }
        }
    };
    ($hosted:ty) => {
        $crate::chassis::tests::hostile::on_a_hostile_machine! {
            $hosted:
                at_every_write_of_enable_a_device_reaches_what_it_did_or_nothing
                at_every_write_of_release_a_device_reaches_what_it_did_or_nothing
                at_every_step_of_a_move_a_device_reaches_what_either_maps_or_nothing
                a_register_that_is_kept_from_the_driver_is_an_error_or_does_no_harm
        }
    };
}

pub(crate) use on_a_hostile_machine;

pub(super) fn observe<H: Hosted>(hosted: &H) {
    let unit = hosted.machine().unit();
    for stream in H::STREAMS {
        unit.observe(stream, None, Iova::new(HERE), AccessKind::Read);
    }
    unit.observed();
}

/// A device that has DMA under way reaches the same memory as before, then nothing; and never
/// anything else.
pub(crate) fn at_every_write_of_enable_a_device_reaches_what_it_did_or_nothing<H: Hosted>() {
    let hosted = H::new();
    observe(&hosted);
    let unit = hosted.bring_up().unwrap();
    for seen in hosted.machine().unit().observed() {
        assert!([&[None][..], &[PASSED, None]].contains(&&seen[..]), "{seen:?}");
    }
    drop(unit);
}

/// From the mapping to nothing, or to the memory that a unit that is off lets pass: with no step
/// back.
pub(crate) fn at_every_write_of_release_a_device_reaches_what_it_did_or_nothing<H: Hosted>() {
    let hosted = H::new();
    let (unit, domain) = hosted.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    observe(&hosted);
    H::release(unit).unwrap();
    let seen = hosted.machine().unit().observed();
    let attached: [&[_]; 4] =
        [&[MAPPED, None], &[MAPPED, None, PASSED], &[MAPPED, PASSED], &[MAPPED]];
    assert!(attached.contains(&&seen[0][..]), "{:?}", seen[0]);
    let other: [&[_]; 2] = [&[None], &[None, PASSED]];
    assert!(other.contains(&&seen[1][..]), "{:?}", seen[1]);
}

/// A device that moves between domains reaches the mappings of either, or nothing; another is not
/// disturbed.
pub(crate) fn at_every_step_of_a_move_a_device_reaches_what_either_maps_or_nothing<H: Hosted>() {
    let hosted = H::new();
    let (unit, domain) = hosted.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    unit.attach(H::STREAMS[1], &domain).unwrap();
    let next = Arc::new(H::tables(&unit).unwrap());
    observe(&hosted);
    unit.attach(H::STREAMS[0], &next).unwrap();
    unit.attach(H::STREAMS[0], &domain).unwrap();
    unit.block(H::STREAMS[0]).unwrap();
    let seen = hosted.machine().unit().observed();
    let allowed = |outcome: &Option<PhysAddr>| [MAPPED, None].contains(outcome);
    assert!(seen[0].iter().all(allowed), "{:?}", seen[0]);
    assert_eq!((seen[0].first(), seen[0].last()), (Some(&MAPPED), Some(&None)));
    assert_eq!(seen[1], [MAPPED], "another device");
    hosted.machine().expect_obedience();
}

/// The registers that `enable` writes.
fn written<H: Hosted>() -> BTreeSet<usize> {
    let hosted = H::new();
    hosted.machine().take();
    let _unit = hosted.bring_up().unwrap();
    let written = hosted.machine().take().into_iter();
    written
        .filter_map(|event| match event {
            Event::Write(offset, _) => Some(offset & !7),
            _ => None,
        })
        .collect()
}

/// Returns the error of a unit that was enabled all the same and went wrong without a word; `None`
/// if it serves as it should, or fails openly.
fn serves<H: Hosted>(hosted: &H, unit: &H::Unit) -> Option<&'static str> {
    let [stream, other] = H::STREAMS;
    let domain = Arc::new(H::tables(unit).ok()?);
    unit.attach(stream, &domain).ok()?;
    domain.sync(&mut map(&*domain, 1)).ok()?;
    if hosted.read(stream, HERE) != MAPPED.map(PhysAddr::get) {
        return Some("the device does not reach what is mapped");
    }
    if hosted.read(other, HERE).is_some() {
        return Some("another device reaches memory");
    }
    domain.sync(&mut unmap(&*domain, 1)).ok()?;
    hosted.read(stream, HERE).map(|_| "the device reaches what is unmapped")
}

/// Each register in turn: that is an error, or devices reach their mappings and nothing else.
pub(crate) fn a_register_that_is_kept_from_the_driver_is_an_error_or_does_no_harm<H: Hosted>() {
    let mut harm = Vec::new();
    for offset in written::<H>().into_iter().filter(|at| !H::UNSEEN.contains(at)) {
        for how in [Withheld::Locked, Withheld::Ones, Withheld::Aborts, Withheld::MissesZero] {
            let hosted = H::new();
            hosted.machine().withhold(offset, how);
            let Ok(unit) = hosted.bring_up() else {
                continue;
            };
            let wrong = serves(&hosted, &unit);
            let _ = H::release(unit);
            harm.extend(wrong.map(|wrong| format!("{offset:#x}, {how:?}: {wrong}")));
        }
    }
    assert!(harm.is_empty(), "{}", harm.join("\n"));
}
