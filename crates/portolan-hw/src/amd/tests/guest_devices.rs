//! Devices with translations of their own behind guest tables: what they are told, by PASID, and their page requests.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, Pasid, PhysAddr};
use portolan::iommu::{Attach as _, AttachError, DeviceTlb, Domain as _, Iommu as _, IommuError};
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, RequestKind, Responder as _, Response,
};
use portolan::table::format::AmdV2Levels;
use portolan_chips::amd::AmdMachine as Machine;
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_sim::decode::AccessKind;

use super::machine::{Amd as _, Iommu, with};
use super::{STREAM, config};
use crate::amd::{AmdGuestDomain, Config, PageRequestEvent};
use crate::chassis::Words;
use crate::chassis::tests::suite::{BASE, Driven, failure, map, unmap};
use portolan_spec::amd::command::{OPCODE, opcode};
use portolan_spec::amd::event::code;

const TLB: DeviceTlb = DeviceTlb { depth: 1, physical: 0x28, twice: false };
/// Code with which the model leaves an invalidation without a device's answer.
const SILENT: u32 = code::DEVICE_TLB_TIMEOUT as u32;
/// A PASID with bits in each of the three fields of INVALIDATE_IOTLB_PAGES.
const DEEP: Pasid = Pasid::new(0x5_0607);
const OTHER: Pasid = Pasid::new(0x206);

type Guest = Arc<AmdGuestDomain<Machine>>;

/// A unit with PASIDs of 20 bits whose device [`STREAM`] may keep translations, and a domain with a page.
fn opened() -> (Machine, Iommu, Guest) {
    let machine = with(RAVEN_RIDGE.identification.guests());
    let config = Config { pasid_bits: 20, requests_lg2: Some(8), ..config() };
    let unit = machine.enable(config).unwrap();
    unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
    let domain = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    machine.commands();
    (machine, unit, domain)
}

fn kept(machine: &Machine, pasid: Option<Pasid>) -> Option<PhysAddr> {
    machine.unit().ats_access(STREAM, pasid, Iova::new(BASE.get()), AccessKind::Write)
}

/// INVALIDATE_IOTLB_PAGES of [`STREAM`]; `page` is word 1 without GN.
fn told(pasid: Option<Pasid>, page: u64) -> Words {
    let named = |pasid: u64| {
        let fields = (pasid & 0xff) << 48 | (pasid >> 8 & 0xff) << 16 | pasid >> 16 << 56;
        [0x4000_0028_0100_0028 | fields, page | 4]
    };
    pasid.map_or([0x4000_0028_0100_0028, page], |pasid| named(pasid.get().into()))
}

/// Word 1 of all addresses.
const ALL: u64 = 0x7fff_ffff_ffff_f001;

fn to_device(machine: &Machine) -> Vec<Words> {
    let all = machine.commands().into_iter();
    all.filter(|words| OPCODE.of(words[0]) == opcode::DEVICE_TLB).collect()
}

#[test]
fn a_device_is_told_by_pasid_behind_the_unit() {
    let (machine, unit, domain) = opened();
    unit.attach(STREAM, &domain).unwrap();
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    // I of word 1, and PPR of word 0.
    let entry = machine.entry(STREAM.get().into());
    assert_eq!((entry[0] >> 52 & 1, entry[1] >> 32 & 1), (1, 1));
    let names = [None, Some(Pasid::new(0)), Some(DEEP)];
    assert!(names.iter().all(|pasid| kept(&machine, *pasid).is_some()));
    machine.commands();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let commands: Vec<Words> = machine.commands();
    let order: Vec<u64> = commands.iter().map(|words| OPCODE.of(words[0])).collect();
    let (unit_first, then) = ([opcode::PAGES; 2], [opcode::DEVICE_TLB; 3]);
    assert_eq!(order, [unit_first.as_slice(), then.as_slice()].concat());
    assert_eq!(commands[2..], names.map(|pasid| told(pasid, BASE.get())));
    assert!(names.iter().all(|pasid| kept(&machine, *pasid).is_none()));
    machine.expect_obedience();
}

#[test]
fn a_device_forgets_each_pasid_that_goes_or_moves_and_no_other() {
    let (machine, unit, domain) = opened();
    let elsewhere = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    // It may have been another's.
    let begin: Vec<Words> = to_device(&machine);
    assert_eq!(begin, [told(None, ALL), told(Some(DEEP), ALL)]);
    unit.attach_pasid(STREAM, OTHER, &domain).unwrap();
    assert!(kept(&machine, Some(DEEP)).is_some() && kept(&machine, Some(OTHER)).is_some());
    machine.commands();
    unit.attach_pasid(STREAM, DEEP, &elsewhere).unwrap();
    assert_eq!(to_device(&machine), [told(Some(DEEP), ALL)]);
    assert_eq!(kept(&machine, Some(DEEP)), None);
    assert!(kept(&machine, Some(OTHER)).is_some());
    // The domain that was left tells the other PASID alone.
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    assert_eq!(to_device(&machine), [told(Some(OTHER), BASE.get())]);
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert!(kept(&machine, Some(OTHER)).is_some());
    unit.block_pasid(STREAM, OTHER).unwrap();
    assert_eq!(kept(&machine, Some(OTHER)), None);
    drop((domain, elsewhere));
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    machine.expect_obedience();
}

