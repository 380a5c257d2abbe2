//! Devices with translations of their own: the order of their commands, devices that do not answer, and page
//! requests.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, PhysAddr, RequesterId, StreamId};
use portolan::iommu::{Attach as _, DeviceTlb, Domain as _, FaultEvent, Iommu as _, IommuError};
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, RequestKind, Responder as _, Response,
};
use portolan_chips::amd::{AmdIdentification, AmdMachine as Machine};
use portolan_chips::chips::{AMD_990FX, RAVEN_RIDGE};
use portolan_sim::decode::AccessKind;

use super::machine::{Amd as _, Iommu, with};
use super::{STREAM, config};
use crate::amd::{AmdDomain, Config, PageRequestEvent, StreamSettings};
use crate::chassis::Words;
use crate::chassis::tests::suite::{BASE, Driven, failure, map, unmap};
use portolan_spec::amd::command::{OPCODE, opcode};
use portolan_spec::amd::event::code;
use portolan_spec::amd::reg;
use portolan_tables::ivrs::{Ats, Devices, Settings};

const TLB: DeviceTlb = DeviceTlb { depth: 1, physical: 0x28, twice: false };
/// Code with which the model leaves an invalidation without a device's answer.
const SILENT: u32 = code::DEVICE_TLB_TIMEOUT as u32;
/// INVALIDATE_IOTLB_PAGES of all of [`STREAM`].
const ALL: Words = [0x4000_0028_0100_0028, 0x7fff_ffff_ffff_f001];

fn machine() -> Machine {
    with(RAVEN_RIDGE.identification)
}

fn asking() -> Config {
    Config { requests_lg2: Some(8), ..config() }
}

/// A unit with one stream, whose device keeps translations, attached to one domain, and no commands.
fn attached(machine: &Machine) -> (Iommu, Arc<AmdDomain<Machine>>) {
    let unit = machine.enable(asking()).unwrap();
    let domain = Arc::new(unit.domain().unwrap());
    unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    machine.commands();
    (unit, domain)
}

fn kept(machine: &Machine) -> Option<PhysAddr> {
    let iova = Iova::new(BASE.get());
    machine.unit().ats_access(STREAM, None, iova, AccessKind::Write)
}

fn operations(commands: &[Words]) -> Vec<u64> {
    commands.iter().map(|words| OPCODE.of(words[0])).collect()
}

#[test]
fn a_device_is_told_behind_the_unit() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    // I of word 1, and PPR of word 0.
    let entry = machine.entry(STREAM.get().into());
    assert_eq!((entry[0] >> 52 & 1, entry[1] >> 32 & 1), (1, 1));
    assert!(kept(&machine).is_some());
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let commands: Vec<Words> = machine.commands();
    // With a wait behind each.
    let order = [opcode::PAGES, opcode::DEVICE_TLB];
    assert_eq!(operations(&commands), order);
    assert_eq!(commands[1], [ALL[0], BASE.get()]);
    assert_eq!(kept(&machine), None);
    // One that passes through gets none, and is not told.
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(machine.entry(STREAM.get().into())[1] >> 32 & 1, 0);
    assert_eq!(kept(&machine), None);
    machine.expect_obedience();
}

#[test]
fn a_device_forgets_before_its_entry_stops_saying_that_it_may_translate() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    assert!(kept(&machine).is_some());
    unit.block(STREAM).unwrap();
    let commands: Vec<Words> = machine.commands();
    let entry = opcode::DEVICE_ENTRY;
    let order = [entry, opcode::PAGES, opcode::DEVICE_TLB, entry];
    assert_eq!(operations(&commands), order);
    assert_eq!(commands[2], ALL);
    // And once more before it leads anywhere: it may have been another's in between.
    unit.attach(STREAM, &domain).unwrap();
    let commands: Vec<Words> = machine.commands();
    assert_eq!(commands.iter().filter(|words| **words == ALL).count(), 1);
    assert!(kept(&machine).is_some());
    drop(domain);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    machine.expect_obedience();
}

#[test]
fn a_silent_device_is_asked_twice_and_is_an_error_until_it_is_gone() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    assert!(kept(&machine).is_some());
    machine.refuse_kind(opcode::DEVICE_TLB, 1, SILENT);
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    assert_eq!(kept(&machine), None);
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert!(kept(&machine).is_some());
    // Records that were read count as those that were not.
    assert_eq!(unit.next_fault(), Ok(None));
    machine.refuse_kind(opcode::DEVICE_TLB, u32::MAX, SILENT);
    let mut owed = unmap(&*domain, 1);
    let silent = IommuError::DeviceSilent { stream: None };
    assert_eq!(failure(&*domain, &mut owed), silent);
    assert!(unit.block(STREAM).is_err());
    unit.device_gone(STREAM).unwrap();
    assert_eq!(kept(&machine), None);
    machine.commands();
    domain.sync(&mut owed).unwrap();
    assert!(!operations(&machine.commands()).contains(&opcode::DEVICE_TLB));
}

