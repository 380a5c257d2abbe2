//! One operation through Tegra's driver on the model of its registers, and the registers as text.

use anyhow::{Context, Result, anyhow};
use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan_model::profile::Profile;

use super::published::Direction;
use super::rows::Row;
use super::{Events, Way};
use crate::tegra_board::Board;
use portolan_cli::display;

/// First device address of every measurement; 1 GiB, so that tables start with it.
const IOVA: u64 = 1 << 30;
/// Where the pages of the scatter list lie: every other page, so that no two are neighbours.
const MEMORY: u64 = 0x8000_0000;
const PAGE: u64 = 4096;
const TABLE: u64 = 4 << 20;

fn place(page: u64) -> PhysAddr {
    PhysAddr::new(MEMORY + page * 2 * PAGE)
}

/// Maps or unmaps a scatter list of single pages of `bytes` bytes on `machine`, in the given way.
///
/// A neighbour outside the range keeps the last page table in use where the range does not cover
/// it whole: operating systems do not free a table that empties page by page.
///
/// # Errors
/// If the driver or the model refuses, which is a defect.
pub(super) fn measure(
    machine: &Profile,
    direction: Direction,
    bytes: u64,
    way: Way,
) -> Result<Events> {
    let range = IovaRange::from_len(Iova::new(IOVA), bytes)
        .ok_or_else(|| anyhow!("nothing to measure in {bytes} bytes"))?;
    let tables = u32::try_from(bytes.div_ceil(TABLE)).context("size")? + 16;
    let board = Board::new(machine, tables)?;
    let events = match direction {
        Direction::Map => board.camera(way)?.map(range, place)?,
        Direction::Unmap => {
            let space = board.camera(way)?;
            space.map(range, place)?;
            if let Some(next) = range
                .last()
                .checked_add(1)
                .filter(|at| at.get() % TABLE != 0)
            {
                let neighbour = IovaRange::from_len(next, PAGE);
                let pages = bytes / PAGE;
                if let Some(neighbour) = neighbour {
                    space.map(neighbour, |_| place(pages))?;
                }
            }
            space.unmap(range)?
        }
    };
    board.is_sound()?;
    Ok(events)
}

/// What was written to which register, for rows that know; nothing if none does.
pub(super) fn text(rows: &[Row]) -> String {
    let lines: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row, row.registers?)))
        .map(|(row, of)| {
            let mut line = vec![
                row.case.to_owned(),
                display::bytes(row.size_bytes),
                row.variant.to_owned(),
            ];
            let numbers = [
                of.writes,
                of.ptc_flush_all,
                of.ptc_flush_line,
                of.ptc_flush_hi,
                of.tlb_flush_asid,
                of.tlb_flush_section,
                of.tlb_flush_group,
                of.read_backs,
            ];
            line.extend(numbers.map(display::grouped));
            line
        })
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let header = [
        "case",
        "size",
        "variant",
        "writes",
        "PTC all",
        "PTC line",
        "PTC upper bits",
        "TLB space",
        "TLB 4 MiB",
        "TLB 16 KiB",
        "reads",
    ];
    let numbers: Vec<usize> = (3..header.len()).collect();
    let table = display::table(&header, &numbers, lines);
    format!("\n\nRegisters that the driver wrote, as the model counted them\n\n{table}")
}
