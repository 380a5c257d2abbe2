//! The published tables, embedded, and their rows as numbers.
//!
//! The files keep their source in `#` comments; a malformed row is an error with its line number.

use std::num::NonZeroU32;

use anyhow::{Result, bail};

use crate::csv::{CsvRow, rows_of};
use crate::measure::MapOrUnmap;

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

/// A size of the walk-flush table; microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WalkFlushRow {
    /// Bytes mapped and unmapped.
    pub size_bytes: u64,
    /// Map, before and after.
    pub map: [f64; 2],
    /// Unmap, before and after.
    pub unmap: [f64; 2],
}

/// A sample of the range-flush table; microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeFlushSample {
    /// Map or unmap.
    pub direction: MapOrUnmap,
    /// Size as published: `128K`, `4M`, `18M`.
    pub size: String,
    /// Flush after each page.
    pub before: f64,
    /// Microseconds with one flush at the end.
    pub after: f64,
}

/// Owner of the address space that a device uses.
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

/// A row of the table of I/O page faults; KB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IopfPublished {
    /// Owner of the address space.
    pub kind: IopfKind,
    /// Bytes of a message.
    pub msg_len_bytes: u64,
    /// Pages that a fault maps, if published.
    pub premap_pages: Option<NonZeroU32>,
    /// Messages.
    pub times: u64,
    /// Speed with all memory pinned.
    pub without_kb_s: f64,
    /// Speed with faults.
    pub with_kb_s: f64,
    /// Their number.
    pub faults: f64,
    /// Percentage of the speed without faults that remains.
    pub kept_pct: f64,
}

/// The rows of the table of I/O page faults.
///
/// # Errors
/// A row that is malformed.
pub fn iopf(text: &str) -> Result<Vec<IopfPublished>> {
    let row = |row: CsvRow<'_>| {
        Ok(IopfPublished {
            kind: row.one_of(0, [IopfKind::Vfio, IopfKind::Sva], IopfKind::name)?,
            msg_len_bytes: row.count(1)?,
            premap_pages: match row.text(2) {
                "" => None,
                _ => NonZeroU32::new(u32::try_from(row.count(2)?).unwrap_or(u32::MAX)),
            },
            times: row.count(3)?,
            without_kb_s: row.number(4)?,
            with_kb_s: row.number(5)?,
            faults: row.number(6)?,
            kept_pct: row.number(7)?,
        })
    };
    rows_of(text, 8)?.into_iter().map(row).collect()
}

/// The rows of the walk-flush table.
///
/// # Errors
/// A row that is not five positive numbers.
pub fn walk_flush(text: &str) -> Result<Vec<WalkFlushRow>> {
    let row = |row: CsvRow<'_>| {
        Ok(WalkFlushRow {
            size_bytes: row.count(0)?,
            map: [row.number(1)?, row.number(3)?],
            unmap: [row.number(2)?, row.number(4)?],
        })
    };
    rows_of(text, 5)?.into_iter().map(row).collect()
}

/// The samples of the range-flush table.
///
/// # Errors
/// A row that is not an operation, a size and two positive numbers.
pub fn range_flush(text: &str) -> Result<Vec<RangeFlushSample>> {
    let row = |row: CsvRow<'_>| {
        Ok(RangeFlushSample {
            direction: row.one_of(0, [MapOrUnmap::Map, MapOrUnmap::Unmap], MapOrUnmap::name)?,
            size: row.text(1).to_owned(),
            before: row.number(2)?,
            after: row.number(3)?,
        })
    };
    rows_of(text, 4)?.into_iter().map(row).collect()
}

/// The flush-queue table: Gbit/s strict, and with a flush queue.
///
/// # Errors
/// If a row is malformed, unknown, missing or there twice.
pub fn flush_queue(text: &str) -> Result<[f64; 2]> {
    let mut found = [None; 2];
    for row in rows_of(text, 2)? {
        let names = ["strict", "flush-queue"];
        let policy = row.one_of(0, [0, 1], |policy: usize| names[policy])?;
        if found[policy].replace(row.number(1)?).is_some() {
            bail!("line {}: `{}` is there twice", row.line, row.text(0));
        }
    }
    match found {
        [Some(strict), Some(lazy)] => Ok([strict, lazy]),
        _ => bail!("a policy is missing"),
    }
}

/// Direction in which fio moves its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction4K {
    /// Reads from the disk.
    Read,
    /// Writes to the disk.
    Write,
}

impl Direction4K {
    /// Reading and writing.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// The name in the published table and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Kernel whose pool it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The kernel with one lock.
    Vanilla,
    /// A lock for each area, a bitmap, the slots that were freed last first.
    Optimized,
}

impl Kernel {
    /// The kernel before the change and after it.
    pub const ALL: [Self; 2] = [Self::Vanilla, Self::Optimized];

    /// The name in the published table and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Optimized => "optimized",
        }
    }
}

/// A row of the bounce-pool table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiotlbRow {
    /// Jobs.
    pub jobs: usize,
    /// Kernel whose pool it is.
    pub kernel: Kernel,
    /// Direction of the blocks.
    pub direction: Direction4K,
    /// Megabytes (10^6) a second.
    pub throughput_mb_s: f64,
    /// Guest CPU; 100 is one CPU.
    pub guest_cpu_pct: f64,
    /// Thousands of requests a second.
    pub iops_k: f64,
    /// Host CPU; 100 is one CPU.
    pub host_cpu_pct: f64,
}

/// The rows of the bounce-pool table.
///
/// # Errors
/// A row that is not a number of jobs, a kernel, a direction and four positive numbers.
pub fn swiotlb(text: &str) -> Result<Vec<SwiotlbRow>> {
    let row = |row: CsvRow<'_>| {
        let jobs = row.count(0)?;
        if jobs > 4096 {
            bail!("line {}: {jobs} jobs are too many", row.line);
        }
        Ok(SwiotlbRow {
            jobs: jobs as usize,
            kernel: row.one_of(1, Kernel::ALL, Kernel::name)?,
            direction: row.one_of(2, Direction4K::ALL, Direction4K::name)?,
            throughput_mb_s: row.number(3)?,
            guest_cpu_pct: row.number(6)?,
            iops_k: row.number(4)?,
            host_cpu_pct: row.number(5)?,
        })
    };
    rows_of(text, 7)?.into_iter().map(row).collect()
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
        assert!(error.contains("line 3") && error.contains("remap"), "{error}");
        assert!(range_flush("a,b,c,d\nmap,4M,0,2\n").is_err());
        assert!(walk_flush("a,b,c,d,e\n1,2,3,4,x\n").is_err());
    }
}
