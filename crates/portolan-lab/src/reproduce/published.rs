//! The published tables, embedded, and their rows as numbers.
//!
//! The files keep their source in `#` comments; a malformed row is an error with its line number.

use std::num::NonZeroU32;

use anyhow::{Context, Result, bail};

use crate::csv;

/// `data/published/qcom-smmu-walk-flush.csv`.
pub const WALK_FLUSH: &str = include_str!("../../../../data/published/qcom-smmu-walk-flush.csv");
/// `data/published/tegra-range-flush.csv`.
pub const RANGE_FLUSH: &str = include_str!("../../../../data/published/tegra-range-flush.csv");

/// `data/published/vtd-flush-queue.csv`.
pub const FLUSH_QUEUE: &str = include_str!("../../../../data/published/vtd-flush-queue.csv");

/// `data/published/swiotlb-fio.csv`.
pub const SWIOTLB: &str = include_str!("../../../../data/published/swiotlb-fio.csv");
/// `data/published/vfio-iopf.csv`.
pub const IOPF: &str = include_str!("../../../../data/published/vfio-iopf.csv");

/// Map or unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Mapping a scatter list.
    Map,
    /// Unmapping it.
    Unmap,
}

impl Direction {
    /// The name of the case in the published tables and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Unmap => "unmap",
        }
    }
}

/// One size of the walk-flush table; microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WalkFlushRow {
    /// Bytes mapped and unmapped.
    pub size_bytes: u64,
    /// Map, before and after.
    pub map: [f64; 2],
    /// Unmap, before and after.
    pub unmap: [f64; 2],
}

/// One sample of the range-flush table; microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeFlushSample {
    /// Map or unmap.
    pub direction: Direction,
    /// Size as published: `128K`, `4M`, `18M`.
    pub size: String,
    /// Flush after each page.
    pub before: f64,
    /// One flush at the end.
    pub after: f64,
}

/// Whose address space a device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IopfKind {
    /// A guest's memory, behind a second stage.
    Vfio,
    /// A process's, behind its PASID.
    Sva,
}

impl IopfKind {
    /// The name in the published table and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vfio => "vfio",
            Self::Sva => "sva",
        }
    }
}

/// One row of the table of I/O page faults; KB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IopfPublished {
    /// Whose address space.
    pub kind: IopfKind,
    /// Bytes of a message.
    pub msg_len_bytes: u64,
    /// Pages that a fault maps, where that was said.
    pub premap_pages: Option<NonZeroU32>,
    /// Messages.
    pub times: u64,
    /// Speed with all memory pinned.
    pub without_kb_s: f64,
    /// Speed with faults.
    pub with_kb_s: f64,
    /// Their number.
    pub faults: f64,
}

/// The rows of the table of I/O page faults.
///
/// # Errors
/// A row that is malformed.
pub fn iopf(text: &str) -> Result<Vec<IopfPublished>> {
    let mut rows = Vec::new();
    for (line, record) in records(text, 8)? {
        let at = |i: usize| number(line, record[i]);
        let whole = |i: usize| {
            let parsed = record[i].parse::<u64>().ok().filter(|n| *n != 0);
            parsed.with_context(|| format!("line {line}: `{}` is not a number", record[i]))
        };
        rows.push(IopfPublished {
            kind: match record[0] {
                "vfio" => IopfKind::Vfio,
                "sva" => IopfKind::Sva,
                other => bail!("line {line}: no kind is called `{other}`"),
            },
            msg_len_bytes: whole(1)?,
            premap_pages: match record[2] {
                "" => None,
                _ => NonZeroU32::new(u32::try_from(whole(2)?).unwrap_or(u32::MAX)),
            },
            times: whole(3)?,
            without_kb_s: at(4)?,
            with_kb_s: at(5)?,
            faults: at(6)?,
        });
    }
    Ok(rows)
}

/// The rows of a table that has `columns` columns, with their lines.
fn records(text: &str, columns: usize) -> Result<Vec<(usize, Vec<&str>)>> {
    let rows = csv::rows(text)?;
    if let Some(row) = rows.iter().find(|row| row.fields.len() != columns) {
        let count = row.fields.len();
        bail!("line {}: {count} columns, {columns} wanted", row.line);
    }
    Ok(rows.into_iter().map(|row| (row.line, row.fields)).collect())
}

fn number(line: usize, text: &str) -> Result<f64> {
    let value: f64 = text
        .parse()
        .with_context(|| format!("line {line}: `{text}` is not a number"))?;
    if !value.is_finite() || value <= 0.0 {
        bail!("line {line}: `{text}` is not a positive number");
    }
    Ok(value)
}

