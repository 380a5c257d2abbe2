//! Streams with guest tables, PASIDs and devices that keep translations, in the hands of the next kernel.

use crate::promise::tests::all_memory;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, Pasid, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::handover::{HandoverTarget, StreamHandover, UnitHandover};
use portolan::iommu::{
    Attach as _, DeviceTlb, Domain as _, Iommu as _, IommuDomains as _, IommuError,
};
use portolan::platform::TableClaims;
use portolan::table::format::AmdV2Levels;
use portolan_chips::amd::{AmdIdentification, AmdMachine as Machine};
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::fixture::seed;
use portolan_sim::decode::AccessKind;

use super::guests::GuestMachine;
use super::machine::{Amd as _, Iommu, capability, with};
use super::{STREAM, config};
use crate::amd::{AmdGuestDomain, AmdVi, Config};
use crate::chassis::tests::handover::{HandsOver, REGISTERS, changes_hands, claims, record_of};
use crate::chassis::tests::suite::{BASE, Driven, PAGE, map};
use crate::handover::tests::damaged;
use crate::handover::{AdoptError, Record, RecordedKind};
use portolan_spec::amd::command::{OPCODE, opcode};

impl HandsOver for GuestMachine {
    const KIND: RecordedKind = RecordedKind::AmdVi;

    fn adopt(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Iommu, AdoptError> {
        adopt(self.machine(), config(), former, claims)
    }
}

changes_hands! { crate::amd::tests::guests::GuestMachine }

const TLB: DeviceTlb = DeviceTlb { depth: 4, physical: 0x20, twice: false };
/// PASIDs in different tables of the lowest level.
const DEEP: Pasid = Pasid::new(0x5_0607);
const OTHER: Pasid = Pasid::new(0x206);
/// Damaged records, with those of all drivers' own tests.
const DAMAGED: u32 = 2500;

fn adopt(
    machine: &Machine,
    config: Config,
    former: &UnitHandover,
    claims: &mut TableClaims<'_>,
) -> Result<Iommu, AdoptError> {
    let capability = capability(&machine.unit().identification());
    let [regs, mem, clock] = [(); 3].map(|()| machine.clone());
    AmdVi::adopt(regs, mem, clock, capability, config, former, claims)
}

fn wide() -> Config {
    Config { pasid_bits: 20, ..config() }
}

fn identification() -> AmdIdentification {
    RAVEN_RIDGE.identification.guests()
}

type Guest = Arc<AmdGuestDomain<Machine>>;

/// A unit with a domain of [`STREAM`]'s accesses without a PASID and of [`DEEP`], and another of [`OTHER`]; its device
/// keeps translations of all.
struct Held {
    machine: Machine,
    unit: Iommu,
    domains: [Guest; 2],
}

impl Held {
    fn new() -> Self {
        let machine = with(identification());
        let unit = machine.enable(wide()).unwrap();
        unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
        let guest = || Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
        // Names of domains that are gone are not the record's.
        drop(guest());
        let domains = [guest(), guest()];
        for domain in &domains {
            domain.sync(&mut map(&**domain, 2)).unwrap();
        }
        unit.attach(STREAM, &domains[0]).unwrap();
        unit.attach_pasid(STREAM, DEEP, &domains[0]).unwrap();
        unit.attach_pasid(STREAM, OTHER, &domains[1]).unwrap();
        assert_eq!(kept(&machine), [Some(0x1000); 4]);
        Self { machine, unit, domains }
    }

