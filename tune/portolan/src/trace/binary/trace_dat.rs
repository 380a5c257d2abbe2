//! `trace.dat` of trace-cmd, versions 6 and 7.
//!
//! Implements trace-cmd.dat.v6(5) and trace-cmd.dat.v7(5): descriptions of events, tasks, and the pages
//! of each CPU's ring buffer, merged by time. Read is the main buffer. Named and not read: other
//! buffers, latency text, big-endian files, words of four bytes, clocks that do not count nanoseconds.
//! Shifts between a guest's clock and its host's are not applied.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufReader, Cursor, Read, SeekFrom, Write};
use std::ops::Range;

use super::error::RecordingError;
use super::events::{EventTable, Moment};
use super::input::{PartReader, Seekable};
use super::packed::{CpuData, Packing};
use super::ring::{LostBefore, Page, PageLayout};
use super::{Recording, release_line};

/// CPUs of one recording.
const MOST_CPUS: u32 = 1 << 14;
/// The longest section, unpacked.
const MOST_SECTION: u64 = 128 << 20;
/// Unpacked events of all CPUs at once, and of one.
const MOST_UNPACKED: u64 = 256 << 20;
const MOST_OF_ONE: u64 = 16 << 20;
/// Sections of options that follow each other.
const MOST_OPTIONS: u32 = 64;
/// Option with the kernel's release.
const UNAME: u16 = 5;
/// Clocks that count nanoseconds.
const CLOCKS: [&str; 8] = ["local", "global", "uptime", "perf", "mono", "mono_raw", "boot", "tai"];

/// A recording of trace-cmd.
pub(super) struct TraceDat {
    file: Box<dyn Seekable>,
    events: EventTable,
    layout: PageLayout,
    cpus: Vec<CpuEvents>,
    /// Times of the next events, and the indices of their CPUs.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    begun: Begun,
    /// The kernel's release.
    release: String,
    /// Buffers that are not read.
    others: Vec<String>,
    /// Reason why the events of a CPU ended early.
    broken: Option<RecordingError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    No,
    Yes,
}

/// Reader of one CPU's events.
struct CpuEvents {
    id: u32,
    data: CpuData,
    page: Page,
    lost: LostBefore,
    event: Range<usize>,
}

/// Contents of a file's head.
#[derive(Default)]
struct Head {
    events: EventTable,
    layout: Option<PageLayout>,
    cpus: Vec<(u32, CpuData)>,
    clock: Option<String>,
    release: String,
    others: Vec<String>,
    /// Sections of version 7 that were read; none may occur twice.
    sections: Vec<u16>,
}

impl TraceDat {
    pub(super) fn open(mut file: Box<dyn Seekable>) -> Result<Self, RecordingError> {
        let mut fields = PartReader::at(&mut *file, 0, "the head of the file")?;
        let head = match read_start(&mut fields)?.as_str() {
            "6" => read_six(&mut fields)?,
            "7" => {
                let packing = Packing::by_name(&fields.string()?)?;
                fields.string()?;
                let options = fields.u64()?;
                read_seven(&mut *file, packing, options)?
            }
            other => return Err(RecordingError::Version(other.escape_debug().to_string())),
        };
        if let Some(clock) = head.clock.filter(|clock| !CLOCKS.contains(&clock.as_str())) {
            return Err(RecordingError::Clock(clock.escape_debug().to_string()));
        }
        if head.events.is_empty() {
            return Err(RecordingError::NoEvents("record with `-e dma -e iommu`"));
        }
        if head.cpus.iter().all(|(_, data)| data.at_end()) && !head.others.is_empty() {
            return Err(RecordingError::OtherBuffers(head.others.join(", ")));
        }
        let length = file.seek(SeekFrom::End(0))?;
        let sum = head.cpus.iter().fold(0, |sum: u64, (_, data)| sum.saturating_add(data.left()));
        if sum > length {
            return Err(RecordingError::Cut("the events of a CPU"));
        }
        let cpus = head.cpus.into_iter().map(|(id, data)| CpuEvents {
            id,
            data,
            page: Page::default(),
            lost: LostBefore::None,
            event: 0..0,
        });
        Ok(Self {
            file,
            events: head.events,
            layout: head.layout.ok_or(RecordingError::Odd("the layout of a page"))?,
            cpus: cpus.collect(),
            next: BinaryHeap::new(),
            begun: Begun::No,
            release: head.release,
            others: head.others,
            broken: None,
        })
    }

