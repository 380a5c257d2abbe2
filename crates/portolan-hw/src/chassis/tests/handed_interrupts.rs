//! Tests of a driver that hands interrupts to another instance of itself, as one kernel to the next, while devices
//! raise them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::Mutex;

use portolan::addr::{RequesterId, StreamId};
use portolan::iommu::handover::{InterruptHandover, UnitHandover};
use portolan::iommu::{
    Destination, Interrupt, InterruptSource, InterruptTarget, Iommu as _, IommuDomains, MsiMessage,
    RemapInterrupts, Vector,
};

use super::handover::{HandsOver, claims, recorded};
use crate::handover::AdoptError;

/// A machine whose devices raise interrupts while its unit changes hands.
pub(crate) trait RaisesInterrupts: HandsOver
where
    Self::Unit: IommuDomains + 'static,
{
    /// CPU and number of the interrupt that arrives if `stream` writes `message`.
    fn send(&self, stream: StreamId, message: MsiMessage) -> Option<(u32, u8)>;
}

/// An interrupt that is open.
pub(crate) struct Open {
    stream: StreamId,
    message: MsiMessage,
    arrives: (u32, u8),
    interrupt: Interrupt,
}

fn source(stream: StreamId) -> InterruptSource {
    InterruptSource::Requester(RequesterId::new(stream.get() as u16))
}

fn target(vector: u8, cpu: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(cpu))
}

fn remaps(unit: &impl IommuDomains) -> &dyn RemapInterrupts {
    unit.interrupts().unwrap()
}

/// Opens two interrupts for the first stream, and one for the second.
pub(crate) fn open(unit: &impl IommuDomains, streams: [StreamId; 2]) -> Vec<Open> {
    let [one, other] = streams;
    let all = [(one, (3, 0x52)), (one, (0, 0x63)), (other, (1, 0x70))];
    let open = |(stream, arrives): (StreamId, (u32, u8))| {
        let target = target(arrives.1, arrives.0);
        let interrupt = remaps(unit).allocate(source(stream), target).unwrap();
        let message = remaps(unit).message(&interrupt).unwrap();
        Open { stream, message, arrives, interrupt }
    };
    all.map(open).into()
}

/// Checks that each interrupt arrives, and none of another stream.
fn all_arrive<H: RaisesInterrupts>(hosted: &H, open: &[Open])
where
    H::Unit: IommuDomains + 'static,
{
    let [one, other] = H::STREAMS;
    for Open { stream, message, arrives, .. } in open {
        assert_eq!(hosted.send(*stream, *message), Some(*arrives));
        let another = if *stream == one { other } else { one };
        assert_ne!(hosted.send(another, *message), Some(*arrives));
    }
}

/// A unit in the hands of a former kernel, which has left.
struct Left<H: HandsOver>
where
    H::Unit: IommuDomains + 'static,
{
    hosted: H,
    unit: H::Unit,
    open: Vec<Open>,
    state: UnitHandover,
}

impl<H: RaisesInterrupts> Left<H>
where
    H::Unit: IommuDomains + 'static,
{
    fn new() -> Self {
        let hosted = H::new();
        let (unit, _domain) = hosted.attached();
        let mut open = open(&unit, H::STREAMS);
        // One that was moved arrives where it was moved to.
        remaps(&unit).retarget(&mut open[0].interrupt, target(0x52, 2)).unwrap();
        open[0].arrives.0 = 2;
        // One that was given back is not recorded.
        let more = remaps(&unit).allocate(source(H::STREAMS[0]), target(0x41, 1)).unwrap();
        remaps(&unit).free(more).unwrap();
        all_arrive(&hosted, &open);
        let state = recorded::<H>(&unit.handover().unwrap());
        unit.leave().unwrap();
        Self { hosted, unit, open, state }
    }
}

/// Interrupts arrive before, between any two writes of the next kernel, and afterwards; their devices' drivers take
/// them over, and what they do not take is closed with the stream.
pub(crate) fn interrupts_arrive_at_each_write<H>()
where
    H: RaisesInterrupts + Send + 'static,
    H::Unit: IommuDomains + 'static,
{
    let Left { hosted, unit, mut open, state } = Left::<H>::new();
    let writes = Arc::new(Mutex::new(0));
    let (told, seen) = (writes.clone(), H::from(hosted.machine().clone()));
    let each: Vec<_> = open.iter().map(|one| (one.stream, one.message, one.arrives)).collect();
    hosted.machine().judge(Some(Box::new(move || {
        let arrived = each.iter().all(|(from, what, at)| seen.send(*from, *what) == Some(*at));
        assert!(arrived);
        *told.lock().unwrap() += 1;
    })));
    let next = Arc::new(hosted.adopt(&state, &mut claims()).unwrap());
    assert!(*writes.lock().unwrap() >= 3);
    // The former kernel changes none of them.
    let moved = remaps(&unit).retarget(&mut open[1].interrupt, target(0x63, 1));
    assert!(moved.is_err());
    drop(unit);
    hosted.machine().judge(None);
    all_arrive(&hosted, &open);

    let [one, other] = H::STREAMS;
    // What is held is not given to another.
    let fresh = remaps(&*next).allocate(source(one), target(0x44, 1)).unwrap();
    all_arrive(&hosted, &open);
    let mut taken = remaps(&*next).adopted_interrupts(source(one)).unwrap();
    assert_eq!(remaps(&*next).adopted_interrupts(source(one)).unwrap(), []);
    assert_eq!(taken.len(), state.interrupts.len() - 2);
    assert!(taken.iter().all(|interrupt| interrupt.index() != fresh.index()));
    let its = |interrupt: &Interrupt| interrupt.index() == open[0].interrupt.index();
    let mut first = taken.swap_remove(taken.iter().position(its).unwrap());
    assert_eq!(first.target(), target(0x52, 2));
    assert_eq!(remaps(&*next).message(&first), Ok(open[0].message));
    remaps(&*next).retarget(&mut first, target(0x52, 1)).unwrap();
    open[0].arrives.0 = 1;
    all_arrive(&hosted, &open);
    remaps(&*next).free(first).unwrap();
    assert_eq!(hosted.send(one, open.remove(0).message), None);
    all_arrive(&hosted, &open);
    // The other stream's are not asked for.
    next.block(other).unwrap();
    assert_eq!(hosted.send(other, open[1].message), None);
    assert_eq!(remaps(&*next).adopted_interrupts(source(other)).unwrap(), []);
    remaps(&*next).revoke(one).unwrap();
    assert_eq!(hosted.send(one, open[0].message), None);
    hosted.machine().expect_obedience();
}

