//! Tests that every driver of a unit with a ring of commands passes, run on its unit of
//! `portolan-chips`.

use crate::promise::tests::{all_memory, promised};
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Awaited, Domain, FaultEvent, Iommu as _, IommuError};
use portolan::table::Access;
use portolan_chips::inject::{DmaFault, Drain, Piece, RegisterFaults};
use portolan_chips::machine::{Design, LOOK_NS, Machine};
use portolan_chips::memory::{ModelMemory, PairStores, Visibility};
use portolan_sim::decode::AccessKind;
use portolan_sim::iommu::Temper;
use portolan_sim::profile::{CacheGeometry, CacheSizes};

use crate::chassis::Words;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const BASE: Iova = Iova::new(0x4000_0000);

/// A machine whose unit a driver drives.
pub(crate) trait Driven: Sized {
    type Kind: Design;
    type Config;
    type Unit: Attach<Self::Tables>;
    type Tables: Domain;

    /// The stream that is attached, and another.
    const STREAMS: [StreamId; 2];
    /// The operation of commands that only wait.
    const WAIT: u64;
    /// Operations that are refused, and the codes with which the unit does so.
    const REFUSALS: &'static [(u64, u32)];

    /// With a unit as most are.
    fn ordinary() -> Self;
    fn config() -> Self::Config;
    fn enable(&self, config: Self::Config) -> Result<Self::Unit, IommuError>;
    fn release(unit: Self::Unit) -> Result<(), IommuError>;
    fn tables(unit: &Self::Unit) -> Result<Self::Tables, IommuError>;
    fn machine(&self) -> &Machine<Self::Kind>;
    /// The operation of a command, by its first word.
    fn operation(word: u64) -> u64;
    /// Has a device access four bytes: where they are.
    fn access(
        &self,
        stream: StreamId,
        iova: Iova,
        kind: AccessKind,
    ) -> Result<Vec<Piece>, DmaFault>;
    /// Tells if the tables in memory let nothing through for a stream.
    fn is_blocked(&self, stream: StreamId) -> bool;

    /// Has `stream` read four bytes at `iova`: where they are, if anywhere.
    fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
        let pieces = self.access(stream, Iova::new(iova), AccessKind::Read);
        pieces.ok()?.first().map(|piece| piece.pa.get())
    }

    /// The same with a write.
    fn write(&self, stream: StreamId, iova: u64) -> Option<u64> {
        let pieces = self.access(stream, Iova::new(iova), AccessKind::Write);
        pieces.ok()?.first().map(|piece| piece.pa.get())
    }

    /// Commands carried out since the last time, without those that only wait.
    fn commands(&self) -> Vec<Words> {
        let all = self.machine().take_commands();
        all.map(|words| [words[0], words[1]])
            .filter(|words| Self::operation(words[0]) != Self::WAIT)
            .collect()
    }

    /// Has the unit refuse commands of an operation, so many times, with this code.
    fn refuse_kind(&self, operation: u64, mut times: u32, code: u32) {
        self.machine().wrong(RegisterFaults::NONE);
        self.machine().refuse(move |words| {
            let refused = Self::operation(words[0]) == operation && times > 0;
            times -= u32::from(refused);
            refused.then_some(code)
        });
    }

    /// A unit with one stream attached to one domain, and no commands.
    fn attached(&self) -> (Self::Unit, Arc<Self::Tables>) {
        let unit = self.enable(Self::config()).unwrap();
        let domain = Arc::new(Self::tables(&unit).unwrap());
        unit.attach(Self::STREAMS[0], &domain).unwrap();
        self.commands();
        (unit, domain)
    }
}

/// A machine with 64 pages of table memory from `base` on.
pub(crate) fn machine_at<D: Design>(base: u64, setup: D::Setup) -> Machine<D> {
    machine_with_pairs(base, setup, PairStores::Absent)
}

/// The same, whose CPU stores pairs of words so.
pub(crate) fn machine_with_pairs<D: Design>(
    base: u64,
    setup: D::Setup,
    pairs: PairStores,
) -> Machine<D> {
    let memory = ModelMemory::of_words(PhysAddr::new(base), 64, Visibility::AtOnce);
    Machine::new(setup, memory.with_pairs(pairs))
}