#[test]
fn a_device_has_forgotten_when_its_unit_is_suspended_and_requests_come_again_after_it() {
    for lost in [false, true] {
        let machine = machine();
        let (unit, domain) = attached(&machine);
        assert!(kept(&machine).is_some());
        machine.unit().ask(raw(5, 0x40));
        unit.suspend().unwrap();
        assert_eq!(kept(&machine), None);
        if lost {
            machine.unit().cut_power();
        }
        domain.sync(&mut unmap(&*domain, 1)).unwrap();
        unit.resume().unwrap();
        assert_eq!(kept(&machine), None);
        domain.sync(&mut map(&*domain, 1)).unwrap();
        assert!(kept(&machine).is_some());
        // The unit has answered what was asked before.
        assert_eq!(unit.next_page_request(), Ok(Some(PageRequestEvent::Lost)));
        machine.unit().ask(raw(6, 0x41));
        let request = Ok(Some(PageRequestEvent::Request(raw(6, 0x41))));
        assert_eq!(unit.next_page_request(), request);
        assert_eq!(unit.next_page_request(), Ok(None));
        assert_ne!(reg::control::DEVICE_TLB_LIMIT.of(machine.reg(reg::CONTROL)), 0);
        machine.expect_obedience();
    }
}

#[test]
fn a_unit_with_devices_that_ask_for_pages_is_not_handed_over() {
    let machine = machine();
    let (unit, _domain) = attached(&machine);
    let recorded = |unit: &Iommu| unit.state().map(drop);
    assert_eq!(recorded(&unit), Err(IommuError::Unsupported));
    unit.device_gone(STREAM).unwrap();
    assert_eq!(recorded(&unit), Ok(()));
}

/// The silence finds room in a log that no caller reads, and whose other records count as lost.
#[test]
fn a_silent_device_is_noticed_though_the_log_is_full() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    assert!(kept(&machine).is_some());
    for page in 0..300 {
        let at = Iova::new(0x1000_0000 + (page << 12));
        assert!(machine.unit().dma(STREAM, at, AccessKind::Write, 4).is_err());
    }
    machine.refuse_kind(opcode::DEVICE_TLB, u32::MAX, SILENT);
    let mut owed = unmap(&*domain, 1);
    let silent = IommuError::DeviceSilent { stream: None };
    assert_eq!(failure(&*domain, &mut owed), silent);
    machine.refuse_kind(opcode::DEVICE_TLB, 0, SILENT);
    domain.sync(&mut owed).unwrap();
    assert_eq!(kept(&machine), None);
    assert_eq!(unit.next_fault(), Ok(Some(FaultEvent::Lost)));
    assert_eq!(unit.next_fault(), Ok(None));
}

fn raw(group: u16, page: u64) -> RawPageRequest {
    RawPageRequest {
        stream: STREAM,
        pasid: None,
        iova: Iova::new(page << 12),
        wants: Permissions::READ | Permissions::WRITE,
        kind: RequestKind::Pri { group: GroupId::new(group), place: Place::Last },
    }
}

#[test]
fn requests_are_read_and_answered_and_lost_ones_are_told() {
    let machine = machine();
    let (unit, _domain) = attached(&machine);
    assert_eq!(unit.next_page_request(), Ok(None));
    machine.unit().ask(raw(5, 0x40));
    let request = unit.next_page_request();
    assert_eq!(request, Ok(Some(PageRequestEvent::Request(raw(5, 0x40)))));
    unit.respond(raw(5, 0x40).reply_to(), Response::Success).unwrap();
    let answer = [0x7000_0000_0000_0028, 0x0000_0005_0000_0000];
    assert!(machine.commands().contains(&answer));
    assert_eq!(machine.unit().told(), [(raw(5, 0x40).reply_to(), Response::Success)]);
    // The log has 256 places, of which one stays empty.
    (0..300).for_each(|page| machine.unit().ask(raw(7, page)));
    let mut events = Vec::new();
    while let Some(event) = unit.next_page_request().unwrap() {
        events.push(event);
    }
    assert_eq!((events.len(), events.pop()), (256, Some(PageRequestEvent::Lost)));
    machine.unit().ask(raw(8, 1));
    assert_eq!(unit.next_page_request(), Ok(Some(PageRequestEvent::Request(raw(8, 1)))));
    // A stream that is moved has had its requests answered by the unit meanwhile.
    unit.block(STREAM).unwrap();
    assert_eq!(unit.next_page_request(), Ok(Some(PageRequestEvent::Lost)));
    assert_eq!(unit.next_page_request(), Ok(None));
    machine.expect_obedience();
}

#[test]
fn devices_that_cannot_keep_translations_are_refused() {
    let refused = |identification: AmdIdentification, config: Config, tlb: DeviceTlb| {
        let machine = with(identification);
        let unit = machine.enable(config).unwrap();
        unit.use_device_tlb(STREAM, tlb, all_memory()).err()
    };
    let unsupported = Some(IommuError::Unsupported);
    let able = RAVEN_RIDGE.identification;
    assert_eq!(refused(able, config(), TLB), None);
    assert_eq!(refused(able, config(), DeviceTlb { twice: true, ..TLB }), unsupported);
    let mut without = able;
    without.capability[0] &= !(1 << 24);
    assert_eq!(refused(without, config(), TLB), unsupported);
    let streams = alloc::vec![StreamSettings {
        streams: Devices::one(RequesterId::new(STREAM.get() as u16)),
        settings: Settings { ats: Ats::Disabled, ..Settings::default() },
    }];
    assert_eq!(refused(able, Config { streams, ..config() }, TLB), unsupported);
    let other = StreamId::new(128);
    let machine = with(able);
    let unit = machine.enable(config()).unwrap();
    assert_eq!(unit.use_device_tlb(other, TLB, all_memory()).err(), unsupported);
    unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
    assert_ne!(reg::control::DEVICE_TLB_LIMIT.of(machine.reg(reg::CONTROL)), 0);
    assert_eq!(unit.next_page_request(), Err(IommuError::Unsupported));
    // No PPRSup.
    let machine = with(AMD_990FX.identification);
    assert_eq!((machine.enable(asking()).err(), machine.live()), (unsupported, 0));
}
