//! Merges the pages of all CPUs to lines of text in the order of time.
//!
//! The pages and the events' own text are read by [`crate::trace::binary`], as those of `trace.dat` are.
//! Pages come in rounds: in each, every CPU's buffer is read until it is empty, or up to a limit. After a
//! round, all events before the newest one of the round before have been read, from every CPU; later ones wait for
//! the next round. So memory is bounded by two rounds, and no clock but the trace's is asked.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::RecordError;
use super::events::{EventSelection, Tells};
use super::names::TaskNames;
use super::output::RecordingOutput;
use crate::trace::binary::events::EventPrinter;
use crate::trace::binary::ring::{Damaged, LostBefore, Page, PageLayout};
use crate::trace::binary::value::Disclosure;

/// Bytes of text that are handed on at once.
const BATCH: usize = 256 << 10;
/// Bytes of the head of a parcel: the CPU, and the length of its payload.
const HEAD: usize = 8;
/// End of a round, in place of a CPU number. CPUs whose buffers were not read to their end follow.
const ROUND: u32 = u32::MAX;

/// Appends a page of a CPU to a queue of parcels.
pub(super) fn put_page(into: &mut Vec<u8>, cpu: u32, page: &[u8]) {
    put(into, cpu, page);
}

/// Appends the end of a round.
pub(super) fn put_round(into: &mut Vec<u8>, cut: &[u32]) {
    let cpus: Vec<u8> = cut.iter().flat_map(|cpu| cpu.to_ne_bytes()).collect();
    put(into, ROUND, &cpus);
}

fn put(into: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    into.extend_from_slice(&kind.to_ne_bytes());
    into.extend_from_slice(&(bytes.len() as u32).to_ne_bytes());
    into.extend_from_slice(bytes);
}

/// Counts of events and bytes that went into the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Events, those without a line of their own included.
    pub(super) events: u64,
    /// Events that map something.
    pub(super) maps: u64,
    /// Runs of the kernel's timers.
    pub(super) timers: u64,
    /// Bytes of text.
    pub(super) bytes: u64,
}

/// Lines that an event's records become.
struct EventLines {
    printer: EventPrinter,
    tells: Tells,
}

/// A page whose events wait for their turn.
struct WaitingPage {
    page: Page,
    lost: LostBefore,
    /// Time and place of its next event.
    next: Option<(u64, Range<usize>)>,
    /// The time of its last event.
    last_ns: Option<u64>,
}

impl WaitingPage {
    /// Page in `bytes`, after a check of all its events.
    fn of(bytes: Vec<u8>, layout: PageLayout) -> Result<Self, Damaged> {
        let (mut page, lost) = Page::of(bytes, layout)?;
        Ok(Self { last_ns: page.last_time_ns()?, next: page.next()?, page, lost })
    }

    /// The time of its next event.
    fn next_ns(&self) -> Option<u64> {
        self.next.as_ref().map(|(time_ns, _)| *time_ns)
    }

    /// Takes its next event: the time and the bytes.
    fn take(&mut self) -> Option<(u64, &[u8])> {
        let (time_ns, event) = self.next.take()?;
        // All of the page was gone through when it came.
        self.next = self.page.next().unwrap_or(None);
        Some((time_ns, self.page.bytes(event)))
    }
}

/// Turns pages into text.
pub(crate) struct Merge {
    layout: PageLayout,
    kinds: HashMap<u16, EventLines>,
    cpus: HashMap<u32, VecDeque<WaitingPage>>,
    /// The newest time of the rounds before, and of all.
    before: u64,
    newest: u64,
    names: TaskNames,
    text: Vec<u8>,
    written: Written,
}

impl Merge {
    /// Makes a merge of the selected events, whose tasks have `names`.
    pub(crate) fn new(layout: PageLayout, events: &EventSelection, names: TaskNames) -> Self {
        let kinds = events.chosen.iter().filter_map(|event| {
            let printer = EventPrinter::parse(&event.format, Disclosure::Masked)?;
            let tells = event.tells;
            Some((printer.id(), EventLines { printer, tells }))
        });
        Self {
            layout,
            kinds: kinds.collect(),
            cpus: HashMap::new(),
            before: 0,
            newest: 0,
            names,
            text: Vec::new(),
            written: Written::default(),
        }
    }

    /// Takes parcels until they end, and writes their events to `output`; stores the number of events so far in
    /// `seen`.
    pub(super) fn run(
        mut self,
        mut parcels: impl Read,
        output: &mut RecordingOutput,
        seen: &AtomicU64,
    ) -> Result<Written, RecordError> {
        let mut write = |text: &[u8]| output.write(text);
        while let Some(parcel) = parcel(&mut parcels)? {
            self.take(parcel, &mut write)?;
            seen.store(self.written.events, Ordering::Relaxed);
        }
        self.end(write)
    }

    /// Takes `parcels`, which are whole, and hands the text of the events on that are due.
    pub(crate) fn feed(
        &mut self,
        mut parcels: &[u8],
        mut hand_on: impl FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        while let Some(parcel) = parcel(&mut parcels)? {
            self.take(parcel, &mut hand_on)?;
        }
        Ok(())
    }