/// Caches that keep all, of a unit whose devices do nothing on their own: those of an adversarial one go on writing.
pub(crate) fn quiet() -> Temper {
    let all = CacheGeometry { entries: 64, ways: 64 };
    let source = alloc::string::String::new();
    Temper::Realistic(CacheSizes { iotlb: all, walk: all, configuration: all, source })
}

/// Maps pages; returns the debt.
pub(crate) fn map(domain: &(impl Domain + ?Sized), pages: u64) -> Gather {
    let mut owed = Gather::new();
    let (pa, access) = (PhysAddr::new(0x1000), Access::READ | Access::WRITE);
    domain.map(BASE, promised(pa, pages * PAGE), access, &mut owed).unwrap();
    owed
}

/// Unmaps pages; returns the debt.
pub(crate) fn unmap(domain: &impl Domain, pages: u64) -> Gather {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(BASE, pages * PAGE).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    owed
}

/// One command is fetched at every so many looks at the clock.
pub(crate) fn slow(looks: u64) -> RegisterFaults {
    RegisterFaults { drain: Drain::OneEach(looks * LOOK_NS), ..RegisterFaults::NONE }
}

/// The address of a fault.
pub(crate) fn address(event: Option<FaultEvent>) -> Option<u64> {
    match event {
        Some(FaultEvent::Fault(record)) => record.iova.map(Iova::get),
        _ => None,
    }
}

/// Returns the error of a sync that fails.
pub(crate) fn failure(domain: &impl Domain, owed: &mut Gather) -> IommuError {
    IommuError::from(domain.sync(owed).unwrap_err())
}

/// The suite, of which a driver's tests name the parts that it passes.
macro_rules! suite {
    ($driven:ty: $($test:ident)*) => {
        mod every_driver {
            $(
                #[test]
                fn $test() {
                    $crate::chassis::tests::suite::$test::<$driven>();
                }
            )*
        }
    };
}

pub(crate) use suite;

pub(crate) fn devices_reach_what_is_mapped_for_them_and_nothing_else<D: Driven>() {
    reaches_what_is_mapped(&D::ordinary());
}

/// The same on a machine that is not the ordinary one.
pub(crate) fn reaches_what_is_mapped<D: Driven>(driven: &D) {
    let (unit, domain) = driven.attached();
    let ([stream, other], here) = (D::STREAMS, BASE.get() + 0x123);
    assert_eq!(driven.read(stream, here), None);
    domain.sync(&mut map(&*domain, 2)).unwrap();
    assert_eq!(driven.read(stream, here), Some(0x1123));
    assert_eq!(driven.write(stream, here + PAGE), Some(0x2123));
    assert_eq!(driven.read(other, here), None);
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    assert_eq!(driven.read(stream, here), None);
    assert_eq!(driven.write(stream, here + PAGE), Some(0x2123));
    unit.pass_through(stream, all_memory()).unwrap();
    assert_eq!(driven.read(stream, here), Some(here));
    unit.attach(other, &domain).unwrap();
    unit.block(stream).unwrap();
    assert_eq!(driven.read(stream, here + PAGE), None);
    assert_eq!(driven.read(other, here + PAGE), Some(0x2123));
    driven.machine().expect_obedience();
}

pub(crate) fn a_domain_of_another_unit_does_not_fit<D: Driven>() {
    let (one, other) = (D::ordinary(), D::ordinary());
    let one = one.enable(D::config()).unwrap();
    let other = other.enable(D::config()).unwrap();
    let domain = Arc::new(D::tables(&other).unwrap());
    let attached = one.attach(D::STREAMS[0], &domain);
    assert_eq!(attached, Err(AttachError::Mismatch));
}

