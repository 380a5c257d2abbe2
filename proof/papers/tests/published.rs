//! The recomputed tables: exact command counts, bounds on predictions, and that the prices in the
//! machine profiles are the ones that the fit finds.

use portolan_papers::reproduce::{self, LatencyRow, Reproduction};
use portolan_sim::profile::{Event, Profile};
use portolan_tune::counts::CommandCounts;

const MIB: u64 = 1 << 20;

fn row<'r>(of: &'r Reproduction, case: &str, variant: &str, bytes: u64) -> &'r LatencyRow {
    let wanted = |r: &&LatencyRow| r.case == case && r.variant == variant && r.size_bytes == bytes;
    of.rows.iter().find(wanted).unwrap()
}

fn counts(page: u64, context: u64, sync: u64) -> CommandCounts {
    CommandCounts { page, range: 0, context, sync }
}

#[test]
fn walk_flush_counts_of_32_mib() {
    let result = reproduce::walk_flush().unwrap();
    assert_eq!(row(&result, "unmap", "before", 32 * MIB).counts, counts(8192, 0, 16));
    assert_eq!(row(&result, "unmap", "after", 32 * MIB).counts, counts(0, 16, 16));
    assert_eq!(row(&result, "unmap", "portolan", 32 * MIB).counts, counts(0, 1, 1));
    assert_eq!(row(&result, "unmap", "before", MIB).counts, counts(256, 0, 1));
    for row in result.rows.iter().filter(|row| row.case == "map") {
        assert_eq!(row.counts, CommandCounts::default());
    }
}

#[test]
fn walk_flush_meets_what_was_not_fitted() {
    let result = reproduce::walk_flush().unwrap();
    let predicted = result.rows.iter().filter(|row| !row.fitted && row.published.is_some());
    let mut sizes: Vec<u64> = Vec::new();
    for row in predicted {
        assert!(row.error_pct.unwrap().abs() <= 5.0, "{row:?}");
        sizes.push(row.size_bytes / MIB);
    }
    sizes.sort_unstable();
    assert_eq!(sizes, [[16; 4], [24; 4], [32; 4]].concat());
    assert!(result.holds());
}

#[test]
fn range_flush_counts_and_times() {
    let result = reproduce::range_flush().unwrap();
    for case in ["map", "unmap"] {
        let pages = 17 * MIB / 4096;
        assert_eq!(row(&result, case, "before", 17 * MIB).counts, counts(pages, 0, pages));
        assert_eq!(row(&result, case, "after", 17 * MIB).counts, counts(0, 1, 1));
        let ours = row(&result, case, "portolan", 17 * MIB);
        assert_eq!(ours.counts, counts(0, 1, 1));
        assert!(ours.computed < row(&result, case, "after", 17 * MIB).computed, "{case}");
    }
    assert_eq!(result.bounds.len(), 4);
    assert!(result.holds());
}

#[test]
fn profiles_carry_the_fitted_prices() {
    let fitted = |result: &Reproduction, case: &str, event: &str| {
        let price = result.prices.iter().find(|p| p.case == case && p.event.starts_with(event));
        price.unwrap().ns
    };
    let close = |a: f64, b: f64| assert!((a - b).abs() < 0.01, "{a} is not {b}");
    let walk = reproduce::walk_flush().unwrap();
    let phone = Profile::by_name("sm8150").unwrap();
    for event in [Event::MapCall, Event::MapPage] {
        close(phone.price(event).unwrap(), fitted(&walk, "map", event.name()));
    }
    for event in [Event::UnmapCallTables, Event::UnmapPage, Event::CmdPage] {
        close(phone.price(event).unwrap(), fitted(&walk, "unmap", event.name()));
    }
    let range = reproduce::range_flush().unwrap();
    let board = Profile::by_name("tegra210").unwrap();
    close(board.price(Event::CmdPage).unwrap(), fitted(&range, "unmap", "flush after unmap"));
    close(board.price(Event::CmdPageAfterMap).unwrap(), fitted(&range, "map", "flush after map"));
}

#[test]
fn range_flush_is_split_in_two_and_names_what_it_does_not_explain() {
    let result = reproduce::range_flush().unwrap();
    for (case, line_of_directory) in [("map", 1), ("unmap", 0)] {
        let of = |variant| row(&result, case, variant, 4 * MIB);
        let (before, after) = (of("before"), of("after"));
        let (flushes, lines) = (of("tlb-batched"), of("lines-batched"));
        // Each page's line is cleaned for itself, or each line of 16 entries once.
        assert_eq!((before.lines, after.lines), (1024 + line_of_directory, 64 + line_of_directory));
        assert_eq!((flushes.lines, lines.lines), (before.lines, after.lines));
        assert_eq!((flushes.counts, lines.counts), (after.counts, before.counts));
        // The halves make up the whole, for any time of a line.
        let saved = before.computed - after.computed;
        let halves = [flushes, lines].map(|half| before.computed - half.computed);
        assert!((halves[0] + halves[1] - saved).abs() < 1e-6, "{case}");
        let [at_least, at_most] = [flushes, lines].map(|half| half.computed_range.unwrap());
        assert!((at_least.low - after.computed).abs() < 1e-6);
        assert!((at_most.high - before.computed).abs() < 1e-6);
        // The published figures do not rule out that lines are most of it in mapping.
        let least = (before.computed - at_least.high) / saved;
        assert!((0.1..0.5).contains(&least), "{case}: {least}");
    }
    // One flush of either cache gives an address space up, with any mappings.
    for bytes in [4 * MIB, 17 * MIB] {
        let row = row(&result, "tear-down", "portolan", bytes);
        assert_eq!(row.counts, counts(0, 1, 1));
        assert_eq!(row.registers.unwrap().ptc_flush_all, 1);
    }
    // A section has no table: a line of the directory, and one flush of its 4 MiB.
    for case in ["map", "unmap"] {
        let row = row(&result, case, "sections", 4 * MIB);
        assert_eq!((row.lines, row.counts.range, row.counts.sync), (1, 1, 1), "{case}");
        assert_eq!(row.registers.unwrap().ptc_flush_all, 0, "{case}");
    }
    let notes = result.notes.join("\n");
    for sample in ["21020 µs (14 %)", "21764 µs (18 %)", "9304 µs (60 %)"] {
        assert!(notes.contains(sample), "{sample}: {notes}");
    }
}
