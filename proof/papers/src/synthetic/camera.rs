//! A camera: 100 MB/s of buffers of 4 MiB, each mapped when it is queued, filled page by page, and unmapped when it
//! comes back. Computed is the part of a frame's 33 ms that goes into mapping and unmapping.
//!
//! The operations go through the driver of Tegra's SMMU, or of Qualcomm's SMMUv2, onto the model of its
//! registers; times are events times the prices of the machine's profile, which were fitted on published
//! latencies (`portolan-papers reproduce range-flush`, `walk-flush`). Beside its buffers the camera uses 64 pages that
//! stay mapped, one after each page that it fills: translations of them that an invalidation drops have to be walked
//! for again. On Qualcomm's it uses them while the driver waits as well, and each way is run with wait-for-safe off and
//! on. Other costs of a frame are left out.

use anyhow::{Context, Result, bail, ensure};
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Walker;
use portolan_sim::profile::{Event, Profile};
use serde::Serialize;

use super::waits::{Waits, waits};
use crate::measure::{
    CallPattern, Events, Grouping, MapOrUnmap, MeasuredSpace, Variant, map, unmap,
};
use crate::smmu_v2_board::{SmmuV2Board, TABLE_SPAN};
use crate::tegra_board::Board;
use portolan_tune::counts::{CommandCounts, RegisterWrites};
use portolan_tune::machines::own_quirks;

/// The machine that it runs on if none is named.
pub const MACHINE: &str = "tegra210";
/// Bytes of a buffer.
const BUFFER: u64 = 4 << 20;
/// Bytes that arrive in a second.
const BYTES_PER_S: u64 = 100_000_000;
/// Microseconds of a frame.
const FRAME_US: f64 = 33_000.0;
/// Buffers in play: this many are mapped at a time.
const RING: u64 = 4;
/// Seconds of it.
const SECONDS: u64 = 1;
const PAGE: PageSize = PageSize::SIZE_4K;
const IOVA: u64 = 1 << 30;
const MEMORY: u64 = 0x8000_0000;
/// Pages that stay mapped, and where.
const KEPT: (u64, u64, u64) = (64, 1 << 31, 0x7000_0000);

/// Costs of a camera.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CameraReport {
    /// The load.
    pub synthetic: &'static str,
    /// Name of the machine profile.
    pub machine: String,
    /// Bytes of a buffer.
    pub buffer_bytes: u64,
    /// Bytes that arrive in a second.
    pub bytes_per_s: u64,
    /// Microseconds of a frame.
    pub frame_us: f64,
    /// Buffers that were mapped, filled and unmapped in each way.
    pub buffers: u64,
    /// The ways.
    pub ways: Vec<WayReport>,
    /// Conclusions from unmaps of 100 MB that took 100 ms, where that was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
}

/// A way of mapping and unmapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WayReport {
    /// `before` and `after` the published change, or `portolan`: the library's own. On Tegra's each page's
    /// caches flushed and waited for, and one flush an operation; on Qualcomm's a command for each page of
    /// a table, and one for the context.
    pub variant: &'static str,
    /// Microseconds that each synchronisation waits for real-time devices; 0 with wait-for-safe off.
    pub wait_for_safe_us: f64,
    /// Mapping.
    pub map: Side,
    /// Unmapping.
    pub unmap: Side,
    /// Accesses of the camera that were refused: a defect unless zero.
    pub faults: u64,
    /// Accesses that missed the translation buffer.
    pub tlb_misses: u64,
    /// Table memory read for it: entries, or lines of them on Tegra's.
    pub walk_reads: u64,
    /// Microseconds that it waited for those, by buffer.
    pub stall_us: f64,
    /// Accesses that succeeded during an invalidation.
    pub meanwhile: u64,
    /// Microseconds, by buffer, that a unit would keep it waiting which lets no access through while it
    /// invalidates.
    pub kept_out_us: f64,
}

/// One side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Microseconds for a buffer, on average.
    pub buffer_us: f64,
    /// Part of all frames, in per cent: the CPU's mean loss.
    pub share_pct: f64,
    /// Part of a frame into which a buffer falls, in per cent.
    pub worst_frame_pct: f64,
    /// Commands for all buffers.
    pub commands: CommandCounts,
    /// Registers written for a buffer, on average rounded down, on Tegra's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<RegisterWrites>,
}

