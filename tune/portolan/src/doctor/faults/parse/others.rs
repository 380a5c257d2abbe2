//! Faults of the RISC-V IOMMU (`riscv_iommu_fault` of Linux) and of virtio-iommu (`viommu_fault_handler`).

use portolan::iommu::FaultReason;
use portolan_hw::riscv::decode_fault;
use portolan_spec::riscv::fault::{self, cause};

use super::fields::{hexadecimal, number, subject};
use super::{FaultPart, Line};
use crate::doctor::faults::seen::{Attempt, Kind, Seen, Sender};
use crate::facts::IommuKind;

/// `Fault 15 devid: 0x10 iotval: 82d00000 iotval2: 0`.
pub(super) fn riscv(line: &Line<'_>) -> Option<Seen> {
    let text = line.text;
    let at = text.find("Fault ")?;
    let (head, tail) = (text.get(..at)?, text.get(at..)?);
    let mut words = tail.split_whitespace();
    let code: u64 = words.nth(1)?.parse().ok()?;
    if words.next() != Some("devid:") {
        return None;
    }
    let device = number(tail, "devid:")?;
    let address = number(tail, "iotval:");
    let word = fault::CAUSE.at(code) | fault::DID.at(device);
    let record = decode_fault([word, 0, address.unwrap_or(0), 0]);
    let sender = Sender::Stream(record.stream.get());
    let mut part =
        FaultPart::new(IommuKind::RiscV, subject(head), sender, Kind::Refused(record.reason));
    part.attempt = riscv_attempt(code);
    // Of the others the value belongs to the cause, and is no address of the device.
    let is_access =
        code < cause::OFF || matches!(code, cause::OFF | cause::NO_CONTEXT | cause::DISALLOWED);
    part.address = address.filter(|_| is_access);
    Some(line.seen(part, at))
}

/// The request, by a cause that only one kind of request has.
fn riscv_attempt(code: u64) -> Option<Attempt> {
    let kinds = [Attempt::Execute, Attempt::Read, Attempt::Write];
    for causes in [cause::ACCESS, cause::PAGE, cause::GUEST_PAGE] {
        let of = causes.iter().position(|known| *known == code);
        if let Some(kind) = of.and_then(|of| kinds.get(of)) {
            return Some(*kind);
        }
    }
    let is_message = cause::MESSAGE.contains(&code) || code == cause::MESSAGE_FILE;
    is_message.then_some(Attempt::Interrupt)
}

/// `virtio_iommu virtio0: page fault from EP 32 at 0x103231000 [W]`.
pub(super) fn virtio(line: &Line<'_>) -> Option<Seen> {
    let text = line.text;
    let at = text.find(" fault from EP ")?;
    let (head, tail) = (text.get(..at)?, text.get(at..)?);
    let (head, why) = head.rsplit_once(' ')?;
    let kind = match why {
        "page" => Kind::AbsentOrForbidden,
        "domain" => Kind::Refused(FaultReason::Blocked),
        _ => Kind::Untold,
    };
    let mut words = tail.split_whitespace().skip(3);
    let endpoint = words.next()?.parse().ok()?;
    let mut part =
        FaultPart::new(IommuKind::VirtioIommu, subject(head), Sender::Endpoint(endpoint), kind);
    if words.next() == Some("at") {
        part.address = words.next().and_then(hexadecimal);
    }
    part.attempt = match words.next() {
        Some(flags) if flags.contains('X') => Some(Attempt::Execute),
        Some(flags) if flags.contains('W') => Some(Attempt::Write),
        Some(flags) if flags.contains('R') => Some(Attempt::Read),
        _ => None,
    };
    Some(line.seen(part, at))
}