/// Beside PASIDs accesses without one may pass through, and the device keeps translations of those as well.
#[test]
fn a_device_forgets_what_passed_beside_its_pasids() {
    let (machine, unit, domain) = opened();
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(kept(&machine, None), None);
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    assert_eq!(kept(&machine, None), Some(PhysAddr::new(BASE.get())));
    assert!(kept(&machine, Some(DEEP)).is_some());
    unit.block(STREAM).unwrap();
    assert_eq!(kept(&machine, None), None);
    assert!(kept(&machine, Some(DEEP)).is_some());
    // The entry lets it ask as before.
    assert_eq!(machine.entry(STREAM.get().into())[0] >> 52 & 1, 1);
    unit.block_pasid(STREAM, DEEP).unwrap();
    assert_eq!(kept(&machine, Some(DEEP)), None);
    machine.expect_obedience();
}

#[test]
fn a_silent_device_keeps_its_pasids_domain_until_it_has_forgotten() {
    let (machine, unit, domain) = opened();
    let weak = Arc::downgrade(&domain);
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    assert!(kept(&machine, Some(DEEP)).is_some());
    machine.refuse_kind(opcode::DEVICE_TLB, u32::MAX, SILENT);
    let silent = IommuError::DeviceSilent { stream: None };
    let mut owed = unmap(&*domain, 1);
    assert_eq!(failure(&*domain, &mut owed), silent);
    let blocked = unit.block_pasid(STREAM, DEEP);
    assert_eq!(blocked, Err(AttachError::Iommu(silent)));
    machine.refuse_kind(opcode::DEVICE_TLB, 0, SILENT);
    drop((domain, owed));
    assert!(weak.upgrade().is_some());
    unit.block_pasid(STREAM, DEEP).unwrap();
    assert!(weak.upgrade().is_none());
    assert_eq!(kept(&machine, Some(DEEP)), None);
}

#[test]
fn a_device_that_is_gone_is_asked_for_none_of_its_pasids() {
    let (machine, unit, domain) = opened();
    unit.attach(STREAM, &domain).unwrap();
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    assert!(kept(&machine, Some(DEEP)).is_some());
    machine.commands();
    unit.device_gone(STREAM).unwrap();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    assert_eq!(to_device(&machine), Vec::<Words>::new());
    // Its translations are void.
    assert_eq!((kept(&machine, None), kept(&machine, Some(DEEP))), (None, None));
    machine.expect_obedience();
}

#[test]
fn a_device_has_forgotten_its_pasids_when_its_unit_is_suspended() {
    for lost in [false, true] {
        let (machine, unit, domain) = opened();
        unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
        assert!(kept(&machine, Some(DEEP)).is_some());
        machine.commands();
        unit.suspend().unwrap();
        assert!(to_device(&machine).contains(&told(Some(DEEP), ALL)));
        if lost {
            machine.unit().cut_power();
        }
        domain.sync(&mut unmap(&*domain, 1)).unwrap();
        unit.resume().unwrap();
        assert_eq!(kept(&machine, Some(DEEP)), None);
        domain.sync(&mut map(&*domain, 1)).unwrap();
        assert!(kept(&machine, Some(DEEP)).is_some());
        machine.expect_obedience();
    }
}

#[test]
fn requests_name_their_pasid_and_so_do_answers() {
    let (machine, unit, domain) = opened();
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    machine.commands();
    let raw = RawPageRequest {
        stream: STREAM,
        pasid: Some(DEEP),
        iova: Iova::new(0x40_0000),
        wants: Permissions::READ | Permissions::WRITE,
        kind: RequestKind::Pri { group: GroupId::new(0x15), place: Place::Last },
    };
    machine.unit().ask(raw);
    assert_eq!(unit.next_page_request(), Ok(Some(PageRequestEvent::Request(raw))));
    unit.respond(raw.reply_to(), Response::Success).unwrap();
    // The PASID, and GN.
    assert_eq!(machine.commands(), [[0x7005_0607_0000_0028, 0x15_0000_0004]]);
    assert_eq!(machine.unit().told(), [(raw.reply_to(), Response::Success)]);
    // A PASID goes, and the entry stays: nothing was lost.
    unit.block_pasid(STREAM, DEEP).unwrap();
    assert_eq!(unit.next_page_request(), Ok(None));
    assert_eq!(machine.unit().unanswered().len(), 0);
    machine.expect_obedience();
}
