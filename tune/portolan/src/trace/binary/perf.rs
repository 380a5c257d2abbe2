//! `perf.data` of perf, as a file or through a pipe.
//!
//! Implements tools/perf/Documentation/perf.data-file-format.txt of Linux: the events' descriptions
//! (`HEADER_TRACING_DATA`), samples of tracepoints, names of tasks, lost events. Records are put in
//! order by perf's rounds: records of a round come after those of the round before the last one.
//! Named and not read: folders, perf's first form, big-endian files. The crate
//! `linux-perf-data` is not used; `docs/dependencies.md` says why.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::{BufReader, Read};

use super::error::RecordingError;
use super::events::{EventTable, Moment};
use super::input::{PartReader, Seekable};
use super::sample::SampleLayout;
use super::trace_dat::{read_layouts, read_start};
use super::unpacking::Unpacking;
use super::{Recording, release_line};

/// Lines that wait for their turn; beyond, the oldest goes first.
const MOST_WAITING: usize = 256 << 20;
/// The longest part of a file's head.
const MOST_PART: u64 = 128 << 20;
/// Events of one recording: settings, and numbers.
const MOST_EVENTS: usize = 1 << 20;
/// Rounds that ended while the compressed stream is read.
const MOST_ROUNDS: usize = 1 << 16;
/// Length of a pipe's head.
const PIPE: u64 = 16;

/// Records (`PERF_RECORD_*`).
mod record {
    pub(super) const LOST: u32 = 2;
    pub(super) const COMM: u32 = 3;
    pub(super) const SAMPLE: u32 = 9;
    pub(super) const LOST_SAMPLES: u32 = 13;
    pub(super) const ATTR: u32 = 64;
    pub(super) const TRACING_DATA: u32 = 66;
    pub(super) const FINISHED_ROUND: u32 = 68;
    pub(super) const AUXTRACE: u32 = 71;
    pub(super) const COMPRESSED: u32 = 81;
    pub(super) const COMPRESSED2: u32 = 83;
}

/// Parts of a file's head, by bit.
mod feature {
    pub(super) const TRACING_DATA: u32 = 1;
    pub(super) const RELEASE: u32 = 4;
}

/// A line that waits for its turn.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PendingLine {
    time_ns: u64,
    /// Its position in the file.
    number: u64,
    line: Box<[u8]>,
}

/// A recording of perf.
pub(super) struct PerfData {
    input: PartReader<BufReader<Box<dyn Seekable>>>,
    /// Bytes of records that are left; `None` up to the end of the file.
    left: Option<u64>,
    events: EventTable,
    layouts: Vec<SampleLayout>,
    /// Index of the layout by the event's number.
    by_id: HashMap<u64, usize>,
    /// Lines before the events.
    head: String,
    waiting: BinaryHeap<Reverse<PendingLine>>,
    waiting_bytes: usize,
    number: u64,
    /// Time up to which all records have been read.
    complete_ns: u64,
    /// The latest time when the last round ended.
    round_ns: u64,
    /// The latest time so far.
    latest_ns: u64,
    lost: u64,
    lost_samples: u64,
    unpacking: Unpacking,
    unpacked: Unpacked,
    /// Places of the compressed stream when rounds ended.
    rounds: VecDeque<u64>,
    /// Reason why no more records of the file are read.
    broken: Option<RecordingError>,
    ended: EndOfRecords,
}

enum EndOfRecords {
    No,
    Yes,
    Broken(RecordingError),
}

/// The number of eight bytes at `at`; 0 if it is not there.
fn number(body: &[u8], at: usize) -> u64 {
    let found = body.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// True if the end of the compressed stream was reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unpacked {
    Open,
    Whole,
}

/// The longest release, with its padding.
const LONGEST_RELEASE: u64 = 256;
const DESCRIPTIONS: &str = "the events' descriptions";

/// The head of a file.
struct FileHead {
    attr_size: u64,
    attrs: Span,
    data: Span,
    features: u64,
}

impl FileHead {
    /// Place in the table of features, behind the events, of the entry of `feature`, if the file has it.
    fn place_of(&self, feature: u32) -> Option<Result<u64, RecordingError>> {
        let before = self.features & ((1 << feature) - 1);
        let row = u64::from(before.count_ones()) * Span::BYTES;
        let table = self.data.offset.checked_add(self.data.length);
        let place = table.and_then(|table| table.checked_add(row));
        let has = self.features & 1 << feature != 0;
        has.then(|| place.ok_or(RecordingError::TooLarge("the events")))
    }
}

/// A part of a file.
#[derive(Clone, Copy)]
struct Span {
    offset: u64,
    length: u64,
}

impl Span {
    /// Length of its encoding.
    const BYTES: u64 = 16;

