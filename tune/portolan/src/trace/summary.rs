//! Contents of a trace, counted while it was read.

use std::collections::BTreeMap;

use serde::Serialize;

use super::before::{MappedPages, OrphanUnmap};
use super::event::{Event, TableEvent, is_of_dma};
use super::line::{Clock, Stamped};
use super::op::DeviceId;
use super::skew::{CpuTimes, EarlyUnmap};
use super::source::RawLine;
use super::understood::Understood;

/// Bad lines kept for the report; all are counted.
const KEPT: usize = 20;
/// Longest excerpt of a bad line.
const EXCERPT: usize = 80;
/// Longest excerpt of a line that is evidence: room for all of an event without lists.
pub(super) const EVIDENCE: usize = 240;
/// Limit of machines that are distinguished.
const MOST_MACHINES: usize = 8;
const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 86_400 * SECOND_NS;
/// Devices that bounce with bytes of their own.
const MOST_BOUNCING: usize = 64;
/// Limit of events with separate names; of others only the number is kept.
const MOST_NAMES: usize = 1024;

/// A line of the trace that shows something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Excerpt {
    /// Its number, from 1.
    pub line: u64,
    /// Its text, without spaces at the ends; `...` replaces the rest of a long text.
    pub text: String,
}

impl Excerpt {
    /// Makes an excerpt of line `line` with the text `bytes`.
    pub fn of(line: u64, bytes: &[u8]) -> Self {
        let trimmed = bytes.trim_ascii();
        let kept = trimmed.get(..EVIDENCE).unwrap_or(trimmed);
        let mut text = kept.escape_ascii().to_string();
        if kept.len() < trimmed.len() {
            text.push_str("...");
        }
        Self { line, text }
    }
}

/// A line that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: u64,
    /// Fault of the line.
    pub reason: String,
    /// Its beginning.
    pub excerpt: String,
}

/// Invalidations that the traced kernel itself queued (VT-d).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelInvalidations {
    /// Page-selective ones by address mask.
    pub page_masks: BTreeMap<u8, u64>,
    /// Domain-selective.
    pub domain: u64,
    /// Global.
    pub global: u64,
    /// Device TLB invalidations.
    pub device: u64,
    /// Page-selective ones that directly follow an `iommu:unmap` on their CPU, one for each.
    pub pages_after_unmap: u64,
    /// Page-selective ones that directly follow an `iommu:map` on their CPU, one for each.
    pub pages_after_map: u64,
    /// The first page-selective one.
    pub first_page: Option<Excerpt>,
    /// The first domain-selective one.
    pub first_domain: Option<Excerpt>,
    /// The first one for a device TLB.
    pub first_device: Option<Excerpt>,
}

impl KernelInvalidations {
    /// Number of all that are of the unit's own caches.
    pub(crate) fn total(&self) -> u64 {
        let pages = self.page_masks.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
        pages.saturating_add(self.domain).saturating_add(self.global)
    }

    /// Notes which event of a table was the last on the CPU of a descriptor that begins with `first`.
    pub(super) fn note_after(&mut self, table: Option<TableEvent>, first: u64) {
        let pages = matches!((first & 0xf, (first >> 4) & 0b11), (2 | 6, 3));
        match table.filter(|_| pages) {
            Some(TableEvent::Map) => self.pages_after_map += 1,
            Some(TableEvent::Unmap) => self.pages_after_unmap += 1,
            None => {}
        }
    }

    /// Counts a descriptor by its type and granularity (VT-d, 6.5.2).
    fn note(&mut self, raw: &RawLine<'_>, first: u64, second: u64) {
        let shown = match (first & 0xf, (first >> 4) & 0b11) {
            (2, 1) => {
                self.global += 1;
                return;
            }
            (2 | 6, 2) => {
                self.domain += 1;
                &mut self.first_domain
            }
            (2 | 6, 3) => {
                *self.page_masks.entry((second & 0x3f) as u8).or_default() += 1;
                &mut self.first_page
            }
            (3 | 8, _) => {
                self.device += 1;
                &mut self.first_device
            }
            _ => return,
        };
        shown.get_or_insert_with(|| Excerpt::of(raw.number, raw.bytes));
    }
}

/// Completeness of a recording by `portolan record`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecorderStatus {
    /// Another program wrote it.
    #[default]
    Other,
    /// `portolan record` began it and has not ended it.
    Begun,
    /// `portolan record` ended it.
    Ended,
}