/// Unit whose driver it runs through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Tegra,
    Qualcomm,
}

/// Prices of the events of one side, in nanoseconds.
struct CameraPrices {
    call: f64,
    page: f64,
    flush: f64,
    /// A wait that is not in the price of a call or flush.
    sync: f64,
    entry: f64,
    line: f64,
    table: f64,
}

impl CameraPrices {
    fn of(profile: &Profile, unit: Unit, direction: MapOrUnmap, safe_ns: u64) -> Result<Self> {
        let price = |event| profile.price(event).context("a price of the machine");
        let [call, page, flush] = match (direction, unit) {
            (MapOrUnmap::Map, Unit::Tegra) => {
                [Event::MapCall, Event::MapPage, Event::CmdPageAfterMap]
            }
            (MapOrUnmap::Map, Unit::Qualcomm) => [Event::MapCall, Event::MapPage, Event::CmdPage],
            (MapOrUnmap::Unmap, Unit::Tegra) => {
                [Event::UnmapCall, Event::UnmapPage, Event::CmdPage]
            }
            (MapOrUnmap::Unmap, Unit::Qualcomm) => {
                [Event::UnmapCallTables, Event::UnmapPage, Event::CmdPage]
            }
        };
        Ok(Self {
            call: price(call)?,
            page: price(page)?,
            flush: price(flush)?,
            sync: price(Event::Sync)? + safe_ns as f64,
            entry: match (direction, unit) {
                // Whole tables leave with one write each.
                (MapOrUnmap::Unmap, Unit::Qualcomm) => 0.0,
                _ => price(Event::PteWrite)?,
            },
            line: match profile.capabilities().walker {
                Walker::Coherent => 0.0,
                Walker::NonCoherent => price(Event::CleanLine)?,
            },
            table: price(Event::TableFree)?,
        })
    }

    /// Nanoseconds for which the unit invalidates.
    fn invalidating(&self, counts: CommandCounts) -> f64 {
        let flushes = counts.page + counts.range + counts.context;
        flushes as f64 * self.flush + counts.sync as f64 * self.sync
    }

    /// Microseconds of `events`. If pages are mapped one by one, their price includes writing their lines back.
    fn us(&self, events: &Events) -> f64 {
        let mut ns = events.calls as f64 * self.call;
        ns += events.single_pages as f64 * self.page;
        ns += self.invalidating(events.counts);
        ns += events.run_pages as f64 * self.entry;
        if events.run_pages > 0 {
            ns += events.lines as f64 * self.line;
            ns += events.tables as f64 * self.table;
        }
        ns / 1000.0
    }
}

/// Adds up one side.
struct Sum {
    prices: CameraPrices,
    us: f64,
    worst_us: f64,
    commands: CommandCounts,
    registers: Option<RegisterWrites>,
}

impl Sum {
    fn new(prices: CameraPrices) -> Self {
        Self { prices, us: 0.0, worst_us: 0.0, commands: CommandCounts::default(), registers: None }
    }

    fn add(&mut self, events: &Events) {
        let us = self.prices.us(events);
        self.us += us;
        self.worst_us = self.worst_us.max(us);
        self.commands = self.commands.plus(events.counts);
        if let Some(more) = events.registers {
            self.registers.get_or_insert_default().add(&more);
        }
    }

    fn side(&self, buffers: u64) -> Side {
        let seconds = buffers as f64 * BUFFER as f64 / BYTES_PER_S as f64;
        Side {
            buffer_us: self.us / buffers as f64,
            share_pct: self.us / (seconds * 1e6) * 100.0,
            // Buffers are further apart than frames are long.
            worst_frame_pct: self.worst_us / FRAME_US * 100.0,
            commands: self.commands,
            registers: self.registers.map(|sum| sum.each(buffers)),
        }
    }
}

