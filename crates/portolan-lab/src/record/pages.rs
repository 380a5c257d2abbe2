//! Pages of the kernel's ring buffer: what a read of `trace_pipe_raw` brings.
//!
//! Linux, Documentation/trace/ring-buffer-design.rst, and what `events/header_page` and `events/header_event`
//! of a tracefs say: a page begins with a time and the length of what was committed to it, records follow,
//! each with the time since the one before. The machine's own byte order alone: a page is read where it was
//! written.

use std::collections::VecDeque;

/// Bits of a page's length: events are missing before it; after its records is how many.
const MISSED: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;
const LENGTH: u64 = MISSED_STORED - 1;
/// Kinds of records (`events/header_event`) that carry no event.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Bits of a time that a record of kind [`TIME_STAMP`] does not have.
const TOP_BITS: u64 = 0x1f << 59;

/// Where things are in a page, as `events/header_page` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    commit: usize,
    commit_bytes: usize,
    data: usize,
    /// Bytes of a page.
    pub(super) page: usize,
}

impl Layout {
    /// Reads the kernel's description; `None` where it has not the fields that it always had.
    pub(super) fn parse(header_page: &str) -> Option<Self> {
        let field = |name: &str| {
            let named = format!(" {name};");
            let mut lines = header_page.lines();
            let line = lines.find(|line| line.contains(&named))?;
            let number = |key: &str| -> Option<usize> {
                let (_, after) = line.split_once(key)?;
                after.split(';').next()?.trim().parse().ok()
            };
            Some((number("offset:")?, number("size:")?))
        };
        let ((commit, commit_bytes), (data, data_bytes)) = (field("commit")?, field("data")?);
        let layout = Self {
            commit,
            commit_bytes,
            data,
            page: data.checked_add(data_bytes)?,
        };
        let fits = commit == 8 && matches!(commit_bytes, 4 | 8) && data == commit + commit_bytes;
        (fits && layout.page <= 1 << 20).then_some(layout)
    }
}

/// A record: its time, and where in its page it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    time: u64,
    start: u32,
    end: u32,
}

/// A page whose records were found.
#[derive(Debug)]
pub(super) struct Page {
    bytes: Vec<u8>,
    records: VecDeque<Record>,
    /// Events that are missing before it; `u64::MAX` where the kernel does not say how many.
    pub(super) lost: u64,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(eight.try_into().ok()?))
}

impl Page {
    /// Finds the records of a page; `None` if it is not as `layout` has it.
    pub(super) fn parse(bytes: Vec<u8>, layout: Layout) -> Option<Self> {
        let mut time = long(&bytes, 0)?;
        let commit = match layout.commit_bytes {
            4 => u64::from(word(&bytes, layout.commit)?),
            _ => long(&bytes, layout.commit)?,
        };
        let end = layout.data.checked_add((commit & LENGTH) as usize)?;
        if end > bytes.len() {
            return None;
        }
        let lost = match (commit & MISSED, commit & MISSED_STORED) {
            (0, _) => 0,
            (_, 0) => u64::MAX,
            (_, _) => match layout.commit_bytes {
                4 => word(&bytes, end).map_or(u64::MAX, u64::from),
                _ => long(&bytes, end).unwrap_or(u64::MAX),
            },
        };
        let (mut at, mut records) = (layout.data, VecDeque::new());
        while at < end {
            let head = word(&bytes, at)?;
            let (kind, delta) = (head & 0x1f, u64::from(head >> 5));
            let next = word(&bytes, at + 4).unwrap_or(0);
            let (start, stop) = match kind {
                PADDING if delta == 0 => break,
                PADDING => {
                    time = time.wrapping_add(delta);
                    at = at.checked_add(4)?.checked_add(next as usize)?;
                    continue;
                }
                TIME_EXTEND => {
                    time = time.wrapping_add(u64::from(next) << 27 | delta);
                    at += 8;
                    continue;
                }
                TIME_STAMP => {
                    time = time & TOP_BITS | u64::from(next) << 27 | delta;
                    at += 8;
                    continue;
                }
                // The length is a word of its own, which counts itself.
                0 => (at + 8, at.checked_add(4)?.checked_add(next as usize)?),
                words => (at + 4, at + 4 + 4 * words as usize),
            };
            if stop <= at + 4 || stop < start || stop > end {
                return None;
            }
            time = time.wrapping_add(delta);
            records.push_back(Record {
                time,
                start: u32::try_from(start).ok()?,
                end: u32::try_from(stop).ok()?,
            });
            at = stop;
        }
        Some(Self {
            bytes,
            records,
            lost,
        })
    }

    /// The time of its next record.
    pub(super) fn next_time(&self) -> Option<u64> {
        self.records.front().map(|record| record.time)
    }

    /// The time of its last record.
    pub(super) fn last_time(&self) -> Option<u64> {
        self.records.back().map(|record| record.time)
    }

    /// Takes its next record: its time and bytes.
    pub(super) fn take(&mut self) -> Option<(u64, &[u8])> {
        let record = self.records.pop_front()?;
        let range = record.start as usize..record.end as usize;
        Some((record.time, self.bytes.get(range)?))
    }
}
