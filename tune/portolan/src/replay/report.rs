//! Report of a replay, as data: the keys of `portolan replay --json`.
//!
//! Times are microseconds of virtual time. All counters can be recomputed from the trace alone but
//! for the cache counters and the table pages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cost::MappingCost;
use super::fit::Choice;
use super::recorded::RecordedTimeline;
use super::sent::{Predicted, Sent};
use super::setting::Setting;
use super::shape::TraceShape;
use super::situation::Situation;
use super::timeline::Timeline;
use crate::advice::Advice;
use crate::counts::{Exposed, Invalidations};
use crate::linux::LinuxReport;
use crate::trace::{Clock, UnderstoodPct};

/// The whole result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Contents of the trace.
    pub trace: TraceReport,
    /// Shape of the trace under any policy, with the lines that show it.
    pub shape: TraceShape,
    /// Name of the machine profile.
    pub machine: String,
    /// Choice of that machine, if the facts in the trace chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Choice>,
    /// One entry for each policy, in the order on the command line.
    pub policies: Vec<PolicyReport>,
    /// The machine's default policies, as `explain` and `scale` say them.
    pub defaults: Advice,
    /// Commands that Linux would have submitted, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux: Option<LinuxReport>,
    /// Policy of the traced system, and the evidence for it.
    pub situation: Situation,
    /// The recorded system over time; left out where many traces are added up.
    #[serde(skip_serializing_if = "RecordedTimeline::is_left_out")]
    pub recorded: RecordedTimeline,
    /// Commands that its kernel sent, where the trace has events of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
    /// Commands that it would send under each policy by Linux's rules, on machines whose rules are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
    /// Cost of mapping for the traced Linux, now and then; nothing where nothing is mapped, or the trace was not
    /// understood.
    pub cost: Option<MappingCost>,
    /// Settings of Linux that would improve it, the surest gain first; none for a trace that was not understood.
    pub advice: Vec<Setting>,
    /// Findings from the numbers, in sentences.
    pub findings: Vec<String>,
    /// Warnings about the trace, as printed on standard error.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// Contents of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceReport {
    /// Its file, or another name for its origin.
    pub source: String,
    /// Events of any kind that were read.
    pub events: u64,
    /// Share of the trace's words on DMA that was read, claimed and paired.
    pub understood: UnderstoodPct,
    /// Streaming map operations, one for a whole scatter list.
    pub maps: u64,
    /// Streaming unmap operations that found their map.
    pub unmaps: u64,
    /// Sum of the sizes of the streaming map operations.
    pub bytes_mapped: u64,
    /// Unmaps whose map is not in the trace.
    pub orphan_unmaps: u64,
    /// Events that the kernel reported as lost.
    pub lost_events: u64,
    /// Lines that could not be read.
    pub bad_lines: u64,
    /// Coherent allocations.
    pub coherent_allocs: u64,
    /// Coherent allocations given back.
    pub coherent_frees: u64,
    /// Bytes that the traced kernel bounced.
    pub bounced_bytes: u64,
    /// Bounced bytes by device.
    pub bounced_by_device: BTreeMap<String, u64>,
    /// Operations still mapped where the trace ends.
    pub left_mapped: u64,
    /// Events with an earlier time than the one before.
    pub out_of_order: u64,
    /// Unmaps with an earlier time than their map, recorded by another CPU whose clock differs.
    pub early_unmaps: u64,
    /// Unit of its times; that of `ticks` is unknown.
    pub clock: Clock,
    /// Times a day and more after the one before, or a second and more before it.
    pub clock_jumps: u64,
    /// Scatter lists that the trace prints only in part.
    pub truncated_lists: u64,
    /// Scatter lists whose pieces had to be guessed.
    pub inexact_lists: u64,
    /// Unmaps of parts of a mapping; in the replay it ends with the last of them.
    pub partial_unmaps: u64,
    /// Unmaps of an address that several domains had mapped.
    pub ambiguous_unmaps: u64,
    /// Operations whose events name no device, taken for the only one's whose mappings a table has.
    pub inferred_devices: u64,
    /// Maps that the traced kernel refused.
    pub failed_maps: u64,
    /// Names of the devices.
    pub devices: Vec<String>,
    /// Maps that no policy could replay: too large for the window of device addresses, or beyond the limits of the
    /// table format.
    pub rejected_maps: u64,
    /// Lines of the first of them.
    pub rejected_lines: Vec<u64>,
}

/// An answer takes so much of a trace, in per cent of events and of bytes.
pub const ENOUGH_PCT: f64 = 95.0;

impl UnderstoodPct {
    /// True if there may be an answer.
    pub fn is_enough(&self) -> bool {
        self.events_pct >= ENOUGH_PCT && self.bytes_pct >= ENOUGH_PCT
    }
}