/// The rows of the walk-flush table.
///
/// # Errors
/// A row that is not five positive numbers.
pub fn walk_flush(text: &str) -> Result<Vec<WalkFlushRow>> {
    let mut rows = Vec::new();
    for (line, record) in records(text, 5)? {
        let at = |i: usize| number(line, record[i]);
        rows.push(WalkFlushRow {
            size_bytes: record[0]
                .parse()
                .with_context(|| format!("line {line}: `{}` is not a size", record[0]))?,
            map: [at(1)?, at(3)?],
            unmap: [at(2)?, at(4)?],
        });
    }
    Ok(rows)
}

/// The samples of the range-flush table.
///
/// # Errors
/// A row that is not an operation, a size and two positive numbers.
pub fn range_flush(text: &str) -> Result<Vec<RangeFlushSample>> {
    let mut rows = Vec::new();
    for (line, record) in records(text, 4)? {
        rows.push(RangeFlushSample {
            direction: match record[0] {
                "map" => Direction::Map,
                "unmap" => Direction::Unmap,
                other => bail!("line {line}: `{other}` is neither map nor unmap"),
            },
            size: record[1].to_owned(),
            before: number(line, record[2])?,
            after: number(line, record[3])?,
        });
    }
    Ok(rows)
}

/// The flush-queue table: Gbit/s strict, and with a flush queue.
///
/// # Errors
/// If a row is malformed, unknown, missing or there twice.
pub fn flush_queue(text: &str) -> Result<[f64; 2]> {
    let mut found = [None; 2];
    for (line, record) in records(text, 2)? {
        let place = match record[0] {
            "strict" => &mut found[0],
            "flush-queue" => &mut found[1],
            other => bail!("line {line}: no policy is called `{other}`"),
        };
        if place.replace(number(line, record[1])?).is_some() {
            bail!("line {line}: `{}` is there twice", record[0]);
        }
    }
    match found {
        [Some(strict), Some(lazy)] => Ok([strict, lazy]),
        _ => bail!("a policy is missing"),
    }
}

/// Which way fio moves its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction4K {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

impl Direction4K {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// The name in the published table and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Whose pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// One lock.
    Vanilla,
    /// A lock for each area, a bitmap, the slots that were freed last first.
    Optimized,
}

impl Kernel {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Vanilla, Self::Optimized];

    /// The name in the published table and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Optimized => "optimized",
        }
    }
}

/// One row of the bounce-pool table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiotlbRow {
    /// Jobs.
    pub jobs: usize,
    /// Whose pool.
    pub kernel: Kernel,
    /// Which way.
    pub direction: Direction4K,
    /// Megabytes (10^6) a second.
    pub throughput_mb_s: f64,
    /// Guest CPU; 100 is one CPU.
    pub guest_cpu_pct: f64,
}

/// The rows of the bounce-pool table.
///
/// # Errors
/// A row that is not a number of jobs, a kernel, a direction and four positive numbers.
pub fn swiotlb(text: &str) -> Result<Vec<SwiotlbRow>> {
    let mut rows = Vec::new();
    for (line, record) in records(text, 7)? {
        let jobs = record[0];
        let named = |name: &str| Kernel::ALL.into_iter().find(|kernel| kernel.name() == name);
        let way = |name: &str| Direction4K::ALL.into_iter().find(|way| way.name() == name);
        rows.push(SwiotlbRow {
            jobs: jobs
                .parse()
                .ok()
                .filter(|jobs| (1..=4096).contains(jobs))
                .with_context(|| format!("line {line}: `{jobs}` is not a number of jobs"))?,
            kernel: named(record[1])
                .with_context(|| format!("line {line}: no kernel is called `{}`", record[1]))?,
            direction: way(record[2])
                .with_context(|| format!("line {line}: `{}` is no direction", record[2]))?,
            throughput_mb_s: number(line, record[3])?,
            guest_cpu_pct: number(line, record[6])?,
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_tables_are_read() {
        let walk = walk_flush(WALK_FLUSH).unwrap();
        assert_eq!(walk.len(), 8);
        assert_eq!(walk[7].size_bytes, 32 << 20);
        assert_eq!(walk[7].map, [4747.171, 4755.234]);
        assert_eq!(walk[7].unmap, [1033.364, 51.797]);
        let range = range_flush(RANGE_FLUSH).unwrap();
        assert_eq!(range.len(), 24);
        assert_eq!(range[23].size, "18M");
        assert_eq!((range[23].before, range[23].after), (21764.0, 652.0));
    }

    #[test]
    fn malformed_rows_are_errors() {
        let text = "a,b,c,d\nmap,4M,1,2\nremap,4M,1,2\n";
        let error = range_flush(text).unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("remap"),
            "{error}"
        );
        assert!(range_flush("a,b,c,d\nmap,4M,0,2\n").is_err());
        assert!(walk_flush("a,b,c,d,e\n1,2,3,4,x\n").is_err());
    }
}
