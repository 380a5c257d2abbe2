//! VT-d's faults: `dmar_fault_do_one` of Linux, `iommu_page_fault_do_one` of Xen.

use portolan::iommu::FaultReason;
use portolan_hw::vtd::decode_fault;
use portolan_spec::vtd::record::{fault, reason};

use super::fields::{function, hexadecimal, number, value};
use super::{FaultPart, Line};
use crate::doctor::faults::seen::{Attempt, Kind, Seen, Sender};
use crate::facts::IommuKind;

/// Mark of a record that has no reason in its line.
const AWAITED: Kind = Kind::Untold;

/// A fault, or an error of the queue that a device brought about.
pub(super) fn fault(line: &Line<'_>) -> Option<Seen> {
    let text = line.text;
    if let Some(at) = text.find("VT-d detected ") {
        return queue(line, at);
    }
    let at = text.find("Request device [")?;
    let (head, tail) = (text.get(..at)?, text.get(at..)?);
    if !head.contains("DMAR") {
        return None;
    }
    let what = head.rsplit('[').next()?.split(']').next()?;
    let sender = function(tail.split('[').nth(1)?.split(']').next()?)?;
    let (attempt, mut pasid) = match what {
        "INTR-REMAP" => (Some(Attempt::Interrupt), None),
        what if what.starts_with("DMA Read") => (Some(Attempt::Read), number(what, "PASID")),
        what if what.starts_with("DMA Write") => (Some(Attempt::Write), number(what, "PASID")),
        _ => return None,
    };
    pasid = pasid.or_else(|| number(tail, "PASID")).filter(|pasid| *pasid < 1 << 20);
    let address = number(tail, "fault addr");
    let index = number(tail, "fault index");
    let code = tail.split("[fault reason ").nth(1).and_then(|rest| code(rest.split(']').next()?));
    let kind = match code {
        Some(code) => kind(code, index.unwrap_or(0)),
        None => AWAITED,
    };
    let mut part = FaultPart::new(IommuKind::Vtd, "", sender, kind);
    part.attempt = attempt;
    part.address = address;
    let mut seen = line.seen(part, at);
    seen.pasid = pasid.map(|pasid| pasid as u32);
    Some(seen)
}

/// Adds the reason of Xen's second line, or of Linux before 4.9, to the fault that waits for it.
pub(super) fn continues(line: &Line<'_>, held: &mut Option<Seen>) -> bool {
    let Some(held) = held.as_mut().filter(|held| held.unit.kind == IommuKind::Vtd) else {
        return false;
    };
    let digits = value(line.text, "DMAR: reason").filter(|_| held.kind == AWAITED);
    let Some(code) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
        return false;
    };
    held.kind = kind(code, 0);
    true
}

/// The reason's code: hexadecimal since Linux 5.15, decimal before.
fn code(word: &str) -> Option<u8> {
    match word.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// The kind of a fault, by the driver's decoder.
fn kind(code: u8, index: u64) -> Kind {
    // The tables have one code for a page that is absent and one that is forbidden.
    let is_both = matches!(code, reason::READ | reason::WRITE | reason::SECOND_PERMISSION);
    let low = fault::INDEX.at(index & 0xffff);
    let decoded = decode_fault(low, fault::REASON.at(code.into())).reason;
    match decoded {
        FaultReason::Permission if is_both => Kind::AbsentOrForbidden,
        reason => Kind::Refused(reason),
    }
}

/// `VT-d detected Invalidation Time-out Error: SID 100`.
fn queue(line: &Line<'_>, at: usize) -> Option<Seen> {
    let tail = line.text.get(at..)?;
    let part = if tail.contains("Time-out Error") {
        let sid = tail.split("SID ").nth(1)?.split_whitespace().next().and_then(hexadecimal)?;
        let requester = portolan::addr::RequesterId::new(u16::try_from(sid).ok()?);
        let segment = portolan::addr::PciSegment::new(0);
        let function = portolan::addr::PciFunction { segment, requester };
        let sender = Sender::Pci { function, has_segment: false };
        FaultPart::new(IommuKind::Vtd, "", sender, Kind::Silent)
    } else {
        FaultPart::new(IommuKind::Vtd, "", Sender::Unit, Kind::BadCommand)
    };
    Some(line.seen(part, at))
}
