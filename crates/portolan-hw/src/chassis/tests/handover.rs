//! Tests of a driver that hands its unit to another instance of itself, as one kernel to the next, while
//! devices are at work.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::Mutex;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::inval::Gather;
use portolan::iommu::handover::{AdoptedDomain, HandoverTarget, UnitHandover};
use portolan::iommu::{Attach as _, DeviceTlb, Domain as _, Iommu as _, IommuDomains, IommuError};
use portolan::platform::{ClaimError, TableClaims};
use portolan::table::format::DirtyTracking;
use portolan::table::{Access, AdoptTableError};

use portolan_chips::fixture::seed;
use portolan_sim::decode::AccessKind;

use super::hostile::Hosted;
use super::suite::{BASE, PAGE, map};
use crate::handover::tests::damaged;
use crate::handover::{AdoptError, Record, RecordedKind, RecordedUnit, write};
use crate::promise::tests::{all_memory, preserved, promised};

/// A machine whose unit changes hands.
pub(crate) trait HandsOver: Hosted
where
    Self::Unit: IommuDomains + 'static,
{
    const KIND: RecordedKind;

    /// The unit in the hands of the next kernel.
    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self::Unit, AdoptError>;

    /// Has `state` say the same as `whole` where neither registers nor tables confirm a record: former queues are only
    /// told of.
    fn without_unconfirmed(state: &mut UnitHandover, whole: &UnitHandover) {
        state.queues.clone_from(&whole.queues);
    }
}

/// All memory of the models' tables, and all memory that the tests map.
const TABLES: [PhysRange; 1] = [PhysRange::page(PhysAddr::new(0), PageSize::of_lg2(40))];
const BUFFERS: [PhysRange; 1] = [PhysRange::page(PhysAddr::new(0), PageSize::of_lg2(20))];

/// Damaged records: ten thousand for all drivers.
const DAMAGED: u32 = 2500;
/// Pages that are mapped.
const PAGES: u64 = 3;
pub(crate) const REGISTERS: PhysAddr = PhysAddr::new(0xfed9_0000);

pub(crate) fn claims() -> TableClaims<'static> {
    TableClaims::new(preserved(&TABLES, &BUFFERS))
}

pub(crate) fn record_of<H: HandsOver>(state: &UnitHandover) -> Vec<u8>
where
    H::Unit: IommuDomains + 'static,
{
    let unit = RecordedUnit { base: REGISTERS, kind: H::KIND, state: state.clone() };
    let mut record = alloc::vec![0; 1 << 16];
    let length = write(&[unit], &mut record).unwrap();
    record.truncate(length);
    record
}

/// The state by way of a record.
pub(super) fn recorded<H: HandsOver>(state: &UnitHandover) -> UnitHandover
where
    H::Unit: IommuDomains + 'static,
{
    let record = record_of::<H>(state);
    let read = Record::read(&record).unwrap().unit(REGISTERS, H::KIND).unwrap();
    assert_eq!(read, *state);
    read
}

/// A unit in the hands of a former kernel, which has left.
struct Left<H: HandsOver>
where
    H::Unit: IommuDomains + 'static,
{
    hosted: H,
    unit: H::Unit,
    domain: Arc<H::Tables>,
    state: UnitHandover,
}

impl<H: HandsOver> Left<H>
where
    H::Unit: IommuDomains + 'static,
{
    fn new() -> Self {
        let hosted = H::new();
        let (unit, domain) = hosted.attached();
        domain.sync(&mut map(&*domain, PAGES)).unwrap();
        // Something is cached.
        assert_eq!(reached(&hosted, H::STREAMS[0]), expected());
        let state = recorded::<H>(&unit.handover().unwrap());
        unit.leave().unwrap();
        Self { hosted, unit, domain, state }
    }

    fn adopt(&self) -> Result<H::Unit, AdoptError> {
        self.hosted.adopt(&self.state, &mut claims())
    }
}

/// Addresses at which the accesses of a stream to all pages and to one behind them arrive.
fn reached<H: HandsOver>(hosted: &H, stream: StreamId) -> Vec<Option<u64>>
where
    H::Unit: IommuDomains + 'static,
{
    let pages = (0..=PAGES).map(|page| BASE.get() + page * PAGE);
    pages.map(|iova| hosted.read(stream, iova)).collect()
}