    fn read(fields: &mut PartReader<impl Read>) -> Result<Self, RecordingError> {
        Ok(Self { offset: fields.u64()?, length: fields.u64()? })
    }
}

/// The line with the kernel's release, empty if the file does not say it.
fn read_release(file: &mut dyn Seekable, head: &FileHead) -> Result<String, RecordingError> {
    const PART: &str = "the kernel's release";
    let Some(at) = head.place_of(feature::RELEASE) else {
        return Ok(String::new());
    };
    let span = Span::read(&mut PartReader::at(file, at?, PART)?)?;
    let mut fields = PartReader::at(file, span.offset, PART)?;
    let length = fields.u32()?;
    let release = fields.block(length.into(), LONGEST_RELEASE)?;
    let release = release.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(release_line(&String::from_utf8_lossy(release)))
}

impl PerfData {
    pub(super) fn open(mut file: Box<dyn Seekable>) -> Result<Self, RecordingError> {
        let mut fields = PartReader::at(&mut *file, 0, "the head of the file")?;
        match &fields.array()? {
            b"PERFILE2" => {}
            b"2ELIFREP" => return Err(RecordingError::BigEndian),
            _ => return Err(RecordingError::FirstPerf),
        }
        let size = fields.u64()?;
        let mut perf = if size == PIPE {
            Self::new(file, PIPE, None)?
        } else {
            let head = FileHead {
                attr_size: fields.u64()?,
                attrs: Span::read(&mut fields)?,
                data: Span::read(&mut fields)?,
                features: {
                    Span::read(&mut fields)?;
                    fields.u64()?
                },
            };
            Self::of_file(file, &head)?
        };
        // Errors in it show in its first samples.
        while perf.waiting.is_empty() {
            match perf.ended {
                EndOfRecords::No => perf.read_record(),
                EndOfRecords::Yes => break,
                EndOfRecords::Broken(error) => return Err(error),
            }
        }
        Ok(perf)
    }

    fn new(
        mut file: Box<dyn Seekable>,
        offset: u64,
        left: Option<u64>,
    ) -> Result<Self, RecordingError> {
        file.seek(std::io::SeekFrom::Start(offset))?;
        Ok(Self {
            input: PartReader::new(BufReader::with_capacity(1 << 18, file), "the events"),
            left,
            events: EventTable::default(),
            layouts: Vec::new(),
            by_id: HashMap::new(),
            head: String::new(),
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            number: 0,
            complete_ns: 0,
            round_ns: 0,
            latest_ns: 0,
            lost: 0,
            lost_samples: 0,
            unpacking: Unpacking::new(),
            unpacked: Unpacked::Open,
            rounds: VecDeque::new(),
            broken: None,
            ended: EndOfRecords::No,
        })
    }

    fn of_file(mut file: Box<dyn Seekable>, head: &FileHead) -> Result<Self, RecordingError> {
        let mut events = EventTable::default();
        // perf writes the descriptions when it ends, and the length of the data with them.
        if let Some(at) = head.place_of(feature::TRACING_DATA) {
            let span = Span::read(&mut PartReader::at(&mut *file, at?, DESCRIPTIONS)?)?;
            let mut fields = PartReader::at(&mut *file, span.offset, DESCRIPTIONS)?;
            read_events(&mut fields, &mut events)?;
        }
        if events.is_empty() {
            let why = match head.data.length {
                0 => "perf was killed before it wrote them",
                _ => "record with `-e 'dma:*' -e 'iommu:*'`",
            };
            return Err(RecordingError::NoEvents(why));
        }
        let attrs = read_attrs(&mut *file, head)?;
        let release = read_release(&mut *file, head)?;
        let mut perf = Self::new(file, head.data.offset, Some(head.data.length))?;
        perf.events = events;
        perf.head = release;
        for (attr, ids) in attrs {
            perf.add_attr(&attr, ids)?;
        }
        Ok(perf)
    }

    fn add_attr(
        &mut self,
        attr: &[u8],
        ids: impl IntoIterator<Item = u64>,
    ) -> Result<(), RecordingError> {
        let (layout, _) = SampleLayout::parse(attr)?;
        let index = self.layouts.iter().position(|known| *known == layout).unwrap_or_else(|| {
            self.layouts.push(layout);
            self.layouts.len() - 1
        });
        let room = MOST_EVENTS.saturating_sub(self.by_id.len());
        self.by_id.extend(ids.into_iter().take(room).map(|id| (id, index)));
        match &self.layouts[..] {
            [_] => Ok(()),
            // The event of a sample must be known for each sample.
            all if all.iter().all(|layout| layout.begins_with_id()) => Ok(()),
            _ => Err(RecordingError::Lacking("the number of their event")),
        }
    }

