//! SMMUv2's faults: `arm_smmu_context_fault` and `arm_smmu_global_fault` of Linux.

use portolan::iommu::FaultReason;
use portolan_hw::smmuv2::fault_reason;
use portolan_spec::smmuv2::bank;
use portolan_spec::smmuv2::global;

use super::fields::{hexadecimal, number, subject, value};
use super::{FaultPart, Line};
use crate::doctor::faults::seen::{Attempt, Kind, Seen, Sender};
use crate::facts::IommuKind;

/// A fault of a context bank, or of a stream without one.
pub(super) fn fault(line: &Line<'_>) -> Option<Seen> {
    let text = line.text;
    if let Some(at) = text.find("Blocked unknown Stream ID ") {
        let word = text.get(at..)?.split("Stream ID ").nth(1)?;
        let stream = hexadecimal(word.split([';', ' ']).next()?)?;
        let sender = Sender::Stream(u32::try_from(stream).ok()?);
        let kind = Kind::Refused(FaultReason::Blocked);
        let unit = subject(text.get(..at)?);
        return Some(line.seen(FaultPart::new(IommuKind::SmmuV2, unit, sender, kind), at));
    }
    let at = text.find("Unhandled context fault: ").or_else(|| text.find("context fault: fsr="))?;
    let (head, tail) = (text.get(..at)?, text.get(at..)?);
    let register = |key| number(tail, key).and_then(|value| u32::try_from(value).ok());
    let status = register("fsr=")?;
    let stream = register("cbfrsynra=").map(|word| Sender::Stream(word & global::GFSYNR1_STREAM));
    let context = value(tail, "cb=").and_then(|word| word.parse().ok()).map(Sender::Bank);
    let sender = stream.or(context).unwrap_or(Sender::Unknown);
    let kind = Kind::Refused(fault_reason(status));
    let mut part = FaultPart::new(IommuKind::SmmuV2, subject(head), sender, kind);
    part.address = number(tail, "iova=");
    part.attempt = register("fsynr=").map(|syndrome| match syndrome & bank::FSYNR0_WRITE {
        0 => Attempt::Read,
        _ => Attempt::Write,
    });
    Some(line.seen(part, at))
}
