//! Pages of the kernel's ring buffer: events with their times, and how many were lost.
//!
//! Implements the layout that `header_page` and `header_event` of tracefs describe
//! (include/linux/ring_buffer.h and kernel/trace/ring_buffer.c of Linux), little-endian, with words of
//! eight bytes.

use std::ops::Range;

use super::error::RecordingError;
use super::format::EventField;

/// Sizes of a page that are believed; today's are 4 to 256 KiB.
const SIZES: std::ops::RangeInclusive<usize> = 64..=1 << 20;

/// Bits of a page's length that are the length.
const LENGTH: u64 = (1 << 27) - 1;
/// The page says how many events were lost before it.
const LOST_COUNTED: u64 = 1 << 30;
/// Events were lost before this page.
const LOST: u64 = 1 << 31;
/// Bits of a time that an absolute time stamp lacks.
const TIME_TOP: u64 = 0xf8 << 56;

/// Where things lie in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageLayout {
    length_at: usize,
    data_at: usize,
    /// Bytes of a page.
    pub(super) size: usize,
}

impl PageLayout {
    /// Reads the file `header_page`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, RecordingError> {
        let odd = RecordingError::Odd("the layout of a page");
        let Ok(text) = str::from_utf8(text) else {
            return Err(odd);
        };
        let fields: Vec<_> = text
            .lines()
            .filter_map(|line| EventField::parse(line.trim()))
            .collect();
        let field = |name: &str| fields.iter().find(|field| &*field.name == name);
        let (Some(length), Some(data)) = (field("commit"), field("data")) else {
            return Err(odd);
        };
        if length.size != 8 {
            return Err(RecordingError::WordSize(length.size as u64));
        }
        let size = data.offset.saturating_add(data.size);
        let fits = |offset: usize| offset.checked_add(8).is_some_and(|end| end <= size);
        match SIZES.contains(&size) && fits(length.offset) && fits(data.offset) {
            true => Ok(Self {
                length_at: length.offset,
                data_at: data.offset,
                size,
            }),
            false => Err(odd),
        }
    }
}

/// Events that were lost before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostBefore {
    None,
    /// Some; the kernel does not know how many.
    Some,
    Counted(u64),
}

/// A page that is read event by event.
#[derive(Debug, Default)]
pub(super) struct Page {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
    time_ns: u64,
}

/// A page whose contents make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

fn word<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Damaged> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(Damaged)
}

impl Page {
    /// Begins with another page; `fill` writes its bytes.
    pub(super) fn refill<E>(
        &mut self,
        layout: PageLayout,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Result<LostBefore, Damaged>, E> {
        self.bytes.resize(layout.size, 0);
        (self.at, self.end) = (0, 0);
        fill(&mut self.bytes)?;
        Ok(self.begin(layout))
    }

    fn begin(&mut self, layout: PageLayout) -> Result<LostBefore, Damaged> {
        self.time_ns = u64::from_le_bytes(word(&self.bytes, 0)?);
        let said = u64::from_le_bytes(word(&self.bytes, layout.length_at)?);
        let end = layout.data_at + (said & LENGTH) as usize;
        if end > self.bytes.len() {
            return Err(Damaged);
        }
        (self.at, self.end) = (layout.data_at, end);
        match (said & LOST != 0, said & LOST_COUNTED != 0) {
            (false, _) => Ok(LostBefore::None),
            (true, false) => Ok(LostBefore::Some),
            (true, true) => {
                let count = u64::from_le_bytes(word(&self.bytes, end)?);
                Ok(LostBefore::Counted(count))
            }
        }
    }

    /// The next event: its time and where its bytes are; `None` at the end of the page.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Range<usize>)>, Damaged> {
        while self.at < self.end {
            let head = u32::from_le_bytes(word(&self.bytes, self.at)?);
            let (kind, delta) = (head & 0x1f, u64::from(head >> 5));
            let second = || word(&self.bytes, self.at + 4).map(u32::from_le_bytes);
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
            let end = data.checked_add(length).filter(|end| *end <= self.end);
            let end = end.ok_or(Damaged)?;
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
        match whole < self.time_ns && self.time_ns & TIME_TOP != 0 {
            true => whole.wrapping_add(1 << 59),
            false => whole,
        }
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or(b"")
    }
}