    /// The layout of the sample or other record with `body`.
    fn layout(&self, body: &[u8]) -> Option<SampleLayout> {
        if let [only] = self.layouts[..] {
            return Some(only);
        }
        let id = u64::from_le_bytes(*body.first_chunk()?);
        self.layouts.get(*self.by_id.get(&id)?).copied()
    }

    /// Reads one record; keeps the error that ends the recording.
    fn read_record(&mut self) {
        match (self.try_read(), self.unpacked) {
            (Ok(()), _) => {}
            // Earlier data are still to be unpacked.
            (Err(error), Unpacked::Open) => {
                self.broken = Some(error);
                self.left = Some(0);
                self.unpacked = Unpacked::Whole;
                self.unpacking.finish();
            }
            (Err(error), Unpacked::Whole) => {
                let first = self.broken.take().unwrap_or(error);
                self.finish(EndOfRecords::Broken(first));
            }
        }
    }

    fn try_read(&mut self) -> Result<(), RecordingError> {
        while self.rounds.front().is_some_and(|at| *at <= self.unpacking.read()) {
            self.rounds.pop_front();
            self.end_round();
        }
        if let Some(record) = self.unpacking.next()? {
            if let Some((head, body)) = record.split_first_chunk::<8>() {
                self.kernel_record(u64::from_le_bytes(*head) as u32, body);
            }
            return Ok(());
        }
        let head = match self.left {
            Some(0) => None,
            Some(_) => Some(self.input.array::<8>()?),
            // A pipe ends where it ends.
            None => match self.input.array::<8>() {
                Err(RecordingError::Cut(_)) => None,
                head => Some(head?),
            },
        };
        match (head.map(u64::from_le_bytes), self.unpacked) {
            // Type, bits of no use here, and length.
            (Some(head), _) => self.read_body(head as u32, head >> 48),
            (None, Unpacked::Open) => {
                self.unpacked = Unpacked::Whole;
                self.unpacking.finish();
                Ok(())
            }
            (None, Unpacked::Whole) => {
                let broken = self.broken.take();
                self.finish(broken.map_or(EndOfRecords::Yes, EndOfRecords::Broken));
                Ok(())
            }
        }
    }

    /// Ends a round. All events up to the time of the previous round have been read then.
    fn end_round(&mut self) {
        self.complete_ns = std::mem::replace(&mut self.round_ns, self.latest_ns);
    }

    fn read_body(&mut self, kind: u32, length: u64) -> Result<(), RecordingError> {
        let rest = length.checked_sub(8).ok_or(RecordingError::Odd("a record"))?;
        let body = self.input.block(rest, rest)?;
        let mut behind = 0;
        match kind {
            record::FINISHED_ROUND => {
                let position = self.unpacking.position();
                self.rounds.extend(position.filter(|_| self.rounds.len() < MOST_ROUNDS));
            }
            record::ATTR => self.attr(&body)?,
            record::TRACING_DATA => {
                behind = u64::from(number(&body, 0) as u32).next_multiple_of(8);
                let data = self.input.block(behind, MOST_PART)?;
                let mut fields = PartReader::new(&*data, "the events' descriptions");
                read_events(&mut fields, &mut self.events)?;
            }
            record::AUXTRACE => {
                behind = number(&body, 0);
                self.input.skip(behind)?;
            }
            record::COMPRESSED => self.unpacking.feed(&body),
            record::COMPRESSED2 => {
                let length = usize::try_from(number(&body, 0)).ok();
                let data = body.get(8..).zip(length);
                let data = data
                    .and_then(|(data, length)| data.get(..length))
                    .ok_or(RecordingError::Odd("the compressed records"))?;
                self.unpacking.feed(data);
            }
            _ => self.kernel_record(kind, &body),
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(length.saturating_add(behind));
        }
        Ok(())
    }

    /// Takes a record that the kernel wrote.
    fn kernel_record(&mut self, kind: u32, body: &[u8]) {
        match kind {
            record::SAMPLE => self.sample(body),
            record::COMM => {
                let pid = (number(body, 0) >> 32) as i32;
                self.events.name_task(pid, body.get(8..).unwrap_or(b""));
            }
            record::LOST => self.lost(number(body, 8), body),
            // These are counted again at the end of the recording.
            record::LOST_SAMPLES => {
                self.lost_samples = self.lost_samples.saturating_add(number(body, 0));
            }
            _ => {}
        }
    }

    /// Takes the settings of an event from a pipe.
    fn attr(&mut self, body: &[u8]) -> Result<(), RecordingError> {
        let (_, length) = SampleLayout::parse(body)?;
        let ids = body.get(length..).unwrap_or(b"").chunks_exact(8);
        let ids: Vec<u64> =
            ids.filter_map(|id| Some(u64::from_le_bytes(*id.first_chunk()?))).collect();
        self.add_attr(body, ids)
    }