/// Costs of one policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyReport {
    /// Name of the policy.
    pub policy: String,
    /// Maps and unmaps that were replayed, coherent ones included.
    pub operations: u64,
    /// Invalidation commands by kind.
    pub invalidations: Invalidations,
    /// Range commands by address mask (exponent of the number of pages).
    pub masks: BTreeMap<u8, u64>,
    /// Waits for completion.
    pub syncs: u64,
    /// Exits to a hypervisor that emulates the unit, one for each doorbell.
    pub exits: u64,
    /// Virtual time.
    pub time_us: TimeByCause,
    /// The least and the most that `time_us.total` may be, where a price of the machine is a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_range_us: Option<[f64; 2]>,
    /// Memory that the device could reach after it was unmapped.
    pub exposed: Exposed,
    /// Most pages of table memory in use at once.
    pub table_pages_peak: u64,
    /// Counts of the device's accesses.
    pub device: DeviceCounts,
    /// Maps that this policy could not replay.
    pub rejected_maps: u64,
    /// Largest number of operations mapped at once.
    pub mapped_peak: u64,
    /// Copies, for the policy that copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounce: Option<BounceCounts>,
    /// Events over virtual time; left out where many traces are added up.
    #[serde(skip_deserializing, skip_serializing_if = "Timeline::is_left_out")]
    pub timeline: Timeline,
}

impl PolicyReport {
    /// The least and the most of its CPU time, where a price of the machine is a range.
    pub fn cpu_range_us(&self) -> Option<[f64; 2]> {
        let stall = self.time_us.device_stall;
        self.total_range_us.map(|ends| ends.map(|end| end - stall))
    }
}

/// Counts of bouncing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BounceCounts {
    /// Slots of the pool.
    pub slots: u64,
    /// Areas that they are divided into.
    pub areas: u64,
    /// Everything is copied, not only memory that 32-bit devices do not reach.
    pub forced: bool,
    /// Most of them in use at once.
    pub slots_peak: u64,
    /// Parts of buffers that had slots of their own.
    pub copies: u64,
    /// Bytes copied, each way for itself.
    pub bytes_copied: u64,
    /// Invalidations that strict would have needed for the same unmaps.
    pub saved: Saved,
}

/// Invalidations that there was no need for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    /// Pages, each a command by page.
    pub pages: u64,
    /// Waits.
    pub syncs: u64,
}

/// Virtual time by cause, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeByCause {
    /// Time of all causes, on CPUs and in devices.
    pub total: f64,
    /// Time of CPUs.
    pub cpu: f64,
    /// CPU: entries and tables, mapping.
    pub map: f64,
    /// CPU: entries and tables, unmapping.
    pub unmap: f64,
    /// CPU: submitting invalidations.
    pub invalidation: f64,
    /// CPU: waiting for invalidations to complete.
    pub sync_wait: f64,
    /// CPU: exits to a hypervisor.
    pub exits: f64,
    /// Device: waiting for translations that were not cached.
    pub device_stall: f64,
}

impl TimeByCause {
    /// Each in so many parts.
    pub(crate) fn over(&self, parts: f64) -> Self {
        Self {
            total: self.total / parts,
            cpu: self.cpu / parts,
            map: self.map / parts,
            unmap: self.unmap / parts,
            invalidation: self.invalidation / parts,
            sync_wait: self.sync_wait / parts,
            exits: self.exits / parts,
            device_stall: self.device_stall / parts,
        }
    }

    /// Both, added up.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            total: self.total + other.total,
            cpu: self.cpu + other.cpu,
            map: self.map + other.map,
            unmap: self.unmap + other.unmap,
            invalidation: self.invalidation + other.invalidation,
            sync_wait: self.sync_wait + other.sync_wait,
            exits: self.exits + other.exits,
            device_stall: self.device_stall + other.device_stall,
        }
    }

    /// Time of a CPU for invalidations, in microseconds.
    pub fn waits(&self) -> f64 {
        self.invalidation + self.sync_wait + self.exits
    }

    /// Fills in the sums.
    pub(crate) fn summed(self) -> Self {
        let cpu = self.map + self.unmap + self.waits();
        Self { cpu, total: cpu + self.device_stall, ..self }
    }
}

/// Counts of a device's accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceCounts {
    /// Pages touched, once each for each mapping.
    pub accesses: u64,
    /// Accesses that the IOTLB did not hold.
    pub iotlb_misses: u64,
    /// Table entries read by walks.
    pub walk_reads: u64,
    /// Accesses that were refused; anything but 0 is a defect.
    pub faults: u64,
}