fn expected() -> Vec<Option<u64>> {
    let page = |page: u64| (page < PAGES).then_some(0x1000 + page * PAGE);
    (0..=PAGES).map(page).collect()
}

/// Judges each access of both streams behind each write of a register; tells how often.
fn judged<H: HandsOver + Send + 'static>(hosted: &H) -> Arc<Mutex<u64>>
where
    H::Unit: IommuDomains + 'static,
{
    let count = Arc::new(Mutex::new(0));
    let (told, seen) = (count.clone(), H::from(hosted.machine().clone()));
    hosted.machine().judge(Some(Box::new(move || {
        assert_eq!(reached(&seen, H::STREAMS[0]), expected());
        assert!(reached(&seen, H::STREAMS[1]).iter().all(Option::is_none));
        *told.lock().unwrap() += 1;
    })));
    count
}

/// Accesses under way are the same before, between any two writes of the next kernel, and afterwards, and the
/// tables are the next kernel's from then on.
pub(crate) fn running_accesses_are_the_same_at_each_write<H>()
where
    H: HandsOver + Send + 'static,
    H::Unit: IommuDomains + 'static,
{
    let left = Left::<H>::new();
    let count = judged(&left.hosted);
    let next = Arc::new(left.adopt().unwrap());
    assert!(*count.lock().unwrap() >= 3);
    let Left { hosted, unit, domain, .. } = left;
    // The former kernel's last steps change nothing.
    let live = hosted.machine().live();
    assert!(unit.block(H::STREAMS[0]).is_err());
    drop((unit, domain));
    assert_eq!(hosted.machine().live(), live);
    assert_eq!(reached(&hosted, H::STREAMS[0]), expected());
    hosted.machine().judge(None);
    // A page more, and one less.
    assert!(next.clone().adopted(H::STREAMS[1]).is_none());
    let AdoptedDomain { bound, in_use } = next.clone().adopted(H::STREAMS[0]).unwrap();
    assert_eq!(in_use, [IovaRange::from_len(BASE, PAGES * PAGE).unwrap()]);
    assert!(next.clone().adopted(H::STREAMS[0]).is_none());
    let space = bound.domain();
    let mut owed = Gather::new();
    let (more, first) = (Iova::new(BASE.get() + PAGES * PAGE), BASE);
    let memory = promised(PhysAddr::new(0x9000), PAGE);
    space.map(more, memory, Access::READ | Access::WRITE, &mut owed).unwrap();
    space.unmap(IovaRange::from_len(first, PAGE).unwrap(), &mut owed).unwrap();
    space.sync(&mut owed).unwrap();
    let stream = H::STREAMS[0];
    assert_eq!([BASE, more].map(|at| hosted.read(stream, at.get())), [None, Some(0x9000)]);
    // Attaching it again writes nothing; the other stream joins.
    bound.attach(stream).unwrap();
    bound.attach(H::STREAMS[1]).unwrap();
    assert_eq!(hosted.read(H::STREAMS[1], more.get()), Some(0x9000));
    for stream in H::STREAMS {
        next.block(stream).unwrap();
        assert!(reached(&hosted, stream).iter().all(Option::is_none));
    }
    // A domain of the same kind gets another identifier, and all that was adopted is freed.
    drop(bound);
    let (before, fresh) = (hosted.machine().live(), next.clone().new_domain().unwrap());
    drop(fresh);
    assert_eq!(hosted.machine().live(), before);
    hosted.machine().expect_obedience();
}