    fn sample(&mut self, body: &[u8]) {
        let mut line = Vec::new();
        let sample = self.layout(body).and_then(|layout| layout.sample(body));
        let Some(sample) = sample else {
            self.wait(self.latest_ns, b"a sample of it cannot be read\n".to_vec());
            return;
        };
        let at = Moment { cpu: sample.cpu, time_ns: sample.time_ns };
        match sample.raw {
            [] => self.events.write_other(at, sample.pid, &mut line),
            raw => self.events.write_line(at, raw, &mut line),
        }
        self.wait(sample.time_ns, line);
    }

    fn lost(&mut self, count: u64, body: &[u8]) {
        self.lost = self.lost.saturating_add(count);
        let layout = self.layouts.first();
        let mark = layout.and_then(|layout| layout.mark(body)).unwrap_or_default();
        let time_ns = if mark.time_ns > 0 { mark.time_ns } else { self.latest_ns };
        let line = format!("CPU:{} [LOST {count} EVENTS]\n", mark.cpu);
        self.wait(time_ns, line.into_bytes());
    }

    fn wait(&mut self, time_ns: u64, line: Vec<u8>) {
        self.latest_ns = self.latest_ns.max(time_ns);
        self.waiting_bytes += line.len();
        self.number += 1;
        self.waiting.push(Reverse(PendingLine { time_ns, number: self.number, line: line.into() }));
    }

    fn finish(&mut self, ended: EndOfRecords) {
        let more = self.lost_samples.saturating_sub(self.lost);
        if more > 0 {
            self.wait(self.latest_ns, format!("CPU:0 [LOST {more} EVENTS]\n").into_bytes());
        }
        self.ended = ended;
    }
}

impl Recording for PerfData {
    fn write_lines(&mut self, out: &mut Vec<u8>) -> Result<bool, RecordingError> {
        if !self.head.is_empty() {
            out.extend_from_slice(std::mem::take(&mut self.head).as_bytes());
            return Ok(true);
        }
        loop {
            let reading = matches!(self.ended, EndOfRecords::No);
            let first = self.waiting.peek();
            let due = first.is_some_and(|Reverse(first)| {
                !reading || first.time_ns <= self.complete_ns || self.waiting_bytes > MOST_WAITING
            });
            if due && let Some(Reverse(first)) = self.waiting.pop() {
                self.waiting_bytes -= first.line.len();
                out.extend_from_slice(&first.line);
                return Ok(true);
            }
            match std::mem::replace(&mut self.ended, EndOfRecords::Yes) {
                EndOfRecords::No => {
                    self.ended = EndOfRecords::No;
                    self.read_record();
                }
                EndOfRecords::Yes => return Ok(false),
                EndOfRecords::Broken(error) => return Err(error),
            }
        }
    }
}

/// Reads the descriptions of events, which perf writes as trace-cmd does.
fn read_events(
    fields: &mut PartReader<impl Read>,
    events: &mut EventTable,
) -> Result<(), RecordingError> {
    let version = read_start(fields)?;
    if !["0.5", "0.6"].contains(&version.as_str()) {
        return Err(RecordingError::Version(version.escape_debug().to_string()));
    }
    read_layouts(fields)?;
    fields.enter("the events' descriptions");
    events.read_own(fields)?;
    events.read_systems(fields)
}

/// The settings of an event, and its numbers.
type AttrAndNumbers = (Vec<u8>, Vec<u64>);

/// The settings of each event, and its numbers.
fn read_attrs(
    file: &mut dyn Seekable,
    head: &FileHead,
) -> Result<Vec<AttrAndNumbers>, RecordingError> {
    const PART: &str = "the events' settings";
    // Each is followed by where its numbers are.
    let count = head.attrs.length.checked_div(head.attr_size).unwrap_or(0);
    let own = head.attr_size.checked_sub(16).ok_or(RecordingError::Odd(PART))?;
    if count > MOST_EVENTS as u64 {
        return Err(RecordingError::TooLarge(PART));
    }
    let mut spans = Vec::new();
    let mut fields = PartReader::at(file, head.attrs.offset, PART)?;
    for _ in 0..count {
        let attr = fields.block(own, 1 << 16)?;
        spans.push((attr, Span::read(&mut fields)?));
    }
    let length = spans.iter().fold(0, |sum: u64, (_, span)| sum.saturating_add(span.length));
    if length > 8 * MOST_EVENTS as u64 {
        return Err(RecordingError::TooLarge(PART));
    }
    let mut attrs = Vec::new();
    for (attr, span) in spans {
        let mut fields = PartReader::at(file, span.offset, PART)?;
        let bytes = fields.block(span.length, length)?;
        let numbers =
            bytes.chunks_exact(8).filter_map(|id| Some(u64::from_le_bytes(*id.first_chunk()?)));
        attrs.push((attr, numbers.collect()));
    }
    Ok(attrs)
}