pub(crate) fn a_unit_that_refuses_everything_ends_in_time<D: Driven>() {
    for (operation, code) in D::REFUSALS {
        let driven = D::ordinary();
        let (_unit, domain) = driven.attached();
        domain.sync(&mut map(&*domain, 1)).unwrap();
        let mut owed = unmap(&*domain, 1);
        driven.refuse_kind(*operation, u32::MAX, *code);
        let error = failure(&*domain, &mut owed);
        let ended = matches!(
            error,
            IommuError::Refused { .. }
                | IommuError::RefusedByRegister { .. }
                | IommuError::DeviceSilent { .. }
                | IommuError::Interrupted { .. }
                | IommuError::TimedOut { .. }
        );
        assert!(ended, "{error}");
        driven.machine().wrong(RegisterFaults::NONE);
        domain.sync(&mut owed).unwrap();
    }
}

pub(crate) fn a_unit_that_was_turned_off_has_stopped<D: Driven>() {
    let driven = D::ordinary();
    let (unit, domain) = driven.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    D::release(unit).unwrap();
    let mut owed = unmap(&*domain, 1);
    assert_eq!(failure(&*domain, &mut owed), IommuError::Stopped);
}

pub(crate) fn a_release_that_fails_keeps_what_may_still_be_reached<D: Driven>() {
    let driven = D::ordinary();
    let (unit, domain) = driven.attached();
    let live = driven.machine().live();
    driven.machine().wrong(RegisterFaults::STUCK);
    let failed = D::release(unit).unwrap_err();
    assert!(matches!(failed, IommuError::TimedOut { .. }));
    assert!(driven.is_blocked(D::STREAMS[0]));
    // The unit is gone, and no further check is possible.
    assert_eq!(Arc::strong_count(&domain), 2);
    drop(domain);
    assert_eq!(driven.machine().live(), live);
}

pub(crate) fn a_queue_that_never_drains_is_an_error_and_the_stream_stays_blocked<D: Driven>() {
    let driven = D::ordinary();
    let stream = D::STREAMS[0];
    let (unit, domain) = driven.attached();
    let awaited = |error| match error {
        IommuError::TimedOut { awaited, .. } => awaited,
        other => panic!("{other}"),
    };
    driven.machine().wrong(RegisterFaults::STUCK);
    let AttachError::Iommu(error) = unit.block(stream).unwrap_err() else {
        panic!("not the unit's fault");
    };
    assert_eq!(awaited(error), Awaited::Completion);
    // The entry in memory blocks, and the domain is kept.
    assert!(driven.is_blocked(stream));
    assert_eq!(Arc::strong_count(&domain), 2);
    // Once it drains again, what was left over is settled first.
    driven.machine().wrong(RegisterFaults::NONE);
    unit.attach(stream, &domain).unwrap();
    assert_eq!(Arc::strong_count(&domain), 2);
    unit.block(stream).unwrap();
    assert_eq!(Arc::strong_count(&domain), 1);
    // A full queue is an error too.
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    driven.machine().wrong(RegisterFaults::STUCK);
    let waits: Vec<Awaited> = (0..300).map(|_| awaited(failure(&*domain, &mut owed))).collect();
    assert!(waits.contains(&Awaited::QueueRoom));
}

pub(crate) fn a_unit_that_goes_away_is_an_error_at_each_call<D: Driven>() {
    let driven = D::ordinary();
    let (unit, domain) = driven.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    driven.machine().wrong(RegisterFaults::GONE);
    assert_eq!(unit.next_fault(), Err(IommuError::Gone));
    let again = driven.enable(D::config());
    assert_eq!(again.err(), Some(IommuError::Gone));
    assert_eq!(failure(&*domain, &mut owed), IommuError::Gone);
    let gone = AttachError::Iommu(IommuError::Gone);
    assert_eq!(unit.block(D::STREAMS[0]), Err(gone));
    driven.machine().wrong(RegisterFaults::NONE);
    domain.sync(&mut owed).unwrap();
}

