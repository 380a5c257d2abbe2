//! An operation through Tegra's driver on the model of its registers, and the registers as text.

use anyhow::{Context, Result};
use portolan::addr::PhysAddr;
use portolan_sim::profile::Profile;

use super::rows::LatencyRow;
use crate::measure::{
    CallPattern, Events, Grouping, MapOrUnmap, MeasuredSpace as _, map, measure_in, range,
};
use crate::tegra_board::{Board, TABLE};
use portolan_cli::display;
use portolan_tune::counts::RegisterWrites;

/// Maps or unmaps `bytes` bytes on `machine`, in the given way.
///
/// # Errors
/// If the driver or the model refuses, which is a defect.
pub(super) fn measure(
    machine: &Profile,
    direction: MapOrUnmap,
    bytes: u64,
    way: CallPattern,
) -> Result<Events> {
    let tables = u32::try_from(range(bytes)?.pages(TABLE)).context("size")? + 16;
    let board = Board::new(machine, tables)?;
    let space = board.camera(way)?;
    let events = measure_in(&space, direction, bytes, way.grouping)?;
    space.is_sound()?;
    Ok(events)
}

/// Maps a scatter list of single pages of `bytes` bytes on `machine`, and takes the address space down
/// with all of it.
///
/// # Errors
/// If the driver or the model refuses, which is a defect.
pub(super) fn tear_down(machine: &Profile, bytes: u64, way: CallPattern) -> Result<Events> {
    let tables = u32::try_from(range(bytes)?.pages(TABLE)).context("size")? + 16;
    let board = Board::new(machine, tables)?;
    let space = board.camera(way)?;
    map(&space, range(bytes)?, PhysAddr::new(1 << 31), Grouping::Whole)?;
    board.tear_down(space)
}

/// Writes by register, for rows that have them; nothing if none does.
pub(super) fn text(rows: &[LatencyRow], columns: usize) -> String {
    let lines: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row, row.registers?)))
        .map(|(row, of)| {
            let mut line =
                vec![row.case.to_owned(), display::bytes(row.size_bytes), row.variant.to_owned()];
            line.push(display::grouped(row.lines));
            line.extend(of.columns());
            line
        })
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let header = [
        &[("case", 0), ("size", 0), ("variant", 0), ("lines cleaned", 7)][..],
        &RegisterWrites::HEADS,
    ]
    .concat();
    let numbers: Vec<usize> = (3..header.len()).collect();
    let table = display::table(&header, &numbers, lines, columns);
    format!("\nRegisters that the driver wrote, as the model counted them\n\n{table}")
}
