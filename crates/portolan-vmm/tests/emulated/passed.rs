//! A device that is passed through: the host's IOMMU hears of contexts and invalidations, and may refuse each.

use std::io;
use std::sync::{Arc, Mutex};

use portolan::addr::{InvalTag, IovaRange, PhysAddr};
use portolan_vmm::EndpointId;
use portolan_vmm::emulated::{
    AttachError, Context, EmulatedUnit, GuestEntry, Hardware, InvalidateError, Scope,
};
use vm_memory::{Bytes as _, GuestAddress, Permissions};

use crate::{ENDPOINT, LONG, VTD, guest, range, reach, unit};

const OTHER: EndpointId = EndpointId::new(0x18);

/// Words of an entry, none of a device that is blocked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Blocked,
    Memory,
    Tables(Vec<u64>),
}

/// A forged IOMMU: the place of its device, invalidations that it was told of, and calls until one fails.
#[derive(Debug, Default)]
struct Forged {
    at: Mutex<At>,
    told: Mutex<Vec<Option<IovaRange>>>,
    fails_in: Mutex<Option<u32>>,
}

impl Forged {
    fn call(&self) -> io::Result<()> {
        let mut left = self.fails_in.lock().unwrap();
        match left.take() {
            Some(0) => Err(io::ErrorKind::QuotaExceeded.into()),
            before => {
                *left = before.map(|calls| calls - 1);
                Ok(())
            }
        }
    }

    fn at(&self) -> At {
        self.at.lock().unwrap().clone()
    }

    fn told(&self) -> Vec<Option<IovaRange>> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    fn fail_in(&self, calls: u32) {
        *self.fails_in.lock().unwrap() = Some(calls);
    }
}

impl Hardware for Forged {
    fn attach(&self, entry: GuestEntry<'_>) -> io::Result<()> {
        self.call()?;
        *self.at.lock().unwrap() = match entry {
            GuestEntry::Blocked => At::Blocked,
            GuestEntry::PassThrough => At::Memory,
            GuestEntry::Tables(words) => At::Tables(words.to_vec()),
            other => panic!("{other:?}"),
        };
        Ok(())
    }

    fn invalidate(&self, range: Option<IovaRange>) -> io::Result<()> {
        assert!(matches!(self.at(), At::Tables(_)), "there is nothing to forget");
        self.call()?;
        self.told.lock().unwrap().push(range);
        Ok(())
    }
}

/// Tables at `root` that lead page 5 to `page`.
fn tables(memory: &crate::Guest, root: u64, page: u64, tag: u32) -> Context {
    let [middle, leaf] = [root + 0x1000, root + 0x2000];
    for (at, entry) in [(root, middle | 3), (middle, leaf | 3), (leaf + 5 * 8, page | 3)] {
        memory.write_obj(entry, GuestAddress(at)).unwrap();
    }
    Context::tables(VTD, PhysAddr::new(root), InvalTag::new(tag)).unwrap()
}

fn passed() -> (crate::Guest, EmulatedUnit, portolan_vmm::Endpoint, Arc<Forged>) {
    let memory = guest(1 << 20);
    let (unit, endpoint) = unit(&memory, 64, LONG);
    let hardware = Arc::new(Forged::default());
    unit.pass_through(ENDPOINT, hardware.clone()).unwrap();
    (memory, unit, endpoint, hardware)
}

fn refused(kind: io::ErrorKind) -> AttachError {
    AttachError::Hardware { endpoint: ENDPOINT, kind }
}

#[test]
fn hardware_follows_the_guests_entries() {
    let (memory, unit, endpoint, hardware) = passed();
    unit.attach(ENDPOINT, Context::pass_through()).unwrap();
    assert_eq!(hardware.at(), At::Memory);
    let words = [0x1001, 7 << 8 | 1];
    unit.attach(ENDPOINT, tables(&memory, 0x1000, 0x8000, 7).with_entry(&words)).unwrap();
    assert_eq!(hardware.at(), At::Tables(words.to_vec()));
    let here = || reach(&endpoint, 0x5010, 8, Permissions::Read);
    assert_eq!(here(), Some(vec![(0x8010, 8)]), "the endpoint itself goes the same way");
    // Other hardware, from a later moment on, hears of what there is.
    let later = Arc::new(Forged::default());
    later.fail_in(0);
    let error = refused(io::ErrorKind::QuotaExceeded);
    assert_eq!(unit.pass_through(ENDPOINT, later.clone()), Err(error));
    unit.attach(ENDPOINT, Context::blocked()).unwrap();
    assert_eq!((hardware.at(), later.at()), (At::Blocked, At::Blocked));
    unit.attach(ENDPOINT, tables(&memory, 0x1000, 0x8000, 7).with_entry(&words)).unwrap();
    unit.pass_through(ENDPOINT, later.clone()).unwrap();
    assert_eq!(later.at(), At::Tables(words.to_vec()));
    unit.remove(ENDPOINT).unwrap();
    assert_eq!(later.at(), At::Blocked);
    assert_eq!(unit.pass_through(ENDPOINT, later), Err(AttachError::NoEndpoint(ENDPOINT)));
}