/// Runs the camera in each way.
///
/// # Errors
/// If the machine has neither SMMU or lacks a price; if driver or model refuse, which is a defect.
pub fn run(profile: &Profile) -> Result<CameraReport> {
    let apart_us = BUFFER as f64 / BYTES_PER_S as f64 * 1e6;
    ensure!(apart_us > FRAME_US, "several buffers fall into one frame");
    let buffers = SECONDS * BYTES_PER_S / BUFFER + 1;
    let (unit, waits) = match profile.name() {
        "sm8150" => (Unit::Qualcomm, Some(waits(profile)?)),
        name if name.starts_with("tegra") => (Unit::Tegra, None),
        name => bail!(
            "the machine `{name}` has neither Tegra's SMMU nor Qualcomm's; try --machine tegra210 or sm8150"
        ),
    };
    let mut ways = Vec::new();
    let longest = waits.as_ref().map(|waits| (waits.wait_us[1] * 1000.0) as u64);
    for safe_ns in std::iter::once(0).chain(longest) {
        for variant in Variant::ALL {
            ways.push(run_way(profile, unit, variant, safe_ns, buffers)?);
        }
    }
    Ok(CameraReport {
        synthetic: "camera",
        machine: profile.name().to_owned(),
        buffer_bytes: BUFFER,
        bytes_per_s: BYTES_PER_S,
        frame_us: FRAME_US,
        buffers,
        ways,
        waits,
    })
}

fn run_way(
    profile: &Profile,
    unit: Unit,
    variant: Variant,
    safe_ns: u64,
    buffers: u64,
) -> Result<WayReport> {
    let own = own_quirks(profile)?;
    let sides = [MapOrUnmap::Map, MapOrUnmap::Unmap];
    let ways = sides.map(|direction| match unit {
        Unit::Tegra => variant.range_flush(own),
        Unit::Qualcomm => variant.walk_flush(direction, BUFFER, TABLE_SPAN.bytes(), own),
    });
    let [maps, unmaps] = sides.map(|direction| CameraPrices::of(profile, unit, direction, safe_ns));
    let mut sums = [Sum::new(maps?), Sum::new(unmaps?)];
    let step_ns = profile.price(Event::IotlbMissStep)?;
    let mut report = match unit {
        Unit::Tegra => {
            let board = Board::new(profile, 32)?;
            let space = board.camera(ways[0])?;
            keep(&space)?;
            drive(&space, ways, buffers, &mut sums, step_ns)?
        }
        Unit::Qualcomm => {
            let space = SmmuV2Board::new(profile, 64, ways[0], safe_ns)?;
            space.keep_busy_in(keep(&space)?);
            drive(&space, ways, buffers, &mut sums, step_ns)?
        }
    };
    report.variant = variant.name();
    report.wait_for_safe_us = safe_ns as f64 / 1000.0;
    Ok(report)
}

/// Maps the pages that stay.
fn keep(space: &dyn MeasuredSpace) -> Result<IovaRange> {
    let (pages, iova, memory) = KEPT;
    let range =
        IovaRange::from_len(Iova::new(iova), pages * PAGE.bytes()).context("pages that stay")?;
    map(space, range, PhysAddr::new(memory), Grouping::Whole)?;
    Ok(range)
}

/// Lets the camera write once to each page of a buffer, and to a permanently mapped page after each.
fn fill(space: &dyn MeasuredSpace, buffer: IovaRange) {
    let (pages, kept, _) = KEPT;
    for page in 0..buffer.pages(PAGE) {
        space.touch(Iova::new(buffer.start().get() + page * PAGE.bytes()));
        space.touch(Iova::new(kept + page % pages * PAGE.bytes()));
    }
}