/// A unit that is not as its record says is refused before it is told of anything, and its streams are blocked then.
pub(crate) fn a_unit_that_is_not_as_recorded_is_refused<H>()
where
    H: HandsOver,
    H::Unit: IommuDomains + 'static,
{
    type Lie = fn(&mut UnitHandover);
    let lies: [(&str, Lie); 14] = [
        ("features", |state| state.features[0] ^= 1 << 40),
        ("root", |state| state.root ^= 0x1000),
        ("shape", |state| state.shape ^= 1),
        ("no stream", |state| state.streams.clear()),
        ("no domain", |state| state.domains.clear()),
        ("another stream", |state| state.streams[0].requester.stream = StreamId::new(9)),
        ("passes", |state| state.streams[0].target = HandoverTarget::Everything),
        ("identifier", |state| {
            let tag = &mut state.domains[0].tag;
            *tag = InvalTag::new(tag.get() + 1);
            let target = HandoverTarget::Domain(*tag);
            state.streams.iter_mut().for_each(|stream| stream.target = target);
        }),
        ("levels", |state| state.domains[0].tables.levels ^= 1),
        ("width", |state| state.domains[0].tables.input_lg2 -= 1),
        ("marks", |state| state.domains[0].tables.dirty = DirtyTracking::Hardware),
        ("pages", |state| state.domains[0].tables.pages += 1),
        ("mapped", |state| state.domains[0].tables.mapped.clear()),
        ("table", |state| {
            let root = &mut state.domains[0].tables.root;
            *root = PhysAddr::new(root.get() ^ 0x1_0000);
        }),
    ];
    for (what, lie) in lies {
        let mut left = Left::<H>::new();
        lie(&mut left.state);
        let (live, before) = (left.hosted.machine().live(), left.hosted.machine().take());
        drop(before);
        let error = left.adopt().map(drop).expect_err(what);
        assert!(
            !matches!(error, AdoptError::Iommu(IommuError::TimedOut { .. })),
            "{what}: {error}"
        );
        assert!(left.hosted.machine().take().is_empty(), "{what}");
        assert_eq!(left.hosted.machine().live(), live, "{what}");
        assert_eq!(reached(&left.hosted, H::STREAMS[0]), expected(), "{what}");
        // The unit is taken over all the same.
        let next = left.hosted.bring_up().unwrap();
        for stream in H::STREAMS {
            assert!(reached(&left.hosted, stream).iter().all(Option::is_none), "{what}");
        }
        drop(next);
    }
}

/// Damaged records with sound checksums are refused, or mean the same: no stream is let through, and none of those
/// at work is stopped, but by the unit's own start.
pub(crate) fn damaged_records_let_nothing_through<H>()
where
    H: HandsOver,
    H::Unit: IommuDomains + 'static,
{
    let seed = seed();
    std::println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let left = Left::<H>::new();
    let (whole, live) = (record_of::<H>(&left.state), left.hosted.machine().live());
    left.hosted.machine().take();
    let mut read = 0;
    for _ in 0..DAMAGED {
        let record = damaged(&mut rng, &whole);
        let Ok(state) = Record::read(&record).unwrap().unit(REGISTERS, H::KIND) else { continue };
        let mut same = state.clone();
        H::without_unconfirmed(&mut same, &left.state);
        if same == left.state {
            continue;
        }
        read += 1;
        let error = left.hosted.adopt(&state, &mut claims()).map(drop);
        assert!(error.is_err(), "{state:x?}");
    }
    assert!(read > DAMAGED / 20, "{read}");
    assert!(left.hosted.machine().take().is_empty());
    assert_eq!(left.hosted.machine().live(), live);
    assert_eq!(reached(&left.hosted, H::STREAMS[0]), expected());
    assert!(left.adopt().is_ok());
}

