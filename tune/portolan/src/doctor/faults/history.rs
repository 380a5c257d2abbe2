//! Mappings of a recording at the addresses of faults: the last one before the fault, and the unmap that ended it.

use std::collections::{BTreeMap, HashMap};

use portolan::dma::Direction;

use super::fold::{Folded, PAGE};
use crate::trace::{Op, OpKind, Reader};

/// Nanoseconds by which a fault may be outside of a recording whose clock is the log's.
const SLACK_NS: u64 = 60_000_000_000;
/// Name of the device of mappings that only events of tables show, as user space's.
const UNNAMED: &str = "iommu";
/// Characters of a task's name.
const LONGEST_TASK: usize = 64;

/// Time and place of a map or an unmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedMoment {
    pub(super) line: u64,
    pub(super) time_ns: u64,
    /// The task that ran, with its number.
    pub(super) task: Option<String>,
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    id: u64,
    pub(super) device: String,
    pub(super) first: u64,
    pub(super) bytes: u64,
    pub(super) direction: Option<Direction>,
    pub(super) mapped: RecordedMoment,
    pub(super) unmapped: Option<RecordedMoment>,
}

/// The mapping of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) mapping: Mapping,
    /// Time of the fault.
    pub(super) fault_ns: Option<u64>,
    /// The times of the log and of the recording can be compared.
    pub(super) is_one_clock: bool,
}

impl Recorded {
    /// Tells if the recording names the mapping's device.
    pub(super) fn has_device(&self) -> bool {
        self.mapping.device != UNNAMED
    }

    /// Tells if the mapping had ended when the fault came; none if the times do not tell.
    pub(super) fn had_ended(&self) -> Option<bool> {
        let Some(end) = &self.mapping.unmapped else {
            return Some(false);
        };
        self.fault_ns.filter(|_| self.is_one_clock).map(|fault| end.time_ns <= fault)
    }
}

/// A page of a fault.
struct Wanted {
    /// Index of the fault.
    fault: usize,
    device: Option<String>,
    time_ns: Option<u64>,
    /// The last mapping up to the fault's time.
    before: Option<Mapping>,
    /// The last mapping.
    last: Option<Mapping>,
}

/// Mappings that a recording has for faults.
#[derive(Debug, Default)]
pub(super) struct History {
    found: BTreeMap<usize, Recorded>,
    /// Names of devices that have mappings in it.
    devices: Vec<String>,
}

impl History {
    /// Reads `recording` for the pages of `faults`; `devices` are the faults' names of PCI functions.
    pub(super) fn read(
        recording: &mut Reader,
        faults: &[Folded],
        devices: &[Option<String>],
    ) -> Self {
        let mut wanted = Vec::new();
        let mut at: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (number, (fault, device)) in faults.iter().zip(devices).enumerate() {
            for (page, micros) in &fault.pages {
                at.entry(*page).or_default().push(wanted.len());
                let time_ns = micros.and_then(|micros| micros.checked_mul(1000));
                let device = device.clone();
                wanted.push(Wanted { fault: number, device, time_ns, before: None, last: None });
            }
        }
        let mut live: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut times: Option<(u64, u64)> = None;
        // The names of new devices are in the summary only while no operation is borrowed.
        while let Some(event) = next(recording) {
            let time = event.moment.time_ns;
            let (first, last) = times.unwrap_or((time, time));
            times = Some((first.min(time), last.max(time)));
            let name = name_of(recording, event.device);
            match event.kind {
                Noted::Map { id, first, bytes, direction } => {
                    let end = first.saturating_add(bytes.saturating_sub(1));
                    let hits: Vec<usize> = at
                        .range(first / PAGE * PAGE..=end)
                        .flat_map(|(_, hits)| hits.iter().copied())
                        .filter(|hit| is_for(wanted.get(*hit), &name))
                        .collect();
                    let (mapped, device) = (event.moment, name);
                    let unmapped = None;
                    let mapping = Mapping { id, device, first, bytes, direction, mapped, unmapped };
                    for hit in &hits {
                        note_map(wanted.get_mut(*hit), &mapping);
                    }
                    if !hits.is_empty() {
                        live.insert(id, hits);
                    }
                }
                Noted::Unmap { id } => {
                    for hit in live.remove(&id).unwrap_or_default() {
                        note_unmap(wanted.get_mut(hit), id, &event.moment);
                    }
                }
            }
        }
        Self { found: chosen(wanted, times), devices: recording.summary().devices.clone() }
    }

    /// The mapping of the fault with this number.
    pub(super) fn of(&self, fault: usize) -> Option<&Recorded> {
        self.found.get(&fault)
    }

    /// Tells if the recording has mappings of the device.
    pub(super) fn knows(&self, device: &str) -> bool {
        self.devices.iter().any(|known| known == device)
    }
}

/// A map or an unmap, apart from the reader.
struct NotedOp {
    device: u32,
    moment: RecordedMoment,
    kind: Noted,
}

enum Noted {
    Map { id: u64, first: u64, bytes: u64, direction: Option<Direction> },
    Unmap { id: u64 },
}

fn next(recording: &mut Reader) -> Option<NotedOp> {
    let op = recording.next_op()?;
    let kind = match op.kind {
        OpKind::Map { id, direction, bytes, dma, .. } => {
            Noted::Map { id: id.0, first: dma, bytes, direction }
        }
        OpKind::Unmap { id, .. } => Noted::Unmap { id: id.0 },
    };
    let moment = RecordedMoment { line: op.line, time_ns: op.time_ns, task: task(&op) };
    Some(NotedOp { device: op.device.0, moment, kind })
}

/// Name and number of the task, as the line begins with them.
fn task(op: &Op<'_>) -> Option<String> {
    let end = memchr::memchr(b'[', op.text)?;
    let name = String::from_utf8_lossy(op.text.get(..end)?);
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then(|| name.chars().take(LONGEST_TASK).collect())
}

fn name_of(recording: &Reader, device: u32) -> String {
    recording.summary().devices.get(device as usize).cloned().unwrap_or_default()
}

/// Tells if a mapping of `device` may be that of the fault.
fn is_for(wanted: Option<&Wanted>, device: &str) -> bool {
    device == UNNAMED || wanted.and_then(|wanted| wanted.device.as_deref()) == Some(device)
}

fn note_map(wanted: Option<&mut Wanted>, mapping: &Mapping) {
    let Some(wanted) = wanted else { return };
    if wanted.time_ns.is_none_or(|time| mapping.mapped.time_ns <= time) {
        wanted.before = Some(mapping.clone());
    }
    wanted.last = Some(mapping.clone());
}

fn note_unmap(wanted: Option<&mut Wanted>, id: u64, end: &RecordedMoment) {
    let Some(wanted) = wanted else { return };
    for one in [&mut wanted.before, &mut wanted.last].into_iter().flatten() {
        if one.id == id {
            one.unmapped = Some(end.clone());
        }
    }
}

/// One mapping for each fault: that of its first page with one.
fn chosen(wanted: Vec<Wanted>, times: Option<(u64, u64)>) -> BTreeMap<usize, Recorded> {
    let mut found = BTreeMap::new();
    for one in wanted {
        let is_one_clock = one.time_ns.zip(times).is_some_and(|(time, (first, last))| {
            time.saturating_add(SLACK_NS) >= first && time <= last.saturating_add(SLACK_NS)
        });
        let before = one.before.filter(|_| is_one_clock);
        if let Some(mapping) = before.or(one.last) {
            let recorded = Recorded { mapping, fault_ns: one.time_ns, is_one_clock };
            found.entry(one.fault).or_insert(recorded);
        }
    }
    found
}
