//! Halves of the saving of range flush: batching the caches' work, and writing fewer lines back. Reviewers asked for
//! them, and the published figures leave them open.
//!
//! The fitted price of a page holds the lines that are left, that of a flush those that are saved. So the time of one
//! line is known only to be at least nothing, and at most the time that makes one of these prices nothing. A line
//! written back after a map takes as long as one after an unmap, so the tighter of both bounds holds for both.

use super::{Events, Evidence, LatencyRow, MapOrUnmap, Ranged, Run, Variant, fitted_us};

/// The size that is split: the largest whose prices are fitted.
const SIZE: &str = "4M";

/// A map or unmap of [`SIZE`], before and after.
pub(super) struct Halves {
    direction: MapOrUnmap,
    bytes: u64,
    before: Events,
    after: Events,
    /// Microseconds of both.
    us: [f64; 2],
    /// Microseconds of a line at most.
    line_at_most: f64,
}

impl Halves {
    /// Result for `runs` with the fitted prices `us`, if they have both halves.
    pub(super) fn of(direction: MapOrUnmap, runs: &[Run], us: &[f64]) -> Option<Self> {
        let find = |variant| {
            let same = |run: &&Run| (run.size, run.variant) == (SIZE, variant);
            runs.iter().find(same)
        };
        let (before, after) = (find(Variant::Before)?, find(Variant::After)?);
        let bytes = before.bytes;
        let [before, after] = [before.events, after.events];
        let pages = before.single_pages as f64;
        let fewer = before.lines.checked_sub(after.lines).filter(|n| *n > 0)? as f64;
        let in_page = us[1] * pages / after.lines.max(1) as f64;
        let in_flush = us[2] * (pages - 1.0) / fewer;
        Some(Self {
            direction,
            bytes,
            before,
            after,
            us: [before, after].map(|events| fitted_us(&events, us)),
            line_at_most: in_page.min(in_flush),
        })
    }

    fn fewer(&self) -> f64 {
        (self.before.lines - self.after.lines) as f64
    }

    /// The two rows: one flush with a line a page, and a flush a page with each line once.
    fn rows(&self, line: f64, most: f64) -> [LatencyRow; 2] {
        let [before, after] = self.us;
        let fewer = self.fewer();
        let row = |variant, flushes: &Events, lines: &Events, at: &dyn Fn(f64) -> f64| {
            let [one, other] = [at(0.0), at(most)];
            LatencyRow {
                case: self.direction.name(),
                variant,
                size_bytes: self.bytes,
                size: Some(SIZE.to_owned()),
                quantity: "latency_us",
                published: None,
                published_range: None,
                computed: at(line),
                computed_range: Some(Ranged {
                    low: one.min(other),
                    high: one.max(other),
                    over: "a line is written back for nothing, or for all that the fitted prices leave for it",
                }),
                error_pct: None,
                fitted: false,
                evidence: Evidence::Computed,
                counts: flushes.counts,
                lines: lines.lines,
                registers: flushes.registers,
            }
        };
        [
            row("tlb-batched", &self.after, &self.before, &|line| after + fewer * line),
            row("lines-batched", &self.before, &self.after, &|line| before - fewer * line),
        ]
    }

    fn note(&self, line: f64, most: f64) -> String {
        let saved = self.us[0] - self.us[1];
        let part = |line: f64| 100.0 * self.fewer() * line / saved;
        let flushes = |events: &Events| {
            let counts = events.counts;
            counts.page + counts.range + counts.context
        };
        format!(
            "Of the {saved:.0} µs that are saved in {}ping 4 MiB, {} flush in place of {} is worth {:.0} to 100 % \
             and {} lines in place of {} are worth 0 to {:.0} % ({:.1} % if a line takes {:.0} ns): \
             only the sum was published.",
            self.direction.name(),
            flushes(&self.after),
            flushes(&self.before),
            100.0 - part(most),
            self.after.lines,
            self.before.lines,
            part(most),
            part(line),
            line * 1000.0,
        )
    }
}

/// The rows of `all`, and a note on each, where a line is assumed to take `line` microseconds (`clean_line`).
pub(super) fn rows(all: &[Halves], line: f64) -> (Vec<LatencyRow>, Vec<String>) {
    let most = all.iter().map(|halves| halves.line_at_most).fold(f64::INFINITY, f64::min);
    let line = line.min(most);
    let rows = all.iter().flat_map(|halves| halves.rows(line, most));
    (rows.collect(), all.iter().map(|halves| halves.note(line, most)).collect())
}