/// Tables outside of what was preserved, and memory that is not lent, are refused.
pub(crate) fn memory_that_was_not_preserved_is_refused<H>()
where
    H: HandsOver,
    H::Unit: IommuDomains + 'static,
{
    let left = Left::<H>::new();
    let one_page = [PhysRange::page(PhysAddr::new(0x2000), PageSize::SIZE_4K)];
    let mut nowhere = TableClaims::new(preserved(&one_page, &BUFFERS));
    let error = left.hosted.adopt(&left.state, &mut nowhere).map(drop);
    let outside = |error: &AdoptError| {
        matches!(
            error,
            AdoptError::Claim(ClaimError::Outside { .. })
                | AdoptError::Table(AdoptTableError::Claim(ClaimError::Outside { .. }))
        )
    };
    assert!(error.as_ref().is_err_and(outside), "{error:?}");
    let mut unlent = TableClaims::new(preserved(&TABLES, &one_page));
    let error = left.hosted.adopt(&left.state, &mut unlent).map(drop);
    assert!(matches!(error, Err(AdoptError::Table(AdoptTableError::Leaf { .. }))), "{error:?}");
    // Each table is one unit's.
    let mut claims = claims();
    let next = left.hosted.adopt(&left.state, &mut claims).unwrap();
    assert!(claims.claimed().count() >= 3);
    let again = left.hosted.adopt(&left.state, &mut claims).map(drop);
    let twice = |error: &AdoptError| {
        matches!(
            error,
            AdoptError::Claim(ClaimError::Twice { .. })
                | AdoptError::Table(AdoptTableError::Claim(ClaimError::Twice { .. }))
        )
    };
    assert!(again.as_ref().is_err_and(twice), "{again:?}");
    assert_eq!(reached(&left.hosted, H::STREAMS[0]), expected());
    drop(next);
}

/// Translations that a device keeps go on at each write of the next kernel, and are invalidated by it.
pub(crate) fn kept_translations_are_the_next_kernels<H>(hosted: &H)
where
    H: HandsOver + Send + 'static,
    H::Unit: IommuDomains + 'static,
{
    let (unit, stream) = (hosted.bring_up().unwrap(), H::STREAMS[0]);
    let tlb = DeviceTlb { depth: 1, physical: stream.get() as u16, twice: false };
    unit.use_device_tlb(stream, tlb, all_memory()).unwrap();
    let domain = Arc::new(H::tables(&unit).unwrap());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    unit.attach(stream, &domain).unwrap();
    let kept = move |hosted: &H| {
        let unit = hosted.machine().unit();
        unit.ats_access(stream, None, BASE, AccessKind::Write).map(PhysAddr::get)
    };
    assert_eq!(kept(hosted), Some(0x1000));
    let state = recorded::<H>(&unit.handover().unwrap());
    assert_eq!(state.streams[0].tlb, Some(tlb));
    unit.leave().unwrap();
    hosted.machine().take();
    for tlb in [None, Some(DeviceTlb { twice: true, ..tlb })] {
        let mut lie = state.clone();
        lie.streams[0].tlb = tlb;
        assert!(hosted.adopt(&lie, &mut claims()).is_err(), "{tlb:?}");
    }
    assert!(hosted.machine().take().is_empty());
    let seen = H::from(hosted.machine().clone());
    hosted.machine().judge(Some(Box::new(move || assert_eq!(kept(&seen), Some(0x1000)))));
    let next = Arc::new(hosted.adopt(&state, &mut claims()).unwrap());
    hosted.machine().judge(None);
    drop((unit, domain));
    assert_eq!(kept(hosted), Some(0x1000));
    let bound = next.clone().adopted(stream).unwrap().bound;
    let (mut owed, page) = (Gather::new(), IovaRange::from_len(BASE, PAGE).unwrap());
    bound.domain().unmap(page, &mut owed).unwrap();
    bound.domain().sync(&mut owed).unwrap();
    assert_eq!(kept(hosted), None);
    next.block(stream).unwrap();
    hosted.machine().expect_obedience();
}

/// Tests of a unit that changes hands.
macro_rules! changes_hands {
    ($machine:ty) => {
        mod changes_hands {
            use crate::chassis::tests::handover as suite;

            #[test]
            fn running_accesses_are_the_same_at_each_write() {
                suite::running_accesses_are_the_same_at_each_write::<$machine>();
            }

            #[test]
            fn a_unit_that_is_not_as_recorded_is_refused() {
                suite::a_unit_that_is_not_as_recorded_is_refused::<$machine>();
            }

            #[test]
            fn damaged_records_let_nothing_through() {
                suite::damaged_records_let_nothing_through::<$machine>();
            }

            #[test]
            fn memory_that_was_not_preserved_is_refused() {
                suite::memory_that_was_not_preserved_is_refused::<$machine>();
            }
        }
    };
}
pub(crate) use changes_hands;