    /// The record's bytes, once the former kernel has left.
    fn left(&self) -> Vec<u8> {
        let state = self.unit.handover().unwrap();
        self.unit.leave().unwrap();
        record_of::<GuestMachine>(&state)
    }
}

/// Addresses at which accesses arrive by translations that the device keeps.
fn kept(machine: &Machine) -> [Option<u64>; 4] {
    [None, Some(Pasid::new(0)), Some(DEEP), Some(OTHER)].map(|pasid| {
        let iova = Iova::new(BASE.get());
        let kept = machine.unit().ats_access(STREAM, pasid, iova, AccessKind::Write);
        kept.map(PhysAddr::get)
    })
}

fn read(record: &[u8]) -> UnitHandover {
    Record::read(record).unwrap().unit(REGISTERS, RecordedKind::AmdVi).unwrap()
}

fn unmap(domain: &dyn portolan::iommu::Domain) {
    let mut owed = Gather::new();
    let page = portolan::addr::IovaRange::from_len(BASE, PAGE).unwrap();
    domain.unmap(page, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

#[test]
fn pasids_and_devices_translations_go_on_at_each_write_and_are_the_next_kernels() {
    let held = Held::new();
    let machine = held.machine.clone();
    let state = read(&held.left());
    let target = |pasid| {
        let of = |of: &&StreamHandover| of.requester.pasid == pasid;
        state.streams.iter().find(of).map(|of| (of.target, of.tlb))
    };
    let [first, second] = [0, 1].map(|n| HandoverTarget::Domain(state.domains[n].tag));
    assert_eq!(target(None), Some((first, Some(TLB))));
    assert_eq!(target(Some(DEEP)), Some((first, Some(TLB))));
    assert_eq!(target(Some(OTHER)), Some((second, Some(TLB))));
    let seen = machine.clone();
    machine.judge(Some(Box::new(move || assert_eq!(kept(&seen), [Some(0x1000); 4]))));
    let next = Arc::new(adopt(&machine, wide(), &state, &mut claims()).unwrap());
    machine.judge(None);
    let before = machine.live();
    drop(held);
    assert_eq!(machine.live(), before);
    assert_eq!(kept(&machine), [Some(0x1000); 4]);
    // Invalidations reach the device under all names, behind the unit.
    machine.commands();
    let adopted = next.clone().adopted(STREAM).unwrap();
    unmap(&**adopted.bound.domain());
    assert_eq!(kept(&machine), [None, None, None, Some(0x1000)]);
    let order: Vec<u64> = machine.commands().iter().map(|words| OPCODE.of(words[0])).collect();
    let wanted = [[opcode::PAGES; 2].as_slice(), &[opcode::DEVICE_TLB; 3]].concat();
    assert_eq!(order, wanted);
    // A PASID of the former kernel's goes, and another comes.
    next.block_pasid(STREAM, OTHER).unwrap();
    assert_eq!(kept(&machine)[3], None);
    let fresh = Arc::new(next.guest_domain(AmdV2Levels::Four).unwrap());
    fresh.sync(&mut map(&*fresh, 1)).unwrap();
    next.attach_pasid(STREAM, OTHER, &fresh).unwrap();
    assert_eq!(kept(&machine)[3], Some(0x1000));
    for pasid in [DEEP, OTHER] {
        next.block_pasid(STREAM, pasid).unwrap();
    }
    next.block(STREAM).unwrap();
    assert_eq!((kept(&machine), machine.entry(0x28)[0]), ([None; 4], 3));
    drop((adopted, fresh));
    machine.expect_obedience();
}

#[test]
fn records_that_say_something_else_of_pasids_and_devices_are_refused() {
    type Lie = fn(&mut UnitHandover);
    let lies: [(&str, Lie); 10] = [
        ("a PASID less", |state| state.streams.truncate(2)),
        ("another PASID", |state| state.streams[1].requester.pasid = Some(Pasid::new(5))),
        ("PASID 0", |state| state.streams[1].requester.pasid = Some(Pasid::new(0))),
        ("a PASID too wide", |state| state.streams[2].requester.pasid = Some(Pasid::new(1 << 20))),
        ("another domain", |state| state.streams[1].target = state.streams[2].target),
        ("no accesses without a PASID", |state| {
            state.streams.remove(0);
        }),
        ("a PASID that passes", |state| state.streams[1].target = HandoverTarget::Everything),
        ("no device", |state| state.streams.iter_mut().for_each(|of| of.tlb = None)),
        ("a PASID without its device", |state| state.streams[2].tlb = None),
        ("a device that is asked twice", |state| {
            let twice = Some(DeviceTlb { twice: true, ..TLB });
            state.streams.iter_mut().for_each(|of| of.tlb = twice);
        }),
    ];
    let held = Held::new();
    let (machine, record) = (held.machine.clone(), held.left());
    machine.take();
    for (what, lie) in lies {
        let mut state = read(&record);
        lie(&mut state);
        let refused = adopt(&machine, wide(), &state, &mut claims());
        assert!(refused.is_err(), "{what}");
    }
    // PASIDs of one level would need another GCR3 table.
    let state = read(&record);
    assert!(adopt(&machine, config(), &state, &mut claims()).is_err());
    // Nor does a unit that is to log page requests find entries that let devices ask.
    let asking = Config { requests_lg2: Some(8), ..wide() };
    assert!(adopt(&machine, asking, &state, &mut claims()).is_err());
    assert!(machine.take().is_empty());
    assert_eq!(kept(&machine), [Some(0x1000); 4]);
    assert!(adopt(&machine, wide(), &state, &mut claims()).is_ok());
}

#[test]
fn damaged_records_of_pasids_let_nothing_through() {
    let seed = seed();
    std::println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let held = Held::new();
    let (machine, whole) = (held.machine.clone(), held.left());
    let same = read(&whole);
    let live = machine.live();
    machine.take();
    let mut tried = 0;
    for _ in 0..DAMAGED {
        let record = damaged(&mut rng, &whole);
        let record = Record::read(&record).unwrap();
        let Ok(state) = record.unit(REGISTERS, RecordedKind::AmdVi) else { continue };
        // Neither registers nor tables say how a device's queue is named, and how long it is.
        let mut known = state.clone();
        known.queues.clone_from(&same.queues);
        let tlbs: Vec<_> = state.streams.iter().map(|of| of.tlb).collect();
        let alike =
            tlbs.iter().all(|tlb| tlb.is_some_and(|tlb| !tlb.twice && Some(tlb) == tlbs[0]));
        if alike {
            known.streams.iter_mut().for_each(|of| of.tlb = Some(TLB));
        }
        if known == same {
            continue;
        }
        tried += 1;
        let refused = adopt(&machine, wide(), &state, &mut claims()).map(drop);
        assert!(refused.is_err(), "{state:x?}");
    }
    assert!(tried > DAMAGED / 20, "{tried}");
    assert!(machine.take().is_empty());
    assert_eq!((machine.live(), kept(&machine)), (live, [Some(0x1000); 4]));
    assert!(adopt(&machine, wide(), &same, &mut claims()).is_ok());
}

/// Tables that changed hands are not believed, whatever is written into them.
#[test]
fn gcr3_tables_that_are_not_as_recorded_are_refused() {
    let held = Held::new();
    let (machine, state) = (held.machine.clone(), read(&held.left()));
    let [low, high, ..] = machine.entry(0x28);
    let root = (low >> 58 & 7) << 12 | (high >> 16 & 0xffff) << 15 | high >> 43 << 31;
    // Of three levels, of which DEEP has entries 1, 0x83 and 7.
    let middle = machine.word(root + 8) & !0xfff;
    let last = machine.word(middle + 8 * 0x83) & !0xfff;
    machine.take();
    for (at, word) in [
        (root + 8, 0),
        (root + 8, root | 1),
        (root + 16, middle | 1),
        (root + 8, middle | 3),
        (middle + 8 * 0x83, 0x00ff_ffff_0000_0001),
        (last + 8 * 7, 0x5000 | 1),
        (last + 8 * 8, machine.word(last + 8 * 7)),
    ] {
        let whole = machine.word(at);
        machine.store(at, word);
        let refused = adopt(&machine, wide(), &state, &mut claims()).map(drop);
        assert!(refused.is_err(), "{at:#x}: {word:#x}");
        machine.store(at, whole);
    }
    assert!(machine.take().is_empty());
    assert!(adopt(&machine, wide(), &state, &mut claims()).is_ok());
}

#[test]
fn a_gcr3_table_in_which_nothing_is_left_is_not_handed_over() {
    let held = Held::new();
    for pasid in [DEEP, OTHER] {
        held.unit.block_pasid(STREAM, pasid).unwrap();
    }
    let other = Pasid::new(1);
    held.unit.attach_pasid(STREAM, other, &held.domains[0]).unwrap();
    held.unit.block(STREAM).unwrap();
    held.unit.block_pasid(STREAM, other).unwrap();
    assert_ne!(held.machine.entry(0x28)[0], 3);
    let state = held.unit.handover().unwrap();
    assert_eq!((held.machine.entry(0x28)[0], state.streams.len()), (3, 0));
}

#[test]
fn what_passes_beside_pasids_takes_leave() {
    let held = Held::new();
    held.unit.pass_through(STREAM, all_memory()).unwrap();
    let mut state = read(&held.left());
    assert_eq!(state.streams[0].target, HandoverTarget::Everything);
    let refused = adopt(&held.machine, wide(), &state, &mut claims()).map(drop);
    assert_eq!(refused, Err(AdoptError::Passes { stream: STREAM }));
    // Nor does it go on where no record says so.
    state.streams.remove(0);
    assert!(adopt(&held.machine, wide(), &state, &mut claims()).is_err());
}

/// Page requests that arrive while the logs are exchanged would be refused.
#[test]
fn devices_that_ask_for_pages_are_not_handed_over() {
    let machine = with(identification());
    let unit = machine.enable(Config { requests_lg2: Some(8), ..wide() }).unwrap();
    unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
    let domain = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    assert_eq!(unit.handover().err(), Some(IommuError::Unsupported));
}
