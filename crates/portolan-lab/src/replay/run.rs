//! One pass over a trace, each operation fed to every policy.
//!
//! Memory is bounded by what is mapped at once. All devices of a trace share one address space and
//! one IOMMU.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::SlabTables;
use portolan::table::{Format, Segment};
use portolan_cli::display;
use portolan_cli::progress::Progress;
use portolan_model::profile::Profile;

use super::bounce_lane::BounceLane;
use super::deferred_lane::DeferredLane;
use super::lane::{At, FormatLane, Lane, Moved, Taken, WINDOW_LG2, table_pages};
use super::policy::Policy;
use super::report::{ReplayReport, TraceReport};
use super::text::{findings, linux_finding};
use super::warnings::warnings;
use crate::linux::{Counter, Rules};
use crate::machines::{WithFormat, with_format};
use crate::trace::{self, OpKind, Piece, Reader, Summary};

/// The trace that comes with the program, and its name.
const BUNDLED: &[u8] = include_bytes!("../../../../data/traces/vtd-strict.mixed-sg-4j.trace.xz");
const BUNDLED_NAME: &str = "bundled trace vtd-strict.mixed-sg-4j";
/// Operations between two looks at the clock.
const PACE: u64 = 1 << 14;
/// Line numbers kept of what was rejected.
const KEPT_LINES: usize = 20;
/// Where table memory lies for the model; any place does.
const TABLES_AT: u64 = 1 << 40;
/// Memory for mappings whose place the trace does not tell: odd pages, so that they take single
/// pages as scattered memory does.
const UNKNOWN_AT: u64 = 0x1000_1000;

/// Replays the trace at `path`, or the bundled one; warnings go to standard error.
///
/// # Errors
/// If the trace cannot be read, or the machine lacks something that the replay needs.
pub fn run_file(
    path: Option<&Path>,
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
) -> Result<ReplayReport> {
    let (mut reader, name) = match path {
        Some(path) => {
            let name = path.display().to_string();
            let reader = trace::open(path).with_context(|| format!("trace {name}"))?;
            (reader, name)
        }
        None => (trace::from_bytes(BUNDLED)?, BUNDLED_NAME.to_owned()),
    };
    let mut report = run_beside(&mut reader, profile, policies, linux)?;
    report.trace.source = name;
    for warning in warnings(reader.summary(), &report.trace) {
        eprintln!("portolan: warning: {warning}");
    }
    Ok(report)
}

/// Replays what `reader` reads, once for each policy, in one pass.
///
/// # Errors
/// If the library or the model refuses what it should take, or a price is missing.
pub fn run(reader: &mut Reader, profile: &Profile, policies: &[Policy]) -> Result<ReplayReport> {
    run_beside(reader, profile, policies, None)
}

/// As [`run`], and counts beside it what Linux would have submitted by `linux`.
///
/// # Errors
/// As [`run`].
pub fn run_beside(
    reader: &mut Reader,
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
) -> Result<ReplayReport> {
    if policies.is_empty() {
        bail!("no policy to replay");
    }
    let mut policies = policies.to_vec();
    let mut seen = Vec::new();
    policies.retain(|policy| {
        !seen.contains(policy) && {
            seen.push(*policy);
            true
        }
    });
    with_format(
        profile.format(),
        Task {
            reader,
            profile,
            policies: &policies,
            linux,
        },
    )
}

struct Task<'a> {
    reader: &'a mut Reader,
    profile: &'a Profile,
    policies: &'a [Policy],
    linux: Option<Rules>,
}

impl WithFormat for Task<'_> {
    type Output = ReplayReport;

    fn run<F: Format>(self, format: F) -> Result<ReplayReport> {
        let Self {
            reader,
            profile,
            policies,
            linux,
        } = self;
        let mut linux = linux
            .map(|rules| Counter::new(rules, profile))
            .transpose()?;
        // Memory outside the format's reach would do for tables that only CPUs read.
        let at = PhysAddr::new(TABLES_AT.min(1 << (format.output_lg2() - 1)));
        let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
        for policy in policies {
            let memory = || Arc::new(SlabTables::new(at, F::GRANULE, table_pages::<F>()));
            lanes.push(match policy {
                Policy::Bounce => Box::new(BounceLane::new(profile)?),
                Policy::Deferred => Box::new(DeferredLane::new(profile, format, memory())?),
                other => Box::new(FormatLane::new(*other, profile, format, memory())?),
            });
        }
        let rejected = drive(reader, F::GRANULE, &mut lanes, linux.as_mut())?;
        let mut reports = Vec::new();
        for lane in &mut lanes {
            reports.push(lane.finish()?);
        }
        let trace = trace_report(reader.summary(), rejected);
        let linux = linux.map(|counter| counter.finish(&trace.devices));
        let mut findings = findings(&trace, &reports);
        findings.extend(linux.as_ref().map(|linux| linux_finding(&trace, linux)));
        Ok(ReplayReport {
            trace,
            machine: profile.name().to_owned(),
            policies: reports,
            linux,
            findings,
        })
    }
}

/// Maps that no lane took.
#[derive(Default)]
struct Rejected {
    maps: u64,
    first_lines: Vec<u64>,
}

impl Rejected {
    fn note(&mut self, line: u64) {
        self.maps += 1;
        if self.first_lines.len() < KEPT_LINES {
            self.first_lines.push(line);
        }
    }
}