    /// Finds the next event of a CPU; unreadable pages are reported and skipped.
    fn advance(&mut self, index: usize, out: &mut Vec<u8>) {
        let most = MOST_OF_ONE.min(MOST_UNPACKED / self.cpus.len() as u64);
        let cpu = &mut self.cpus[index];
        loop {
            match cpu.page.next() {
                Ok(Some((time_ns, event))) => {
                    cpu.event = event;
                    self.next.push(Reverse((time_ns, index)));
                    return;
                }
                Ok(None) if cpu.data.at_end() => return,
                Ok(None) => {}
                Err(_) => say_damaged(cpu.id, out),
            }
            let (file, data) = (&mut *self.file, &mut cpu.data);
            match cpu.page.refill(self.layout, |page| data.fill(file, page, most)) {
                Ok(Ok(lost)) => cpu.lost = lost,
                Ok(Err(_)) => say_damaged(cpu.id, out),
                Err(error) => {
                    // Writes to memory do not fail.
                    let _ = writeln!(out, "CPU {}: {error}", cpu.id);
                    self.broken.get_or_insert(error);
                    return;
                }
            }
        }
    }
}

fn say_damaged(cpu: u32, out: &mut Vec<u8>) {
    let _ =
        writeln!(out, "CPU {cpu}: a page of its events is damaged, the rest of it was not read");
}

impl Recording for TraceDat {
    fn write_lines(&mut self, out: &mut Vec<u8>) -> Result<bool, RecordingError> {
        if self.begun == Begun::No {
            self.begun = Begun::Yes;
            out.extend_from_slice(release_line(&self.release).as_bytes());
            let _ = writeln!(out, "cpus={}", self.cpus.len());
            for name in self.others.drain(..) {
                let _ = writeln!(out, "the buffer {name} was not read");
            }
            for index in 0..self.cpus.len() {
                self.advance(index, out);
            }
            return Ok(true);
        }
        let Some(Reverse((time_ns, index))) = self.next.pop() else {
            return self.broken.take().map_or(Ok(false), Err);
        };
        let cpu = &mut self.cpus[index];
        std::mem::replace(&mut cpu.lost, LostBefore::None).write_line(cpu.id, out);
        let at = Moment { cpu: cpu.id, time_ns };
        self.events.write_line(at, cpu.page.bytes(cpu.event.clone()), out);
        self.advance(index, out);
        Ok(true)
    }
}

/// Reads the part with which each version begins; returns the version.
pub(super) fn read_start(fields: &mut PartReader<impl Read>) -> Result<String, RecordingError> {
    fields.expect(b"\x17\x08\x44tracing")?;
    let version = fields.string()?;
    match fields.u8()? {
        0 => {}
        1 => return Err(RecordingError::BigEndian),
        _ => return Err(RecordingError::Odd("the byte order")),
    }
    match fields.u8()? {
        8 => {}
        size => return Err(RecordingError::WordSize(size.into())),
    }
    // Size of the machine's pages; pages of the buffer have a separate layout.
    fields.u32()?;
    Ok(version)
}

/// Reads the layouts of a page and of an event.
pub(super) fn read_layouts(
    fields: &mut PartReader<impl Read>,
) -> Result<PageLayout, RecordingError> {
    fields.enter("the layout of a page");
    fields.expect(b"header_page\0")?;
    let length = fields.u64()?;
    let layout = PageLayout::parse(&fields.block(length, 1 << 16)?)?;
    fields.expect(b"header_event\0")?;
    let length = fields.u64()?;
    fields.skip(length)?;
    Ok(layout)
}

fn read_six(fields: &mut PartReader<impl Read>) -> Result<Head, RecordingError> {
    let mut head = Head { layout: Some(read_layouts(fields)?), ..Head::default() };
    fields.enter("the events' descriptions");
    head.events.read_own(fields)?;
    head.events.read_systems(fields)?;
    for names in ["the kernel's symbols", "the formats of trace_printk"] {
        fields.enter(names);
        let length = fields.u32()?;
        fields.skip(length.into())?;
    }
    fields.enter("the tasks' names");
    let length = fields.u64()?;
    head.events.name_tasks(&fields.block(length, MOST_SECTION)?);
    fields.enter("the options");
    let cpus = fields.u32()?;
    loop {
        match &fields.array()? {
            b"options  \0" => while head.read_option(fields)? != 0 {},
            b"flyrecord\0" => break,
            b"latency  \0" => return Err(RecordingError::Latency),
            _ => return Err(RecordingError::Odd("the kind of the events")),
        }
    }
    fields.enter("the places of the events");
    if cpus > MOST_CPUS {
        return Err(RecordingError::TooLarge("the CPUs' numbers"));
    }
    for cpu in 0..cpus {
        let (offset, length) = (fields.u64()?, fields.u64()?);
        head.cpus.push((cpu, CpuData::new(offset, length, Packing::None)));
    }
    Ok(head)
}

