//! Pages of the kernel's ring buffer: events with their times, and numbers of lost ones.
//!
//! Implements the layout that `header_page` and `header_event` of tracefs describe
//! (include/linux/ring_buffer.h and kernel/trace/ring_buffer.c of Linux), little-endian. The pages are
//! those of a recording, or those that a read of `trace_pipe_raw` brings.

use std::io::Write;
use std::ops::Range;

use super::error::RecordingError;
use super::format::EventField;

/// Sizes of a page that are believed; today's are 4 to 256 KiB.
const SIZES: std::ops::RangeInclusive<usize> = 64..=1 << 20;

/// Bits of a page's length that are the length.
const LENGTH: u64 = (1 << 27) - 1;
/// The page has the number of events that were lost before it.
const LOST_COUNTED: u64 = 1 << 30;
/// Events were lost before this page.
const LOST: u64 = 1 << 31;
/// Bits of a time that an absolute time stamp lacks.
const TIME_TOP: u64 = 0xf8 << 56;

/// Offsets in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageLayout {
    length_at: usize,
    /// Bytes of the length: a word of the kernel's.
    length_size: usize,
    data_at: usize,
    /// Bytes of a page.
    pub(crate) size: usize,
}

impl PageLayout {
    /// Reads the file `header_page`.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, RecordingError> {
        let odd = RecordingError::Odd("the layout of a page");
        let Ok(text) = str::from_utf8(text) else {
            return Err(odd);
        };
        let fields: Vec<_> =
            text.lines().filter_map(|line| EventField::parse(line.trim())).collect();
        let field = |name: &str| fields.iter().find(|field| &*field.name == name);
        let (Some(length), Some(data)) = (field("commit"), field("data")) else {
            return Err(odd);
        };
        if !matches!(length.size, 4 | 8) {
            return Err(RecordingError::WordSize(length.size as u64));
        }
        let size = data.offset.saturating_add(data.size);
        let fits = |offset: usize| offset.checked_add(8).is_some_and(|end| end <= size);
        if SIZES.contains(&size) && fits(length.offset) && fits(data.offset) {
            Ok(Self {
                length_at: length.offset,
                length_size: length.size,
                data_at: data.offset,
                size,
            })
        } else {
            Err(odd)
        }
    }

    /// The kernel's word at `at` of a page.
    fn long(self, bytes: &[u8], at: usize) -> Result<u64, Damaged> {
        match self.length_size {
            4 => word(bytes, at).map(|four| u32::from_le_bytes(four).into()),
            _ => word(bytes, at).map(u64::from_le_bytes),
        }
    }
}

/// Events that were lost before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostBefore {
    None,
    /// Some; the kernel does not know their number.
    Some,
    Counted(u64),
}

/// A page that is read event by event.
#[derive(Debug, Default)]
pub(crate) struct Page {
    bytes: Vec<u8>,
    cursor: Cursor,
}

/// Position up to which a page was read.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    at: usize,
    end: usize,
    time_ns: u64,
}

/// A page whose contents make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

fn word<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Damaged> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(Damaged)
}

impl LostBefore {
    /// Writes the line that the kernel prints where events of `cpu` are missing.
    pub(crate) fn write_line(self, cpu: u32, out: &mut Vec<u8>) {
        // Writes to memory do not fail.
        let _ = match self {
            Self::None => Ok(()),
            Self::Some => writeln!(out, "CPU:{cpu} [LOST EVENTS]"),
            Self::Counted(count) => writeln!(out, "CPU:{cpu} [LOST {count} EVENTS]"),
        };
    }
}

impl Page {
    /// Page in `bytes`, and the events lost before it.
    pub(crate) fn of(bytes: Vec<u8>, layout: PageLayout) -> Result<(Self, LostBefore), Damaged> {
        let mut page = Self { bytes, ..Self::default() };
        let lost = page.begin(layout)?;
        Ok((page, lost))
    }

    /// Begins with another page; `fill` writes its bytes.
    pub(super) fn refill<E>(
        &mut self,
        layout: PageLayout,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Result<LostBefore, Damaged>, E> {
        self.bytes.resize(layout.size, 0);
        self.cursor = Cursor::default();
        fill(&mut self.bytes)?;
        Ok(self.begin(layout))
    }

    fn begin(&mut self, layout: PageLayout) -> Result<LostBefore, Damaged> {
        let time_ns = u64::from_le_bytes(word(&self.bytes, 0)?);
        let said = layout.long(&self.bytes, layout.length_at)?;
        let end = layout.data_at + (said & LENGTH) as usize;
        if end > self.bytes.len() {
            return Err(Damaged);
        }
        self.cursor = Cursor { at: layout.data_at, end, time_ns };
        match (said & LOST != 0, said & LOST_COUNTED != 0) {
            (false, _) => Ok(LostBefore::None),
            (true, false) => Ok(LostBefore::Some),
            (true, true) => Ok(LostBefore::Counted(layout.long(&self.bytes, end)?)),
        }
    }

    /// The next event: its time and where its bytes are; `None` at the end of the page.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Range<usize>)>, Damaged> {
        self.cursor.next(&self.bytes)
    }

    /// Time of the last event, if there is one, after a check of all events before it.
    pub(crate) fn last_time_ns(&self) -> Result<Option<u64>, Damaged> {
        let (mut cursor, mut last) = (self.cursor, None);
        while let Some((time_ns, _)) = cursor.next(&self.bytes)? {
            last = Some(time_ns);
        }
        Ok(last)
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or(b"")
    }
}

impl Cursor {
    fn next(&mut self, bytes: &[u8]) -> Result<Option<(u64, Range<usize>)>, Damaged> {
        while self.at < self.end {
            let head = u32::from_le_bytes(word(bytes, self.at)?);
            let (kind, delta) = (head & 0x1f, u64::from(head >> 5));
            let second = || word(bytes, self.at + 4).map(u32::from_le_bytes);
            let (data, length) = match kind {
                // Nothing more on this page.
                29 if delta == 0 => {
                    self.at = self.end;
                    return Ok(None);
                }
                29 => (self.at + 4, second()? as usize),
                30 | 31 => (self.at + 8, 0),
                0 => {
                    let length = (second()? as usize).checked_sub(4).ok_or(Damaged)?;
                    (self.at + 8, length)
                }
                words => (self.at + 4, words as usize * 4),
            };
            self.time_ns = match kind {
                30 => {
                    let more = u64::from(second()?) << 27;
                    self.time_ns.wrapping_add(delta | more)
                }
                31 => self.absolute(delta | u64::from(second()?) << 27),
                _ => self.time_ns.wrapping_add(delta),
            };
            let end = data.checked_add(length).filter(|end| *end <= self.end).ok_or(Damaged)?;
            self.at = end.next_multiple_of(4);
            if kind < 29 {
                return Ok(Some((self.time_ns, data..end)));
            }
        }
        Ok(None)
    }

    /// An absolute time stamp with the bits that it lacks.
    fn absolute(&self, stamp: u64) -> u64 {
        let whole = stamp | self.time_ns & TIME_TOP;
        if whole < self.time_ns && self.time_ns & TIME_TOP != 0 {
            whole.wrapping_add(1 << 59)
        } else {
            whole
        }
    }
}