/// Feeds all operations to all lanes; the maps that no lane took.
fn drive(
    reader: &mut Reader,
    granule: PageSize,
    lanes: &mut [Box<dyn Lane + '_>],
    mut linux: Option<&mut Counter>,
) -> Result<Rejected> {
    let mut segments: Vec<Segment> = Vec::new();
    let progress = Progress::unbounded();
    let mut operations = 0u64;
    let mut rejected = Rejected::default();
    // Time stamps of different CPUs may step back; policies see time that does not.
    let mut now_ns = 0;
    while let Some(op) = reader.next_op() {
        now_ns = now_ns.max(op.time_ns);
        let at = At {
            now_ns,
            cpu: op.cpu,
        };
        match op.kind {
            OpKind::Map {
                id,
                bytes,
                offset,
                pieces,
                class,
                direction,
                ..
            } => {
                let Some(padded) = pad(pieces, offset.into(), bytes, granule, &mut segments) else {
                    rejected.note(op.line);
                    continue;
                };
                if let Some(linux) = &mut linux {
                    linux.map(at, op.device, id.0, padded);
                }
                let moved = Moved {
                    class,
                    direction,
                    bytes,
                    pieces,
                };
                let mut taken = 0;
                for lane in lanes.iter_mut() {
                    lane.moves(&moved);
                    let done = lane.map(at, id.0, &segments, padded);
                    let done = done.with_context(|| format!("map in line {}", op.line))?;
                    taken += u32::from(done == Taken::Yes);
                }
                if taken == 0 {
                    rejected.note(op.line);
                }
            }
            OpKind::Unmap { id, .. } => {
                if let Some(linux) = &mut linux {
                    linux.unmap(at, op.device, id.0);
                }
                for lane in lanes.iter_mut() {
                    let done = lane.unmap(at, id.0);
                    done.with_context(|| format!("unmap in line {}", op.line))?;
                }
            }
        }
        operations += 1;
        if operations.is_multiple_of(PACE) {
            progress.say(|| so_far(operations, reader));
        }
    }
    Ok(rejected)
}

fn so_far(operations: u64, reader: &Reader) -> String {
    let (done, read) = (
        display::grouped(operations),
        display::bytes(reader.bytes_read()),
    );
    format!("{done} operations, {read} read")
}

/// Fills `segments` with the whole pages of `pieces`, and with pages of unknown place for the bytes
/// that no piece accounts for. Their sum, or `None` if that is nothing or too large for the window.
fn pad(
    pieces: &[Piece],
    offset: u64,
    bytes: u64,
    granule: PageSize,
    segments: &mut Vec<Segment>,
) -> Option<u64> {
    segments.clear();
    let mask = granule.bytes() - 1;
    let mut told = 0u64;
    let mut padded = 0u64;
    for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
        let start = piece.pa.get() & !mask;
        let end = piece.pa.get().checked_add(piece.bytes)?.checked_add(mask)? & !mask;
        segments.push(Segment {
            pa: PhysAddr::new(start),
            bytes: end - start,
        });
        padded = padded.checked_add(end - start)?;
        told = told.checked_add(piece.bytes)?;
    }
    let wanted = bytes.checked_add(if segments.is_empty() { offset } else { 0 })?;
    if told < wanted {
        let missing = (wanted - told).checked_add(mask)? & !mask;
        let pa = PhysAddr::new((UNKNOWN_AT + mask) & !mask);
        segments.push(Segment { pa, bytes: missing });
        padded = padded.checked_add(missing)?;
    }
    (padded > 0 && padded < 1 << WINDOW_LG2).then_some(padded)
}

fn trace_report(summary: &Summary, rejected: Rejected) -> TraceReport {
    TraceReport {
        source: String::new(),
        events: summary.events,
        maps: summary.maps,
        unmaps: summary.unmaps,
        bytes_mapped: summary.bytes_mapped,
        orphan_unmaps: summary.orphan_unmaps,
        lost_events: summary.lost_events,
        bad_lines: summary.bad_lines,
        coherent_allocs: summary.coherent_allocs,
        coherent_frees: summary.coherent_frees,
        bounced_bytes: summary.bounced_bytes,
        left_mapped: summary.left_mapped,
        out_of_order: summary.out_of_order,
        truncated_lists: summary.truncated_lists,
        inexact_lists: summary.inexact_lists,
        failed_maps: summary.failed_maps,
        devices: summary.devices.clone(),
        rejected_maps: rejected.maps,
        rejected_lines: rejected.first_lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(pieces: &[(u64, u64)], offset: u64, bytes: u64) -> Option<(u64, usize)> {
        let pieces: Vec<_> = pieces
            .iter()
            .map(|&(pa, bytes)| Piece {
                pa: PhysAddr::new(pa),
                bytes,
            })
            .collect();
        let mut segments = Vec::new();
        let sum = pad(&pieces, offset, bytes, PageSize::SIZE_4K, &mut segments)?;
        Some((sum, segments.len()))
    }

    #[test]
    fn pieces_are_padded_to_pages() {
        assert_eq!(padded(&[(0x1840, 1522)], 0x840, 1522), Some((4096, 1)));
        assert_eq!(padded(&[(0x1fff, 2)], 0xfff, 2), Some((8192, 1)));
        assert_eq!(
            padded(&[(0x1000, 4096), (0x9000, 100)], 0, 4196),
            Some((8192, 2))
        );
        // Whole pages told by table events, for an operation of fewer bytes.
        assert_eq!(padded(&[(0x1000, 4096)], 0x10, 20), Some((4096, 1)));
    }

    #[test]
    fn what_is_not_told_is_made_up_and_what_overflows_is_refused() {
        assert_eq!(padded(&[], 0x800, 4096), Some((8192, 1)));
        assert_eq!(padded(&[(0x1000, 4096)], 0, 12288), Some((12288, 2)));
        assert_eq!(padded(&[(u64::MAX - 10, 20)], 0, 20), None);
        assert_eq!(padded(&[], 0, u64::MAX), None);
        assert_eq!(padded(&[], 0, 1 << 32), None);
        assert_eq!(padded(&[], 0, 0), None);
    }
}
