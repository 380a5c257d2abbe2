//! Faults in the lines that Linux 5.4 to 7.x and Xen print: VT-d, AMD-Vi, SMMUv2, SMMUv3, RISC-V and virtio-iommu.
//!
//! Formats are those of the kernel's own drivers (`drivers/iommu`), as facts. Codes are decoded as the drivers of
//! `portolan_hw` decode those of a unit. A record that takes several lines (SMMUv3's words and their decoded form,
//! AMD-Vi's of Linux 4.14 to 5.3, Xen's reason) is one fault; if lines of it are missing, so are those facts.

mod amd;
mod fields;
mod others;
mod smmuv2;
mod smmuv3;
mod vtd;

use memchr::memmem::Finder;

use super::lines::{self, Stamp};
use super::seen::{Attempt, Kind, Seen, Sender, Unit};
use crate::facts::IommuKind;

/// Contents of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A fault.
    Fault(Seen),
    /// The kernel left out so many lines about faults of these units.
    LeftOut(IommuKind, u64),
}

/// A part of a fault, before the line's number and time are known.
struct FaultPart {
    unit: Unit,
    sender: Sender,
    attempt: Option<Attempt>,
    kind: Kind,
    address: Option<u64>,
}

impl FaultPart {
    fn new(kind: IommuKind, name: &str, sender: Sender, what: Kind) -> Self {
        let unit = Unit { kind, name: name.to_owned() };
        Self { unit, sender, attempt: None, kind: what, address: None }
    }
}

/// Words of which a line about a fault has one.
const MARKS: [&str; 13] = [
    "Request device [",
    "AMD-Vi: ",
    "IO_PAGE_FAULT ",
    "INVALID_DEVICE_REQUEST ",
    "ontext fault: fsr=",
    "arm-smmu",
    "Blocked unknown Stream ID ",
    " devid: 0x",
    " fault from EP ",
    "callbacks suppressed",
    "VT-d detected ",
    "DMAR: reason ",
    // An object of the journal whose text is an array of bytes.
    "\"MESSAGE\":[",
];

/// A parser of lines, which remembers the record that it is in.
pub(super) struct FaultParser {
    marks: Vec<Finder<'static>>,
    /// A fault whose further lines may follow.
    held: Option<Seen>,
    /// Words of an SMMUv3's event whose line was the last about that unit.
    event: Option<smmuv3::RawEvent>,
}

/// A line about a fault.
struct Line<'l> {
    number: u64,
    text: &'l str,
    /// Time by the journal, if the line was one of its objects.
    stamp: Option<&'l Stamp>,
}

impl Line<'_> {
    /// The fault of `part`, whose message begins at `at`.
    fn seen(&self, part: FaultPart, at: usize) -> Seen {
        let head = self.text.get(..at).unwrap_or_default();
        let FaultPart { unit, sender, attempt, kind, address } = part;
        Seen {
            unit,
            sender,
            attempt,
            kind,
            address,
            pasid: None,
            driver: None,
            stamp: self.stamp.cloned().unwrap_or_else(|| lines::stamp(head)),
            line: self.number,
        }
    }
}

impl FaultParser {
    pub(super) fn new() -> Self {
        let marks = MARKS.iter().map(|mark| Finder::new(mark.as_bytes())).collect();
        Self { marks, held: None, event: None }
    }

    /// Reads a line; gives what it, or the record that ends with it, says to `found`.
    pub(super) fn feed(&mut self, number: u64, line: &[u8], found: &mut impl FnMut(Found)) {
        if !self.marks.iter().any(|mark| mark.find(line).is_some()) {
            return;
        }
        let (text, stamp) = lines::text_of(line);
        let line = Line { number, text: &text, stamp: stamp.as_ref() };
        if let Some(left_out) = left_out(line.text) {
            self.give(found);
            return found(left_out);
        }
        if smmuv3::continues(&line, &mut self.held) || vtd::continues(&line, &mut self.held) {
            return;
        }
        let (done, begun) = smmuv3::record(&line, &mut self.event);
        if done.is_some() || begun {
            self.give(found);
            self.held = done;
            return;
        }
        let mut one = vtd::fault(&line);
        for family in [amd::fault, smmuv2::fault, smmuv3::alone, others::riscv, others::virtio] {
            one = one.or_else(|| family(&line));
        }
        if let Some(one) = one {
            self.give(found);
            self.held = Some(one);
        }
    }

    /// Gives the fault whose record has ended.
    fn give(&mut self, found: &mut impl FnMut(Found)) {
        if let Some(seen) = self.held.take() {
            found(Found::Fault(seen));
        }
    }

    /// Ends with the log; gives what is left.
    pub(super) fn finish(mut self, found: &mut impl FnMut(Found)) {
        let cut = self.event.take().and_then(smmuv3::RawEvent::cut);
        self.give(found);
        if let Some(seen) = cut {
            found(Found::Fault(seen));
        }
    }
}

/// `dmar_fault: 2474 callbacks suppressed`.
fn left_out(text: &str) -> Option<Found> {
    let (head, _) = text.split_once(" callbacks suppressed")?;
    let mut words = head.rsplit(' ');
    let count = words.next()?.parse().ok()?;
    let function = words.next()?.strip_suffix(':')?;
    let kind = match function {
        name if name.starts_with("dmar_") => IommuKind::Vtd,
        name if name.starts_with("amd_iommu") => IommuKind::AmdVi,
        name if name.starts_with("viommu_") => IommuKind::VirtioIommu,
        name if name.starts_with("riscv_iommu") => IommuKind::RiscV,
        "arm_smmu_context_fault" | "arm_smmu_global_fault" => IommuKind::SmmuV2,
        name if name.starts_with("arm_smmu_") => IommuKind::SmmuV3,
        _ => return None,
    };
    Some(Found::LeftOut(kind, count))
}
