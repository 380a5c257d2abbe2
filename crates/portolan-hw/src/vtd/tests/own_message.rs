//! The unit's own messages: for faults, and for page requests.

use crate::promise::tests::all_memory;
use alloc::vec::Vec;

use portolan::addr::{Iova, Pasid};
use portolan::iommu::{
    Attach as _, Destination, InterruptTarget, Iommu as _, IommuDomains as _, IommuError, Vector,
};
use portolan::iopf::{GroupId, Permissions, Place, RawPageRequest, RequestKind};
use portolan::platform::Mmio as _;
use portolan::table::format::VtdFirstLevels;
use portolan_chips::machine::Event;
use portolan_chips::vtd::VtdMachine;

use super::kit::{CAP, ECAP, Iommu, Kit as _, SCALABLE, new_machine};
use super::{STREAM, attached, config, legacy};
use crate::chassis::tests::suite::Driven;
use crate::vtd::{DeviceTlb, Mode};
use alloc::sync::Arc;
use portolan_spec::vtd::reg::{self, fsts, prs};

const PASID: Pasid = Pasid::new(5);

fn target(vector: u8, cpu: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(cpu))
}

fn sent(machine: &VtdMachine) -> Vec<(u64, u32)> {
    machine.unit().take_messages()
}

#[test]
fn a_message_is_masked_while_it_changes() {
    let machine = new_machine(CAP, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    for control in [reg::FECTL, reg::PECTL] {
        machine.take();
        let signal = |target| match control {
            reg::FECTL => unit.signal_faults(target),
            _ => unit.signal_page_requests(target),
        };
        signal(Some(target(0x31, 7))).unwrap();
        let wanted = [
            (control, 1 << 31),
            (control + 4, 0x31),
            (control + 8, 0xfee0_7000),
            (control + 12, 0),
            (control, 0),
        ];
        assert_eq!(machine.take(), wanted.map(|(at, value)| Event::Write(at, value)));
        signal(None).unwrap();
        assert_eq!(machine.take(), [Event::Write(control, 1 << 31)]);
        let far = signal(Some(target(0x31, 256)));
        assert_eq!(far, Err(IommuError::Unsupported));
    }
}

#[test]
fn the_first_fault_interrupts_who_has_asked_for_it() {
    let machine = new_machine(CAP, ECAP);
    let (unit, _domain) = attached(&machine, legacy());
    let fault = || {
        machine.record(0x1000, 5 << 32 | 7);
        sent(&machine)
    };
    let serve = || while unit.next_fault().unwrap().is_some() {};
    assert_eq!(fault(), []);
    serve();
    unit.signal_faults(Some(target(0x31, 7))).unwrap();
    let message = [(0xfee0_7000, 0x31)];
    assert_eq!((fault(), fault()), (message.to_vec(), [].to_vec()));
    serve();
    assert_eq!(fault(), message);
    serve();
    // An error of the queue is one, too.
    machine.unit().raise(fsts::ICE, 0);
    assert_eq!(sent(&machine), message);
    machine.write32(reg::FSTS, fsts::ICE);
    // What came while the message was masked is sent with it, unless it was read before.
    unit.signal_faults(None).unwrap();
    assert_eq!(fault(), []);
    unit.signal_faults(Some(target(0x32, 7))).unwrap();
    assert_eq!(sent(&machine), [(0xfee0_7000, 0x32)]);
    unit.signal_faults(None).unwrap();
    serve();
    assert_eq!(fault(), []);
    serve();
    unit.signal_faults(Some(target(0x32, 7))).unwrap();
    assert_eq!(sent(&machine), []);
}

/// A unit on which [`STREAM`] may ask for pages.
fn asking() -> (VtdMachine, Iommu) {
    let machine = new_machine(CAP | 1 << 56, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    unit.read_page_requests(0).unwrap();
    let (depth, physical) = (4, STREAM.get() as u16);
    let tlb = DeviceTlb { depth, physical, twice: false };
    unit.use_device_tlb(STREAM, tlb, all_memory()).unwrap();
    let domain = Arc::new(unit.first_stage(VtdFirstLevels::Four).unwrap());
    unit.attach_pasid(STREAM, PASID, &domain).unwrap();
    (machine, unit)
}

#[test]
fn the_first_page_request_interrupts_who_has_asked_for_it() {
    let (machine, unit) = asking();
    let ask = || {
        machine.unit().ask(RawPageRequest {
            stream: STREAM,
            pasid: Some(PASID),
            iova: Iova::new(0x7000),
            wants: Permissions::READ,
            kind: RequestKind::Pri { group: GroupId::new(1), place: Place::Last },
        });
        sent(&machine)
    };
    let serve = || {
        let requests = core::iter::from_fn(|| unit.next_page_request().unwrap());
        requests.count()
    };
    assert_eq!((ask(), serve()), ([].to_vec(), 1));
    unit.signal_page_requests(Some(target(0x41, 3))).unwrap();
    let message = [(0xfee0_3000, 0x41)];
    assert_eq!((ask(), ask()), (message.to_vec(), [].to_vec()));
    assert_eq!(serve(), 2);
    assert_eq!((ask(), serve()), (message.to_vec(), 1));
    unit.signal_page_requests(None).unwrap();
    assert_eq!((ask(), serve()), ([].to_vec(), 1));
    // A fault has a message of its own.
    unit.signal_page_requests(Some(target(0x41, 3))).unwrap();
    machine.record(0x1000, 5 << 32 | 7);
    assert_eq!(sent(&machine), []);
}

/// The request comes when the queue has been found empty, and before the unit is told so.
#[test]
fn a_request_that_comes_while_the_reader_ends_is_read_or_interrupts() {
    let (machine, unit) = asking();
    unit.signal_page_requests(Some(target(0x41, 3))).unwrap();
    machine.unit().raise(0, prs::PPR);
    assert_eq!(sent(&machine).len(), 1);
    assert_eq!(unit.next_page_request(), Ok(None));
    assert_eq!(machine.reg32(reg::PRS) & prs::PPR, 0);
    machine.unit().raise(0, prs::PPR);
    assert_eq!(sent(&machine).len(), 1);
}

#[test]
fn a_unit_without_page_requests_has_no_message_for_them() {
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(legacy()).unwrap();
    let refused = unit.signal_page_requests(Some(target(0x41, 3)));
    assert_eq!(refused, Err(IommuError::Unsupported));
}