/// Maps, fills and unmaps all buffers; returns everything of the report but its name.
fn drive(
    space: &dyn MeasuredSpace,
    [mapping, unmapping]: [CallPattern; 2],
    buffers: u64,
    [maps, unmaps]: &mut [Sum; 2],
    step_ns: f64,
) -> Result<WayReport> {
    let range = |buffer: u64| {
        let start = Iova::new(IOVA + buffer % RING * BUFFER);
        IovaRange::from_len(start, BUFFER).context("a buffer")
    };
    for buffer in 0..buffers + RING - 1 {
        // The oldest comes back before the next is queued.
        if let Some(oldest) = buffer.checked_sub(RING - 1) {
            fill(space, range(oldest)?);
            unmaps.add(&unmap(space, range(oldest)?, unmapping.grouping)?);
        }
        if buffer < buffers {
            // Pages of memory that are no neighbours.
            let memory = PhysAddr::new(MEMORY + buffer % RING * 2 * BUFFER);
            maps.add(&map(space, range(buffer)?, memory, mapping.grouping)?);
        }
    }
    space.is_sound()?;
    let met = space.met();
    let each = |ns: f64| ns / 1000.0 / buffers as f64;
    let invalidating = [&*maps, &*unmaps].map(|sum| sum.prices.invalidating(sum.commands));
    Ok(WayReport {
        variant: "",
        wait_for_safe_us: 0.0,
        map: maps.side(buffers),
        unmap: unmaps.side(buffers),
        faults: met.faults,
        tlb_misses: met.misses,
        walk_reads: met.reads,
        stall_us: each(met.reads as f64 * step_ns),
        meanwhile: met.meanwhile,
        kept_out_us: each(invalidating.iter().sum()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_of_1024_pages_in_each_way() {
        let report = run(&Profile::by_name(MACHINE).unwrap()).unwrap();
        let [before, after, ours] = [0, 1, 2].map(|n| &report.ways[n]);
        // Two writes for the line and one for the group of each page, and a read; where a buffer
        // needs a new table, the line of the directory's entry comes on top.
        let of = before.unmap.registers.unwrap();
        assert_eq!((of.ptc_flush_line, of.ptc_flush_hi), (1024, 1024));
        assert_eq!((of.tlb_flush_group, of.read_backs), (1024, 1024));
        assert_eq!(of.writes, 3 * 1024);
        let of = after.unmap.registers.unwrap();
        assert_eq!((of.ptc_flush_all, of.tlb_flush_asid), (1, 1));
        assert_eq!((of.writes, of.read_backs), (2, 1));
        // One section, and the whole page-table cache, since a table leaves.
        let of = ours.unmap.registers.unwrap();
        assert_eq!((of.ptc_flush_all, of.tlb_flush_section), (1, 1));
        assert_eq!((of.writes, of.read_backs), (2, 1));
        for way in &report.ways {
            assert_eq!(way.faults, 0);
        }
        // As published: 4 MiB took 3.9 ms to unmap, and 0.15 ms with one flush.
        assert!((before.unmap.buffer_us - 3900.0).abs() < 100.0);
        assert!((after.unmap.buffer_us - 150.0).abs() < 10.0);
        assert!(ours.unmap.buffer_us < after.unmap.buffer_us);
        assert!((before.unmap.worst_frame_pct - 11.8).abs() < 0.3);
    }

    #[test]
    fn on_qualcomm_s_the_context_costs_walks_and_saves_commands_and_waits_decide() {
        let report = run(&Profile::by_name("sm8150").unwrap()).unwrap();
        let [before, after, ours, .., on_after, on_ours] = report.ways.as_slice() else {
            panic!("{report:?}");
        };
        // Two tables of 512 pages a buffer.
        let counts = |way: &WayReport| {
            let all = way.unmap.commands;
            [all.page, all.context, all.sync].map(|n| n / report.buffers)
        };
        assert_eq!(counts(before), [1024, 0, 2]);
        assert_eq!(counts(after), [0, 2, 2]);
        assert_eq!(counts(ours), [0, 1, 1]);
        for way in &report.ways {
            assert_eq!(way.faults, 0);
            assert!(way.meanwhile > 0);
        }
        // By context the pages that stay are walked for again, once a buffer, and no more than that.
        let again = after.stall_us - before.stall_us;
        assert!(again > 0.0 && again < 64.0 * 4.0 * 0.1, "{again}");
        let saved = before.unmap.buffer_us - after.unmap.buffer_us;
        assert!((saved - 1022.0 * 0.120835).abs() < 0.01, "{saved}");
        assert!(saved > 4.0 * again);
        // With the longest wait-for-safe, half the waits are half the time.
        let ratio = on_after.unmap.buffer_us / on_ours.unmap.buffer_us;
        assert!((ratio - 2.0).abs() < 0.02, "{ratio}");
        assert!(on_ours.meanwhile > ours.meanwhile);
    }

    #[test]
    fn other_machines_are_refused() {
        let error = run(&Profile::by_name("xeon-vtd").unwrap()).unwrap_err().to_string();
        assert!(error.contains("tegra210") && error.contains("sm8150"), "{error}");
    }
}
