//! Places of the parts of a sample of perf.
//!
//! Implements `PERF_RECORD_SAMPLE` and `struct sample_id` of perf_event_open(2), up to the raw bytes of
//! a tracepoint, behind which nothing is of use here.

use super::error::RecordingError;

/// Parts of samples (`PERF_SAMPLE_*`).
mod part {
    pub(super) const IP: u64 = 1 << 0;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const RAW: u64 = 1 << 10;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
}

/// Parts of a counter's value (`PERF_FORMAT_*`).
mod read_part {
    pub(super) const TIMES: u64 = 0b11;
    pub(super) const ID: u64 = 1 << 2;
    pub(super) const GROUP: u64 = 1 << 3;
    pub(super) const LOST: u64 = 1 << 4;
}

const TRACEPOINT: u32 = 2;
const SAMPLE_ID_ALL: u64 = 1 << 18;

/// Layout of the samples of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampleLayout {
    parts: u64,
    read: u64,
    /// Other records end with a time and a CPU too.
    marks_all: bool,
}

/// Contents of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PerfSample<'r> {
    pub(super) pid: i32,
    pub(super) time_ns: u64,
    pub(super) cpu: u32,
    /// The tracepoint's own bytes; empty for other events.
    pub(super) raw: &'r [u8],
}

/// Words of a record, front to back.
struct Words<'r>(&'r [u8]);

impl<'r> Words<'r> {
    fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// Two numbers of 32 bits.
    fn pair(&mut self) -> Option<[u32; 2]> {
        let word = self.u64()?;
        Some([word as u32, (word >> 32) as u32])
    }

    /// Takes so many words.
    fn take(&mut self, words: u64) -> Option<&'r [u8]> {
        let bytes = usize::try_from(words.checked_mul(8)?).ok()?;
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl SampleLayout {
    /// Reads `struct perf_event_attr`; its length with it.
    ///
    /// # Errors
    /// If it is cut, or a tracepoint's samples lack a part that is needed.
    pub(super) fn parse(attr: &[u8]) -> Result<(Self, usize), RecordingError> {
        const CUT: RecordingError = RecordingError::Cut("the events' settings");
        let number = |at| word(attr, at).map(u64::from_le_bytes).ok_or(CUT);
        let head = number(0)?;
        let (kind, length) = (head as u32, (head >> 32) as usize);
        let layout = Self {
            parts: number(24)?,
            read: number(32)?,
            marks_all: number(40)? & SAMPLE_ID_ALL != 0,
        };
        let has = |part| layout.parts & part != 0;
        if kind == TRACEPOINT {
            for (part, name) in [
                (part::TIME, "their times"),
                (part::CPU, "their CPUs; record with `-a`"),
                (part::RAW, "what the events say; record with `-R`"),
            ] {
                if !has(part) {
                    return Err(RecordingError::Lacking(name));
                }
            }
        }
        Ok((layout, length))
    }

    /// Tells if its samples begin with the event's number.
    pub(super) fn begins_with_id(self) -> bool {
        self.parts & part::IDENTIFIER != 0
    }

    /// Reads the body of a sample.
    pub(super) fn sample(self, body: &[u8]) -> Option<PerfSample<'_>> {
        let mut words = Words(body);
        let mut sample = PerfSample::default();
        let has = |part: u64| self.parts & part != 0;
        let ones = |parts: u64| u64::from((self.parts & parts).count_ones());
        words.take(ones(part::IDENTIFIER | part::IP))?;
        if has(part::TID) {
            sample.pid = words.pair()?[1] as i32;
        }
        if has(part::TIME) {
            sample.time_ns = words.u64()?;
        }
        words.take(ones(part::ADDR | part::ID | part::STREAM_ID))?;
        if has(part::CPU) {
            sample.cpu = words.pair()?[0];
        }
        words.take(ones(part::PERIOD))?;
        if has(part::READ) {
            let more = u64::from((self.read & (read_part::ID | read_part::LOST)).count_ones());
            let times = u64::from((self.read & read_part::TIMES).count_ones());
            let count = match self.read & read_part::GROUP {
                0 => 1 + times + more,
                _ => words.u64()?.checked_mul(1 + more)?.checked_add(times)?,
            };
            words.take(count)?;
        }
        if has(part::CALLCHAIN) {
            let count = words.u64()?;
            words.take(count)?;
        }
        if has(part::RAW) {
            let (length, rest) = words.0.split_first_chunk()?;
            sample.raw = rest.get(..u32::from_le_bytes(*length) as usize)?;
        }
        Some(sample)
    }

    /// Reads time and CPU at the end of another record; nothing if they are not there.
    pub(super) fn mark(self, body: &[u8]) -> Option<PerfSample<'_>> {
        let parts = self.parts
            & (part::TID | part::TIME | part::ID | part::STREAM_ID | part::CPU | part::IDENTIFIER);
        let words = parts.count_ones() as usize;
        let start = body.len().checked_sub(8 * words)?;
        // It is laid out as the beginning of a sample with just these parts, its number last.
        let front = Self { parts: parts & !part::IDENTIFIER, ..self };
        if !self.marks_all {
            return None;
        }
        front.sample(&body[start..])
    }
}