/// Counts of a whole trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Lines.
    pub lines: u64,
    /// Its recorder.
    pub recorder: RecorderStatus,
    /// Blank lines, comments and reports of lost events.
    pub header_lines: u64,
    /// Events.
    pub events: u64,
    /// Events by name.
    pub events_by_name: BTreeMap<String, u64>,
    /// The first of each.
    pub first_by_name: BTreeMap<String, Excerpt>,
    /// Streaming map operations.
    pub maps: u64,
    /// Streaming unmap operations that found their map.
    pub unmaps: u64,
    /// Coherent allocations.
    pub coherent_allocs: u64,
    /// Coherent allocations given back.
    pub coherent_frees: u64,
    /// Sum of the sizes of the streaming maps.
    pub bytes_mapped: u64,
    /// Sum of the sizes of the coherent allocations.
    pub coherent_bytes: u64,
    /// Unmaps and frees without a map.
    pub orphan_unmaps: u64,
    /// Line numbers of the first of them.
    pub orphan_lines: Vec<u64>,
    /// Unmaps and frees without a map by device, as far as their events name one.
    #[serde(skip)]
    pub orphans_by_device: Vec<u64>,
    /// Streaming maps still mapped at the end.
    pub left_mapped: u64,
    /// Most streaming mappings live at once.
    pub max_live: u64,
    /// Events that the recorder lost.
    pub lost_events: u64,
    /// Reports of losses without the number of lost events; each is counted as one.
    pub lost_unknown: u64,
    /// Lines that say so, the first of them.
    pub lost_lines: Vec<u64>,
    /// Lines that could not be used.
    pub bad_lines: u64,
    /// The first of them.
    pub first_bad: Vec<BadLine>,
    /// Events with a time before their predecessor's.
    pub out_of_order: u64,
    /// Lines of the first of them.
    pub out_of_order_lines: Vec<u64>,
    /// Largest delay of a CPU behind another, in nanoseconds, if its own times never go back.
    pub skew_ns: u64,
    /// Unmaps with an earlier time than their map, recorded by another CPU.
    pub early_unmaps: u64,
    /// Lines of the first of them.
    pub early_unmap_lines: Vec<u64>,
    /// Largest time by which one of them is early, in nanoseconds.
    pub early_ns: u64,
    /// The coarsest unit of its time stamps.
    pub clock: Clock,
    /// Time stamps a day and more after the one before, or a second and more before it.
    pub clock_jumps: u64,
    /// Lines of the first of them.
    pub clock_jump_lines: Vec<u64>,
    /// Recordings with facts of their machine.
    pub recordings: u64,
    /// Machines that lines name before the task, as in output of `trace-cmd report` for several files.
    pub machines: Vec<String>,
    /// Scatter lists that were printed only in part.
    pub truncated_lists: u64,
    /// Scatter lists whose pieces had to be guessed from the total.
    pub inexact_lists: u64,
    /// Mappings that the kernel refused.
    pub failed_maps: u64,
    /// The first of them.
    pub first_failed: Option<Excerpt>,
    /// Maps beyond the limit of live ones, which are not replayed.
    pub maps_beyond: u64,
    /// Runs of pieces that are mapped at their memory's own addresses and stay there: firmware's reservations, no
    /// operations.
    pub direct_maps: u64,
    /// Unmaps that took a part of a mapping out, which lives until the rest is.
    pub partial_unmaps: u64,
    /// Unmaps of an address that several domains had mapped: the mapping that came first is taken for theirs.
    pub ambiguous_unmaps: u64,
    /// Operations without a device, attributed to the only device with mappings in a table.
    pub inferred_devices: u64,
    /// Share of the trace's words on DMA that was understood.
    pub understood: Understood,
    /// Bytes bounced by device.
    pub bounced_by_device: BTreeMap<String, u64>,
    /// Bytes bounced.
    pub bounced_bytes: u64,
    /// Names of the devices, in order of appearance.
    pub devices: Vec<String>,
    /// Highest CPU number plus one.
    pub cpus: u16,
    /// Time of the first event.
    pub first_ns: Option<u64>,
    /// Latest time of any event.
    pub last_ns: u64,
    /// After which line the stream broke off.
    pub cut_after_line: Option<u64>,
    /// Commands that the traced kernel queued.
    pub recorded: KernelInvalidations,
    #[serde(skip)]
    pub(super) mapped: MappedPages,
    #[serde(skip)]
    names: Vec<NamedEvents>,
    #[serde(skip)]
    previous_ns: Option<u64>,
    #[serde(skip)]
    cpu_times: CpuTimes,
}

/// Events of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedEvents {
    name: Box<[u8]>,
    count: u64,
    first: Excerpt,
}

fn keep(lines: &mut Vec<u64>, line: u64) {
    if lines.len() < KEPT {
        lines.push(line);
    }
}

impl Summary {
    pub(super) fn note_bad(&mut self, line: u64, reason: &str, bytes: &[u8]) {
        self.bad_lines += 1;
        if self.first_bad.len() < KEPT {
            let cut = &bytes[..bytes.len().min(EXCERPT)];
            let excerpt = cut.escape_ascii().to_string().chars().take(EXCERPT).collect();
            self.first_bad.push(BadLine { line, reason: reason.to_owned(), excerpt });
        }
    }

