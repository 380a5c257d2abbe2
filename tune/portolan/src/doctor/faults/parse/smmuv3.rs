//! SMMUv3's events: `arm_smmu_dump_event` of Linux, four words and since 6.14 their decoded form.

use portolan::iommu::{FaultAccess, FaultReason};
use portolan_hw::smmuv3::decode_event;
use portolan_spec::smmuv3::event::{self, WORDS, kind};

use super::fields::{hexadecimal, number, value};
use super::{FaultPart, Line};
use crate::doctor::faults::lines::Stamp;
use crate::doctor::faults::seen::{Attempt, Kind, Seen, Sender, Unit};
use crate::facts::IommuKind;

const DRIVER: &str = "arm-smmu-v3 ";
const BEGINS: &str = ": event 0x";
const DECODED: &str = ": event: ";

/// Words of an event that were read so far.
pub(super) struct RawEvent {
    unit: String,
    code: u64,
    words: Vec<u64>,
    line: u64,
    stamp: Stamp,
}

impl RawEvent {
    /// The fault of an event whose last lines are missing.
    pub(super) fn cut(self) -> Option<Seen> {
        let mut words = [event::TYPE.at(self.code), 0, 0, 0];
        let is_whole = self.words.len() == WORDS;
        for (word, read) in words.iter_mut().zip(&self.words) {
            *word = *read;
        }
        let record = decode_event(&words);
        let has = |number: usize| self.words.len() > number;
        let attempt = record.access.filter(|_| has(1)).map(|access| match access {
            FaultAccess::Read if event::IND.get(&words) != 0 => Attempt::Execute,
            FaultAccess::Read => Attempt::Read,
            FaultAccess::Write => Attempt::Write,
        });
        let sender = if has(0) { Sender::Stream(record.stream.get()) } else { Sender::Unknown };
        Some(Seen {
            unit: Unit { kind: IommuKind::SmmuV3, name: self.unit },
            sender,
            attempt,
            kind: Kind::Refused(record.reason),
            address: record.iova.filter(|_| has(2)).map(|iova| iova.get()),
            pasid: record.pasid.filter(|_| is_whole).map(|pasid| pasid.get()),
            driver: None,
            stamp: self.stamp,
            line: self.line,
        })
    }
}

/// The unit's name, and what is said of it.
fn spoken<'t>(line: &Line<'t>) -> Option<(usize, &'t str, &'t str)> {
    let at = line.text.find(DRIVER)?;
    let rest = line.text.get(at + DRIVER.len()..)?;
    let (unit, said) = rest.split_once(':')?;
    Some((at, unit, said))
}

/// Reads a line of an event's words: returns the fault that it ends, and if an event begins.
pub(super) fn record(line: &Line<'_>, event: &mut Option<RawEvent>) -> (Option<Seen>, bool) {
    let Some((at, unit, said)) = spoken(line) else {
        return (None, false);
    };
    let begins = line.text.get(at..).and_then(|text| text.split(BEGINS).nth(1));
    if let Some(code) = begins.and_then(|rest| hexadecimal(rest.split_whitespace().next()?)) {
        let cut = event.take().and_then(RawEvent::cut);
        let seen =
            line.seen(FaultPart::new(IommuKind::SmmuV3, unit, Sender::Unknown, Kind::Untold), at);
        let (unit, words) = (unit.to_owned(), Vec::new());
        let stamp = seen.stamp;
        *event = Some(RawEvent { unit, code, words, line: line.number, stamp });
        return (cut, true);
    }
    // Linux 5.3 and earlier print the word as two halves.
    let said: String = said.split_whitespace().collect();
    let word = said.strip_prefix("0x").and_then(hexadecimal);
    let open = event.as_mut().filter(|event| event.unit == unit);
    if let (Some(word), Some(open)) = (word, open) {
        open.words.push(word);
        if open.words.len() == WORDS {
            return (event.take().and_then(RawEvent::cut), false);
        }
    }
    (None, false)
}

/// Adds the decoded form of an event to its words.
pub(super) fn continues(line: &Line<'_>, held: &mut Option<Seen>) -> bool {
    let Some((_, unit, said)) = spoken(line) else {
        return false;
    };
    let of_unit =
        |held: &&mut Seen| (held.unit.kind, held.unit.name.as_str()) == (IommuKind::SmmuV3, unit);
    let Some(held) = held.as_mut().filter(of_unit) else {
        return false;
    };
    if line.text.contains(DECODED) {
        let stream = number(line.text, "sid:").and_then(|sid| u32::try_from(sid).ok());
        if stream.map(Sender::Stream) != Some(held.sender.clone()) {
            return false;
        }
        held.sender = client(line.text).unwrap_or_else(|| held.sender.clone());
        return true;
    }
    // `unpriv data write s1 "Input address caused fault" stag: 0x0`
    if !said.contains(" stag:") {
        return false;
    }
    let words: Vec<&str> = said.split_whitespace().take(4).collect();
    held.attempt = match (words.get(1), words.get(2)) {
        (Some(&"inst"), _) => Some(Attempt::Execute),
        (_, Some(&"read")) => Some(Attempt::Read),
        (_, Some(&"write")) => Some(Attempt::Write),
        _ => held.attempt,
    };
    true
}

/// The device that the kernel names; none if it knows no device of the stream.
fn client(text: &str) -> Option<Sender> {
    let name = value(text, "client:").filter(|name| !name.starts_with('('))?;
    Some(Sender::Named(name.to_owned()))
}

/// An event whose words are missing, by its decoded form.
pub(super) fn alone(line: &Line<'_>) -> Option<Seen> {
    let (at, unit, _) = spoken(line)?;
    let name = line.text.split(DECODED).nth(1)?.split_whitespace().next()?;
    let code = match name {
        "F_TRANSLATION" => kind::TRANSLATION,
        "F_ADDR_SIZE" => kind::ADDR_SIZE,
        "F_ACCESS" => kind::ACCESS,
        "F_PERMISSION" => kind::PERMISSION,
        "C_BAD_STREAMID" => kind::BAD_STREAMID,
        "C_BAD_STE" => kind::BAD_STE,
        "F_STREAM_DISABLED" => kind::STREAM_DISABLED,
        "C_BAD_SUBSTREAMID" => kind::BAD_SUBSTREAMID,
        "C_BAD_CD" => kind::BAD_CD,
        "F_STE_FETCH" => kind::STE_FETCH,
        "F_CD_FETCH" => kind::CD_FETCH,
        "F_VMS_FETCH" => kind::VMS_FETCH,
        _ => 0,
    };
    let reason = decode_event(&[event::TYPE.at(code.into()), 0, 0, 0]).reason;
    let kind = match reason {
        FaultReason::Other { code: 0 } => Kind::Untold,
        reason => Kind::Refused(reason),
    };
    let stream = number(line.text, "sid:").and_then(|sid| u32::try_from(sid).ok());
    let sender = client(line.text).or(stream.map(Sender::Stream)).unwrap_or(Sender::Unknown);
    let mut part = FaultPart::new(IommuKind::SmmuV3, unit, sender, kind);
    part.address = number(line.text, "iova:");
    Some(line.seen(part, at))
}