pub(crate) fn a_unit_that_is_slow_is_waited_for<D: Driven>() {
    let driven = D::ordinary();
    let stream = D::STREAMS[0];
    let (unit, domain) = driven.attached();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    // One command in six of the ten milliseconds that a unit may stand still.
    driven.machine().wrong(slow(600));
    domain.sync(&mut owed).unwrap();
    unit.block(stream).unwrap();
    assert_eq!(Arc::strong_count(&domain), 1);
    // Also where the queue is full of what others submitted.
    driven.machine().wrong(RegisterFaults::STUCK);
    for _ in 0..300 {
        let _ = unit.block(stream).and(unit.attach(stream, &domain));
    }
    driven.machine().wrong(slow(600));
    unit.attach(stream, &domain).unwrap();
}

/// Two streams of one domain, whose moves both failed, are each invalidated for themselves.
pub(crate) fn what_a_failure_left_of_one_stream_is_not_settled_with_another<D: Driven>() {
    let driven = D::ordinary();
    let [stream, other] = D::STREAMS;
    let (unit, domain) = driven.attached();
    driven.commands();
    unit.block(stream).unwrap();
    let settled = driven.commands();
    unit.attach(stream, &domain).unwrap();
    unit.attach(other, &domain).unwrap();
    driven.machine().wrong(RegisterFaults::STUCK);
    assert!(unit.block(stream).is_err());
    assert!(unit.block(other).is_err());
    driven.machine().wrong(RegisterFaults::NONE);
    unit.block(other).unwrap();
    assert_eq!(Arc::strong_count(&domain), 2);
    driven.commands();
    unit.block(stream).unwrap();
    // All that a block sends, and for this stream.
    let commands = driven.commands();
    let missing = settled.iter().find(|words| !commands.contains(words));
    assert_eq!(missing, None, "{commands:x?}");
    assert_eq!(Arc::strong_count(&domain), 1);
}

fn map_a_page<D: Driven>(unit: &D::Unit) -> Result<(), IommuError> {
    let domain = Arc::new(D::tables(unit)?);
    match unit.attach(D::STREAMS[0], &domain) {
        Err(AttachError::Iommu(error)) => return Err(error),
        attached => attached.unwrap(),
    }
    let mut owed = Gather::new();
    let pa = PhysAddr::new(0x1000);
    let mapped = domain.map(BASE, promised(pa, PAGE), Access::READ, &mut owed);
    domain.sync(&mut owed).unwrap();
    mapped.map(drop).map_err(|_| IommuError::Unsupported)
}

/// Makes each allocation fail in turn, until all is done without a failure; returns the number that
/// can.
pub(crate) fn allocations_that_may_fail<D: Driven>(config: impl Fn() -> D::Config) -> u64 {
    for n in 1..100 {
        let driven = D::ordinary();
        driven.machine().fail_in(n);
        let outcome = driven.enable(config()).and_then(|unit| {
            let mapped = map_a_page::<D>(&unit);
            D::release(unit).unwrap();
            mapped
        });
        if outcome.is_ok() {
            return n - 1;
        }
        assert_eq!(driven.machine().live(), 0, "allocation {n}");
    }
    panic!("there is no end of allocations");
}

/// Records of a log that holds `room` of them are read in their order, and more than that are told as lost.
pub(crate) fn faults_are_read_in_order<D: Driven>(
    driven: &D,
    room: u64,
    is_full: impl Fn() -> bool,
) {
    let (unit, _domain) = driven.attached();
    let fault = |n: u64| assert_eq!(driven.write(D::STREAMS[0], n << 12), None);
    for round in 0..3 {
        for n in 0..room - room / 4 {
            fault(n);
        }
        for n in 0..room - room / 4 {
            let event = unit.next_fault().unwrap();
            assert_eq!(address(event), Some(n << 12), "round {round}");
        }
        assert_eq!(unit.next_fault(), Ok(None));
    }
    assert!(!is_full());
    for n in 0..room + 50 {
        fault(n);
    }
    assert!(is_full());
    for n in 0..room {
        assert_eq!(address(unit.next_fault().unwrap()), Some(n << 12));
    }
    assert_eq!(unit.next_fault(), Ok(Some(FaultEvent::Lost)));
    assert_eq!(unit.next_fault(), Ok(None));
    fault(7);
    assert_eq!(address(unit.next_fault().unwrap()), Some(0x7000));
    driven.machine().expect_obedience();
}