    /// Counts an unmap without a map.
    pub(super) fn note_orphan(&mut self, line: u64, orphan: OrphanUnmap) {
        self.understood.miss(orphan.events, orphan.bytes);
        self.mapped.note_orphan(orphan);
        self.orphan_unmaps += 1;
        if self.orphan_lines.len() < KEPT {
            self.orphan_lines.push(line);
        }
    }

    /// Counts an unmap without a map as that of `device`, which its event names.
    pub(super) fn note_orphan_of(&mut self, device: DeviceId) {
        let index = device.0 as usize;
        if self.orphans_by_device.len() <= index {
            self.orphans_by_device.resize(index + 1, 0);
        }
        self.orphans_by_device[index] += 1;
    }

    pub(super) fn note_bounced(&mut self, device: &[u8], bytes: u64) {
        self.bounced_bytes = self.bounced_bytes.saturating_add(bytes);
        let name = device.escape_ascii().to_string();
        let name = match self.bounced_by_device.len() < MOST_BOUNCING {
            true => name,
            false if self.bounced_by_device.contains_key(&name) => name,
            false => "(others)".to_owned(),
        };
        let sum = self.bounced_by_device.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }

    pub(super) fn note_early(&mut self, unmap: EarlyUnmap) {
        self.early_unmaps += 1;
        self.early_ns = self.early_ns.max(unmap.early_ns);
        keep(&mut self.early_unmap_lines, unmap.line);
    }

    pub(super) fn note_lost(&mut self, line: u64, events: u64) {
        self.lost_events = self.lost_events.saturating_add(events);
        if events > 0 && self.lost_lines.len() < KEPT {
            self.lost_lines.push(line);
        }
    }

    pub(super) fn note_event(
        &mut self,
        raw: &RawLine<'_>,
        stamped: &Stamped<'_>,
        event: &Event<'_>,
    ) {
        let line = raw.number;
        self.events += 1;
        if is_of_dma(stamped.name) {
            self.understood.note_read();
        }
        let mut names = self.names.iter_mut();
        if let Some(known) = names.find(|known| *known.name == *stamped.name) {
            known.count += 1;
        } else if self.names.len() < MOST_NAMES {
            self.names.push(NamedEvents {
                name: stamped.name.into(),
                count: 1,
                first: Excerpt::of(line, raw.bytes),
            });
        }
        match event {
            Event::Failed => {
                self.failed_maps += 1;
                let failed = &mut self.first_failed;
                failed.get_or_insert_with(|| Excerpt::of(line, raw.bytes));
            }
            Event::Queued { first, second } => self.recorded.note(raw, *first, *second),
            _ => {}
        }
        self.note_machine(raw.bytes);
        if matches!(event, Event::TimerRan(_)) {
            // They come while nothing is mapped, too, and are no part of the load.
            return;
        }
        self.note_time(line, stamped);
        self.cpus = self.cpus.max(stamped.cpu.saturating_add(1));
    }

    fn note_time(&mut self, line: u64, stamped: &Stamped<'_>) {
        let now = stamped.time_ns;
        let goes_forward = self.cpu_times.note(stamped.cpu, now);
        if now < self.last_ns {
            self.out_of_order += 1;
            if goes_forward {
                self.skew_ns = self.skew_ns.max(self.last_ns - now);
            }
            keep(&mut self.out_of_order_lines, line);
        }
        self.clock = self.clock.max(stamped.clock);
        let before = self.previous_ns.replace(now).unwrap_or(now);
        let jumps = now > before.saturating_add(DAY_NS) || now.saturating_add(SECOND_NS) < before;
        if jumps && self.clock != Clock::Ticks {
            self.clock_jumps += 1;
            keep(&mut self.clock_jump_lines, line);
        }
        self.first_ns.get_or_insert(now);
        self.last_ns = self.last_ns.max(now);
    }

    /// Notes the machine that a line begins with: `guest: fio-77 [000] ...`.
    fn note_machine(&mut self, line: &[u8]) {
        let line = line.trim_ascii_start();
        let word = memchr::memchr(b' ', line).map_or(line, |end| &line[..end]);
        let Some(name) = word.strip_suffix(b":").filter(|name| !name.is_empty()) else {
            return;
        };
        // A time ends like that, too, where a tool prints no task.
        let is_name = !name[0].is_ascii_digit() && line.contains(&b'[');
        let known = |known: &String| known.as_bytes() == name;
        if is_name && self.machines.len() < MOST_MACHINES && !self.machines.iter().any(known) {
            self.machines.push(name.escape_ascii().to_string());
        }
    }

    pub(super) fn finish(&mut self) {
        self.mapped.settle(self.max_live, &mut self.understood);
        for NamedEvents { name, count, first } in self.names.drain(..) {
            let name = name.escape_ascii().to_string();
            *self.events_by_name.entry(name.clone()).or_default() += count;
            self.first_by_name.entry(name).or_insert(first);
        }
    }
}
