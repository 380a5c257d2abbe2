//! Heap memory of a device's space: when it is new, for each CPU that uses it, and for each mapping.
//!
//! The C library's own count of bytes in use, before and after; without the pages of page tables, which any table of
//! the format needs.

use std::fmt::Write as _;
use std::sync::Arc;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::{Constraints, Policy};
use portolan_cli::display;
use serde::Serialize;

use crate::raw::{heap_in_use, unowned};
use crate::rig::{MEMORY, PAGE, access};
use crate::space::{over, snooped};
use crate::threads::InTurn;
use crate::workload::Failure;

/// Name of this benchmark.
pub const NAME: &str = "memory";

/// Numbers of CPUs.
const CPUS: [usize; 3] = [1, 16, 256];
/// Buffers that each CPU maps and unmaps so that it has used the space.
const USED: usize = 600;
/// Buffers that are live for the memory of a mapping.
const LIVE: usize = 65_536;

/// Memory of a space for a number of CPUs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryRow {
    /// Number of CPUs.
    pub cpus: usize,
    /// Of a new space.
    pub new_bytes: usize,
    /// For each CPU that has mapped and unmapped buffers of a page, beyond that.
    pub used_cpu_bytes: usize,
    /// For each of many live buffers of a page, beyond that.
    pub mapping_bytes: usize,
}

/// The document that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// A row for each number of CPUs; empty if the C library counts nothing.
    pub memory: Vec<MemoryRow>,
}

/// Measures the heap.
///
/// # Errors
/// If the library refuses.
pub fn measure() -> Result<MemoryReport, Failure> {
    let rows = CPUS.into_iter().map(row).collect::<Result<Option<Vec<_>>, _>>()?;
    Ok(MemoryReport { memory: rows.unwrap_or_default() })
}

fn row(count: usize) -> Result<Option<MemoryRow>, Failure> {
    let cpus = Arc::new(InTurn(count));
    let bound = snooped()?;
    let mut live = Vec::with_capacity(LIVE.max(USED));
    let Some(start) = heap_in_use() else { return Ok(None) };
    let since = |before: usize| heap_in_use().map_or(0, |now| now.saturating_sub(before));

    let space = over(bound, &cpus, Policy::Lazy)?;
    let new_bytes = since(start);
    let map = |page: usize| {
        let at = PhysAddr::new(MEMORY.get() + page as u64 * PAGE);
        let memory = unowned(PhysRange::page(at, PageSize::SIZE_4K));
        let mapped = space.map_range(memory, access(), &Constraints::trusted());
        mapped.map(|(range, _)| range).map_err(|_| Failure::Addresses)
    };
    let unmap = |range| space.unmap_range(range).map_err(|_| Failure::NotPrepared);
    for cpu in 0..count {
        cpus.be(cpu);
        for page in 0..USED {
            live.push(map(page)?);
        }
        live.drain(..).try_for_each(unmap)?;
    }
    let used = since(start).saturating_sub(new_bytes);
    cpus.be(0);
    for page in 0..LIVE {
        live.push(map(page)?);
    }
    let mappings = since(start).saturating_sub(new_bytes + used);
    live.drain(..).try_for_each(unmap)?;
    Ok(Some(MemoryRow {
        cpus: count,
        new_bytes,
        used_cpu_bytes: used / count,
        mapping_bytes: mappings / LIVE,
    }))
}

/// The report for people, in lines of `columns`.
pub fn text(report: &MemoryReport, columns: usize) -> String {
    if report.memory.is_empty() {
        return format!(
            "SKIP {NAME}: the C library does not count its heap; run it with glibc 2.33 or later\n"
        );
    }
    let header = ["CPUs", "new space", "each CPU in use", "each mapping"].map(|name| (name, 0));
    let rows = report.memory.iter().map(|row| {
        let numbers = [row.cpus, row.new_bytes, row.used_cpu_bytes, row.mapping_bytes];
        numbers.map(|number| number.to_string()).to_vec()
    });
    let mut out = display::table(&header, &[0, 1, 2, 3], rows.collect(), columns);
    let _ = writeln!(
        out,
        "\nBytes of heap of one device's space, without the pages of its tables: when it is new, for each CPU \
         that has mapped and unmapped {USED} buffers of a page, and for each of {LIVE} live mappings."
    );
    display::wrapped(&out, columns)
}