impl Head {
    /// Reads an option of version 6; its number, which is 0 at the end.
    fn read_option(&mut self, fields: &mut PartReader<impl Read>) -> Result<u16, RecordingError> {
        let id = fields.u16()?;
        if id == 0 {
            return Ok(id);
        }
        let length = fields.u32()?;
        let option = fields.block(length.into(), MOST_SECTION)?;
        let mut option = PartReader::new(&*option, "an option");
        match id {
            3 => {
                option.u64()?;
                self.others.push(option.string()?.escape_debug().to_string());
            }
            4 => self.clock = chosen(&option.string()?),
            UNAME => self.release = release_of(&option.string()?),
            _ => {}
        }
        Ok(id)
    }

    /// Reads where a buffer of version 7 has its events.
    fn read_buffer(&mut self, option: &[u8], packing: Packing) -> Result<(), RecordingError> {
        let mut option = PartReader::new(option, "the places of the events");
        option.u64()?;
        let name = option.string()?;
        let clock = option.string()?;
        if !name.is_empty() {
            self.others.push(name.escape_debug().to_string());
            return Ok(());
        }
        self.clock = Some(clock);
        option.u32()?;
        let cpus = option.u32()?;
        if cpus > MOST_CPUS || !self.cpus.is_empty() {
            return Err(RecordingError::TooLarge("the CPUs' numbers"));
        }
        for _ in 0..cpus {
            let cpu = option.u32()?;
            let (offset, length) = (option.u64()?, option.u64()?);
            self.cpus.push((cpu, CpuData::new(offset, length, packing)));
        }
        Ok(())
    }
}

/// The release in the output of `uname -a`: `Linux host 7.3.4 ...`.
fn release_of(uname: &str) -> String {
    uname.split(' ').nth(2).unwrap_or_default().to_owned()
}

/// The word in brackets.
fn chosen(words: &str) -> Option<String> {
    let (_, after) = words.split_once('[')?;
    Some(after.split_once(']')?.0.to_owned())
}

/// Section of version 7 that an option names.
struct TraceDatSection {
    id: u16,
    name: &'static str,
}

/// Reads the section at `offset`, unpacked if need be.
fn read_section(
    file: &mut dyn Seekable,
    offset: u64,
    section: &TraceDatSection,
    packing: Packing,
) -> Result<PartReader<BufReader<Cursor<Vec<u8>>>>, RecordingError> {
    let mut fields = PartReader::at(file, offset, section.name)?;
    let (id, flags) = (fields.u16()?, fields.u16()?);
    if id != section.id {
        return Err(RecordingError::Odd(section.name));
    }
    fields.u32()?;
    let length = fields.u64()?;
    let bytes = match flags & 1 {
        0 => fields.block(length, MOST_SECTION)?,
        _ => packing.unpack(&mut fields, section.name, MOST_SECTION)?,
    };
    Ok(PartReader::new(BufReader::new(Cursor::new(bytes)), section.name))
}

fn read_seven(
    file: &mut dyn Seekable,
    packing: Packing,
    mut options: u64,
) -> Result<Head, RecordingError> {
    const OPTIONS: TraceDatSection = TraceDatSection { id: 0, name: "the options" };
    let mut head = Head::default();
    for _ in 0..MOST_OPTIONS {
        let mut fields = read_section(file, options, &OPTIONS, packing)?;
        loop {
            let (id, length) = (fields.u16()?, fields.u32()?);
            let option = fields.block(length.into(), MOST_SECTION)?;
            if id == 0 {
                options = PartReader::new(&*option, "an option").u64()?;
                break;
            }
            head.read_seven(file, packing, id, &option)?;
        }
        if options == 0 {
            return Ok(head);
        }
    }
    Err(RecordingError::TooLarge(OPTIONS.name))
}

impl Head {
    /// Reads an option of version 7, and the part of the file that it leads to.
    fn read_seven(
        &mut self,
        file: &mut dyn Seekable,
        packing: Packing,
        id: u16,
        option: &[u8],
    ) -> Result<(), RecordingError> {
        let name = match id {
            3 => return self.read_buffer(option, packing),
            UNAME => {
                self.release = release_of(&PartReader::new(option, "an option").string()?);
                return Ok(());
            }
            22 => return Err(RecordingError::Latency),
            16 => "the layout of a page",
            17 | 18 => "the events' descriptions",
            21 => "the tasks' names",
            _ => return Ok(()),
        };
        let offset = PartReader::new(option, "an option").u64()?;
        if self.sections.contains(&id) {
            return Err(RecordingError::Odd(name));
        }
        self.sections.push(id);
        let mut fields = read_section(file, offset, &TraceDatSection { id, name }, packing)?;
        match id {
            16 => self.layout = Some(read_layouts(&mut fields)?),
            17 => self.events.read_own(&mut fields)?,
            18 => self.events.read_systems(&mut fields)?,
            _ => {
                let length = fields.u64()?;
                self.events.name_tasks(&fields.block(length, MOST_SECTION)?);
            }
        }
        Ok(())
    }
}