#[test]
fn a_refused_context_changes_nothing() {
    let (memory, unit, endpoint, hardware) = passed();
    let first = tables(&memory, 0x1000, 0x8000, 7).with_entry(&[1]);
    unit.attach(ENDPOINT, first).unwrap();
    let here = || reach(&endpoint, 0x5010, 8, Permissions::Read);
    let second = || tables(&memory, 0x4000, 0x9000, 7).with_entry(&[2]);
    hardware.fail_in(0);
    let error = refused(io::ErrorKind::QuotaExceeded);
    assert_eq!(unit.attach(ENDPOINT, second()), Err(error));
    assert_eq!((hardware.at(), here()), (At::Tables(vec![1]), Some(vec![(0x8010, 8)])));
    // A context without the guest's entry is not even tried.
    let none = tables(&memory, 0x4000, 0x9000, 7);
    assert_eq!(unit.attach(ENDPOINT, none), Err(AttachError::NoEntry(ENDPOINT)));
    assert_eq!((hardware.at(), here()), (At::Tables(vec![1]), Some(vec![(0x8010, 8)])));
    // A device that the hardware does not let go stays.
    hardware.fail_in(0);
    assert_eq!(unit.remove(ENDPOINT), Err(error));
    assert_eq!((hardware.at(), here()), (At::Tables(vec![1]), Some(vec![(0x8010, 8)])));
    unit.attach(ENDPOINT, second()).unwrap();
    assert_eq!((hardware.at(), here()), (At::Tables(vec![2]), Some(vec![(0x9010, 8)])));
}

#[test]
fn hardware_is_told_of_invalidations_of_its_tables() {
    let (memory, unit, endpoint, hardware) = passed();
    let other = Arc::new(Forged::default());
    unit.add(OTHER).unwrap();
    unit.pass_through(OTHER, other.clone()).unwrap();
    let (tag, part) = (|tag| Scope::Tag(InvalTag::new(tag)), Some(range(0x5000, 0x5fff)));
    // No tables, nothing to forget.
    unit.invalidate(Scope::All, None).unwrap();
    unit.attach(ENDPOINT, tables(&memory, 0x1000, 0x8000, 7).with_entry(&[1])).unwrap();
    unit.attach(OTHER, tables(&memory, 0x1000, 0x8000, 8).with_entry(&[1])).unwrap();
    unit.invalidate(tag(7), part).unwrap();
    assert_eq!((hardware.told(), other.told()), (vec![part], vec![]));
    unit.invalidate(Scope::All, None).unwrap();
    unit.invalidate(tag(9), None).unwrap();
    assert_eq!((hardware.told(), other.told()), (vec![None], vec![None]));

    // One that fails is named; all others have forgotten.
    assert!(reach(&endpoint, 0x5010, 8, Permissions::Read).is_some());
    tables(&memory, 0x1000, 0x9000, 7);
    hardware.fail_in(0);
    let kind = io::ErrorKind::QuotaExceeded;
    let error = InvalidateError::Hardware { endpoint: ENDPOINT, kind };
    assert_eq!(unit.invalidate(Scope::All, part), Err(error));
    assert_eq!((hardware.told(), other.told()), (vec![], vec![part]));
    let here = reach(&endpoint, 0x5010, 8, Permissions::Read);
    assert_eq!(here, Some(vec![(0x9010, 8)]));
}

#[test]
fn hardware_that_fails_at_random_is_where_the_guest_was_told() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (memory, unit, _endpoint, hardware) = passed();
    let mut there = At::Blocked;
    for _ in 0..2000 {
        if random.u32(..4) == 0 {
            hardware.fail_in(random.u32(..3));
        }
        let word = random.u64(..);
        let (context, wanted) = match random.u32(..3) {
            0 => (Context::blocked(), At::Blocked),
            1 => (Context::pass_through(), At::Memory),
            _ => {
                let context = tables(&memory, 0x1000, 0x8000, random.u32(..3));
                (context.with_entry(&[word]), At::Tables(vec![word]))
            }
        };
        match unit.attach(ENDPOINT, context) {
            Ok(()) => there = wanted,
            Err(error) => assert_eq!(error, refused(io::ErrorKind::QuotaExceeded)),
        }
        assert_eq!(hardware.at(), there);
        let told = unit.invalidate(Scope::All, None).is_ok();
        let heard = usize::from(told && matches!(there, At::Tables(_)));
        assert_eq!(hardware.told().len(), heard);
    }
}