    /// Hands the text of all events on that are left.
    pub(crate) fn end(
        &mut self,
        mut hand_on: impl FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<Written, RecordError> {
        self.write(u64::MAX, &mut hand_on)?;
        Ok(self.written)
    }

    fn take(
        &mut self,
        Parcel { kind, bytes }: Parcel,
        hand_on: &mut impl FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        match kind {
            ROUND => {
                let until = self.end_round(&bytes);
                self.write(until, hand_on)
            }
            cpu => self.page(cpu, bytes),
        }
    }

    fn page(&mut self, cpu: u32, bytes: Vec<u8>) -> Result<(), RecordError> {
        let page = WaitingPage::of(bytes, self.layout).map_err(|Damaged| RecordError::Page(cpu))?;
        self.newest = self.newest.max(page.last_ns.unwrap_or(0));
        self.cpus.entry(cpu).or_default().push_back(page);
        Ok(())
    }

    /// Time up to which everything has been read.
    fn end_round(&mut self, cut: &[u8]) -> u64 {
        let cut = cut.as_chunks().0.iter().map(|cpu| u32::from_ne_bytes(*cpu));
        let last = cut.filter_map(|cpu| self.cpus.get(&cpu)?.back()?.last_ns);
        let until = last.fold(self.before, u64::min);
        self.before = self.newest;
        self.names.end_round();
        until
    }

    /// Writes the events until `until`, in the order of time.
    fn write(
        &mut self,
        until: u64,
        hand_on: &mut impl FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        let heads = self.cpus.iter_mut().filter_map(|(cpu, pages)| {
            note_lost(*cpu, pages, &mut self.text);
            Some(Reverse((pages.front()?.next_ns()?, *cpu)))
        });
        let mut heads: BinaryHeap<_> = heads.collect();
        while let Some(Reverse((time, cpu))) = heads.pop() {
            if time > until {
                break;
            }
            let Some(pages) = self.cpus.get_mut(&cpu) else {
                break;
            };
            if let Some((time, record)) = pages.front_mut().and_then(WaitingPage::take) {
                self.written.events += 1;
                if let Some(kind) = id(record).and_then(|id| self.kinds.get(&id)) {
                    self.written.maps += u64::from(kind.tells == Tells::Map);
                    self.written.timers += u64::from(kind.tells == Tells::Timer);
                    line(&mut self.text, time, cpu, record, &mut self.names);
                    kind.printer.write_event(record, &mut self.text);
                }
            }
            note_lost(cpu, pages, &mut self.text);
            if let Some(time) = pages.front().and_then(WaitingPage::next_ns) {
                heads.push(Reverse((time, cpu)));
            }
            if self.text.len() >= BATCH {
                self.hand_on(hand_on)?;
            }
        }
        self.hand_on(hand_on)
    }

    fn hand_on(
        &mut self,
        hand_on: &mut impl FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        hand_on(&self.text)?;
        self.written.bytes += self.text.len() as u64;
        self.text.clear();
        Ok(())
    }
}

/// A page of a CPU, or the end of a round.
struct Parcel {
    /// The CPU, or [`ROUND`].
    kind: u32,
    bytes: Vec<u8>,
}

/// The next parcel; none at the end.
fn parcel(parcels: &mut impl Read) -> io::Result<Option<Parcel>> {
    let mut head = [0; HEAD];
    match parcels.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [a, b, c, d, length @ ..] = head;
    let mut bytes = vec![0; u32::from_ne_bytes(length) as usize];
    parcels.read_exact(&mut bytes)?;
    Ok(Some(Parcel { kind: u32::from_ne_bytes([a, b, c, d]), bytes }))
}

/// Drops pages that are done, and writes a line on events that are missing before the next one, as the kernel would.
fn note_lost(cpu: u32, pages: &mut VecDeque<WaitingPage>, text: &mut Vec<u8>) {
    while let Some(page) = pages.front_mut() {
        std::mem::replace(&mut page.lost, LostBefore::None).write_line(cpu, text);
        if page.next_ns().is_some() {
            return;
        }
        pages.pop_front();
    }
}

/// The number of a record's event (`common_type`).
fn id(record: &[u8]) -> Option<u16> {
    let two = record.get(..2)?;
    Some(u16::from_ne_bytes(two.try_into().ok()?))
}

/// `  task-pid [cpu] flags seconds: `: the beginning of a line, by the fields that all events have.
fn line(text: &mut Vec<u8>, time: u64, cpu: u32, record: &[u8], names: &mut TaskNames) {
    let flags = record.get(2).copied().unwrap_or(0);
    let depth = record.get(3).copied().unwrap_or(0) & 0xf;
    let pid = record.get(4..8).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes);
    let is = |bit: u8, yes: char| if flags & bit != 0 { yes } else { '.' };
    let context = match (flags & 0x08 != 0, flags & 0x10 != 0) {
        (true, true) => 'H',
        (true, false) => 'h',
        (false, true) => 's',
        (false, false) => '.',
    };
    let depth = match depth {
        0 => '.',
        depth => char::from_digit(depth.into(), 16).unwrap_or('.'),
    };
    let (seconds, nanos) = (time / 1_000_000_000, time % 1_000_000_000);
    let name = names.of_task(pid);
    // Writing to memory does not fail.
    let _ = write!(
        text,
        "{name:>16}-{pid:<7} [{cpu:03}] {}{}{context}{depth} {seconds}.{nanos:09}: ",
        is(0x01, 'd'),
        is(0x04, 'N'),
    );
}
