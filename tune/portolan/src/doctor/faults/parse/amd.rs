//! AMD-Vi's events: `iommu_print_event` and `amd_iommu_report_page_fault` of Linux.

use portolan::iommu::FaultReason;
use portolan_hw::amd::decode_event;
use portolan_spec::amd::event::{self, code};

use super::fields::{driver_and_function, function, number, subject, value};
use super::{FaultPart, Line};
use crate::doctor::faults::seen::{Attempt, Kind, Seen, Sender};
use crate::facts::IommuKind;

/// Bit of an event's first word that the lowest of the printed flags is.
const FLAGS_LSB: u32 = 48;
/// Bits that are printed.
const FLAGS: u64 = 0xfff;

/// An event's name, and its code or kind.
enum EventName {
    /// One of an access, which the driver decodes.
    Coded(u64),
    Plain(Kind),
}

const NAMES: [(&str, EventName); 10] = [
    ("IO_PAGE_FAULT", EventName::Coded(code::PAGE_FAULT)),
    ("ILLEGAL_DEV_TABLE_ENTRY", EventName::Coded(code::ILLEGAL_ENTRY)),
    ("DEV_TAB_HARDWARE_ERROR", EventName::Coded(code::DEVICE_TABLE)),
    ("PAGE_TAB_HARDWARE_ERROR", EventName::Coded(code::PAGE_TABLE)),
    ("ILLEGAL_COMMAND_ERROR", EventName::Plain(Kind::BadCommand)),
    ("COMMAND_HARDWARE_ERROR", EventName::Plain(Kind::BadCommand)),
    ("IOTLB_INV_TIMEOUT", EventName::Plain(Kind::Silent)),
    ("INVALID_DEVICE_REQUEST", EventName::Plain(Kind::BadRequest)),
    ("INVALID_PPR_REQUEST", EventName::Plain(Kind::BadRequest)),
    // The reverse map of memory encryption (SEV-SNP) does not let it through.
    ("RMP_PAGE_FAULT", EventName::Plain(Kind::Refused(FaultReason::Permission))),
];

/// An event.
pub(super) fn fault(line: &Line<'_>) -> Option<Seen> {
    let text = line.text;
    if let Some(at) = text.find("AMD-Vi: Completion-Wait loop timed out") {
        let part = FaultPart::new(IommuKind::AmdVi, "", Sender::Unit, Kind::Stuck);
        return Some(line.seen(part, at));
    }
    let find = |(name, named): &'static (&str, EventName)| Some((text.find(name)?, named));
    let (at, named) = NAMES.iter().find_map(find)?;
    let (head, tail) = (text.get(..at)?, text.get(at..)?);
    // Another driver's words: the kernel's own have an address.
    let address = number(tail, "address=")?;
    let start = head.find("AMD-Vi:").unwrap_or(at);
    let owner = head.get(..start).unwrap_or_default();
    let spoken = driver_and_function(owner);
    let sender = value(tail, "device=").and_then(function);
    let sender = sender.or_else(|| spoken.clone().map(|(_, sender)| sender));
    let unit = Some(subject(owner)).filter(|name| name.starts_with("ivhd")).unwrap_or_default();
    let flags = number(tail, "flags=").unwrap_or(0) & FLAGS;
    let mut part = match named {
        EventName::Coded(code) => {
            let words = [event::CODE.at(*code) | flags << FLAGS_LSB, address];
            let record = decode_event(words);
            let sender = sender.unwrap_or(Sender::Unknown);
            let reason = Kind::Refused(record.reason);
            let mut part = FaultPart::new(IommuKind::AmdVi, unit, sender, reason);
            part.attempt = attempt(words[0], *code);
            if part.attempt == Some(Attempt::Interrupt) && address == 0 {
                // No message goes there: the event of any access has this flag and no address on QEMU 11.1.
                (part.attempt, part.kind) = (None, Kind::Untold);
            }
            part
        }
        EventName::Plain(kind) => {
            let sender = sender.unwrap_or(Sender::Unit);
            FaultPart::new(IommuKind::AmdVi, unit, sender, *kind)
        }
    };
    // Of the others it is the address of a command.
    let has_address = !matches!(part.kind, Kind::Silent | Kind::BadCommand | Kind::Untold);
    part.address = has_address.then_some(address);
    let mut seen = line.seen(part, start);
    seen.driver = spoken.map(|(driver, _)| driver.to_owned());
    Some(seen)
}

/// The request; the flag of writes counts only where the entry is present (2.5.3).
fn attempt(low: u64, of: u64) -> Option<Attempt> {
    if of != code::PAGE_FAULT {
        return None;
    }
    match (event::INTERRUPT.of(low), event::PRESENT.of(low), event::WRITE.of(low)) {
        (1, _, _) => Some(Attempt::Interrupt),
        (_, 1, 1) => Some(Attempt::Write),
        (_, 1, _) => Some(Attempt::Read),
        _ => None,
    }
}