/// A unit whose interrupts are not as its record says is refused before it is told of anything, and raises none once it
/// was started anew.
pub(crate) fn interrupts_that_are_not_as_recorded_are_refused<H>()
where
    H: RaisesInterrupts,
    H::Unit: IommuDomains + 'static,
{
    type Lie = fn(&mut UnitHandover);
    let lies: [(&str, Lie); 9] = [
        ("remapping", |state| state.features[3] ^= 1),
        ("table", |state| state.interrupt_root ^= 0x1000),
        ("none", |state| state.interrupts.clear()),
        ("one less", |state| state.interrupts.truncate(1)),
        ("index", |state| state.interrupts[0].index += 100),
        ("source", |state| state.interrupts[0].source = source(StreamId::new(9))),
        ("number", |state| state.interrupts[0].target.vector = Vector::new(0x99).unwrap()),
        ("CPU", |state| state.interrupts[0].target.destination = Destination::Physical(1)),
        ("twice", |state| {
            let InterruptHandover { index, .. } = state.interrupts[0];
            state.interrupts[1].index = index;
        }),
    ];
    for (what, lie) in lies {
        let Left { hosted, open, mut state, .. } = Left::<H>::new();
        let whole = state.clone();
        lie(&mut state);
        let mut same = state.clone();
        H::without_unconfirmed(&mut same, &whole);
        if same == whole {
            continue;
        }
        let live = hosted.machine().live();
        hosted.machine().take();
        let error = hosted.adopt(&state, &mut claims()).map(drop).expect_err(what);
        assert!(what != "remapping" || error == AdoptError::Interrupts, "{error}");
        assert!(hosted.machine().take().is_empty(), "{what}");
        assert_eq!(hosted.machine().live(), live, "{what}");
        all_arrive(&hosted, &open);
        let _next = hosted.bring_up().unwrap();
        for Open { stream, message, .. } in open {
            assert_eq!(hosted.send(stream, message), None, "{what}");
        }
    }
}

/// A machine `Remapping` whose devices raise interrupts of both streams, the second of which has no domain.
macro_rules! remapping_machine {
    ($machine:ty, $tables:ty, $new:expr, $config:expr, |$unit:ident| $space:expr) => {
        #[derive(Clone)]
        struct Remapping($machine);

        impl From<$machine> for Remapping {
            fn from(machine: $machine) -> Self {
                Self(machine)
            }
        }

        impl crate::chassis::tests::hostile::Hosted for Remapping {
            type Kind = <$machine as Driven>::Kind;
            type Unit = <$machine as Driven>::Unit;
            type Tables = $tables;

            const STREAMS: [StreamId; 2] = <$machine as Driven>::STREAMS;

            fn new() -> Self {
                Self($new)
            }

            fn bring_up(&self) -> Result<Self::Unit, portolan::iommu::IommuError> {
                Driven::enable(&self.0, $config)
            }

            fn release(unit: Self::Unit) -> Result<(), portolan::iommu::IommuError> {
                <$machine as Driven>::release(unit)
            }

            fn tables($unit: &Self::Unit) -> Result<Self::Tables, portolan::iommu::IommuError> {
                $space
            }

            fn machine(&self) -> &$machine {
                &self.0
            }

            fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
                Driven::read(&self.0, stream, iova)
            }

            fn attached(&self) -> (Self::Unit, alloc::sync::Arc<Self::Tables>) {
                let unit = self.bring_up().unwrap();
                let domain = alloc::sync::Arc::new(Self::tables(&unit).unwrap());
                portolan::iommu::Attach::attach(&unit, Self::STREAMS[0], &domain).unwrap();
                crate::chassis::tests::handed_interrupts::open(&unit, Self::STREAMS);
                (unit, domain)
            }
        }
    };
}
pub(crate) use remapping_machine;

/// Tests of a unit that changes hands while it remaps interrupts.
macro_rules! interrupts_change_hands {
    ($machine:ty) => {
        mod interrupts_change_hands {
            use crate::chassis::tests::handed_interrupts as suite;
            use crate::chassis::tests::handover::changes_hands;

            #[test]
            fn interrupts_arrive_at_each_write() {
                suite::interrupts_arrive_at_each_write::<$machine>();
            }

            #[test]
            fn interrupts_that_are_not_as_recorded_are_refused() {
                suite::interrupts_that_are_not_as_recorded_are_refused::<$machine>();
            }

            changes_hands! { $machine }
        }
    };
}
pub(crate) use interrupts_change_hands;
