//! The events of a recording: from the bytes of one to the line that the kernel would print.
//!
//! A line has the form of `perf script`: the task, the CPU, the time to the nanosecond, the name, and
//! the text by the event's own `print fmt`. Where that is beyond [`super::recipe`], the fields stand
//! there by name, and the line says so.

use std::collections::HashMap;
use std::io::{Read, Write};

use super::error::RecordingError;
use super::format::{FieldShape, Format};
use super::input::PartReader;
use super::recipe::Recipe;
use super::value::{Disclosure, HIDDEN, Record, push_text, write_hexadecimal};

/// The longest description of an event that is read.
const LONGEST: u64 = 1 << 20;
/// Descriptions of a whole kernel; today's have some 6 MB.
const MOST_TEXT: usize = 64 << 20;
/// Names of tasks that are kept.
const MOST_TASKS: usize = 1 << 16;

/// An event that was described.
enum EventDescription {
    /// Not parsed so far.
    Described(Box<str>),
    /// Met; the description made no sense.
    Odd,
    Read(Box<EventPrinter>),
}

/// An event that can be printed.
pub(crate) struct EventPrinter {
    format: Format,
    /// Index of the field with the task's number.
    pid: Option<usize>,
    recipe: Option<Recipe>,
    disclosure: Disclosure,
}

/// Place and time of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) cpu: u32,
    pub(super) time_ns: u64,
}

/// Events that a recording describes, and names of tasks.
#[derive(Default)]
pub(super) struct EventTable {
    by_id: HashMap<u16, EventDescription>,
    bytes: usize,
    tasks: HashMap<i32, Box<[u8]>>,
}

impl EventTable {
    /// Reads the descriptions of the tracers' own events: a count, then each with its length.
    pub(super) fn read_own(
        &mut self,
        from: &mut PartReader<impl Read>,
    ) -> Result<(), RecordingError> {
        let count = from.u32()?;
        for _ in 0..count {
            let length = from.u64()?;
            let text = from.block(length, LONGEST)?;
            self.add(text)?;
        }
        Ok(())
    }

    /// Reads the descriptions of the kernel's events: by system, in each as the tracers' own.
    pub(super) fn read_systems(
        &mut self,
        from: &mut PartReader<impl Read>,
    ) -> Result<(), RecordingError> {
        let systems = from.u32()?;
        for _ in 0..systems {
            from.string()?;
            self.read_own(from)?;
        }
        Ok(())
    }

    fn add(&mut self, text: Vec<u8>) -> Result<(), RecordingError> {
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > MOST_TEXT {
            return Err(RecordingError::TooLarge("the events' descriptions"));
        }
        if let Ok(text) = String::from_utf8(text)
            && let Some(id) = Format::id_of(&text)
        {
            self.by_id.insert(id, EventDescription::Described(text.into()));
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Reads lines like `1234 name`.
    pub(super) fn name_tasks(&mut self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else {
                continue;
            };
            if let Some((pid, name)) = line.split_once(' ')
                && let Ok(pid) = pid.parse()
            {
                self.name_task(pid, name.as_bytes());
            }
        }
    }

    pub(super) fn name_task(&mut self, pid: i32, name: &[u8]) {
        if self.tasks.len() < MOST_TASKS || self.tasks.contains_key(&pid) {
            let mut plain = Vec::new();
            push_text(&mut plain, name);
            // A bracket begins the CPU.
            plain.iter_mut().filter(|byte| **byte == b'[').for_each(|byte| *byte = b'(');
            self.tasks.insert(pid, plain.into());
        }
    }

    /// Writes the line of a sample that is no event of the kernel's.
    pub(super) fn write_other(&self, at: Moment, pid: i32, out: &mut Vec<u8>) {
        write_place(&self.tasks, pid, at, out);
        out.extend_from_slice(b"sample:\n");
    }

    /// Writes the line of the event whose bytes are `record`.
    pub(super) fn write_line(&mut self, at: Moment, record: &[u8], out: &mut Vec<u8>) {
        let id = record.first_chunk().map(|id| u16::from_le_bytes(*id));
        let known = id.and_then(|id| self.by_id.get_mut(&id));
        let Some(printer) = known.and_then(EventDescription::printer) else {
            // Writes to memory do not fail.
            let _ = match id {
                Some(id) => {
                    writeln!(out, "CPU {}: event {id}, which the file does not describe", at.cpu)
                }
                None => writeln!(out, "CPU {}: an event without a number", at.cpu),
            };
            return;
        };
        write_place(&self.tasks, printer.pid(record).unwrap_or(-1), at, out);
        printer.write_event(record, out);
    }
}

/// Writes the beginning of a line: the task, the CPU, and the time.
fn write_place(tasks: &HashMap<i32, Box<[u8]>>, pid: i32, at: Moment, out: &mut Vec<u8>) {
    let name = match pid {
        0 => b"<idle>",
        _ => tasks.get(&pid).map_or(&b"<...>"[..], |name| name),
    };
    out.extend_from_slice(name);
    let (seconds, rest) = (at.time_ns / 1_000_000_000, at.time_ns % 1_000_000_000);
    // Writes to memory do not fail.
    let _ = write!(out, "-{pid} [{:03}] {seconds}.{rest:09}: ", at.cpu);
}

impl EventDescription {
    fn printer(&mut self) -> Option<&EventPrinter> {
        if let Self::Described(text) = self {
            *self = match EventPrinter::parse(text, Disclosure::Whole) {
                Some(printer) => Self::Read(Box::new(printer)),
                None => Self::Odd,
            };
        }
        match self {
            Self::Read(printer) => Some(printer),
            Self::Described(_) | Self::Odd => None,
        }
    }
}

impl EventPrinter {
    /// Reads the kernel's description of an event; `None` if it is not one.
    pub(crate) fn parse(description: &str, disclosure: Disclosure) -> Option<Self> {
        let format = Format::parse(description)?;
        let mut fields = format.fields.iter();
        Some(Self {
            pid: fields.position(|field| &*field.name == "common_pid"),
            recipe: Recipe::parse(&format),
            format,
            disclosure,
        })
    }

    /// The number that the event's records begin with.
    pub(crate) fn id(&self) -> u16 {
        self.format.id
    }

    /// The number of the task that `record` names.
    fn pid(&self, record: &[u8]) -> Option<i32> {
        let pid = self.format.fields[self.pid?].number(record)?;
        Some(pid as i32)
    }

    /// Writes the end of a line: the event's name, and the text of `record`.
    pub(crate) fn write_event(&self, record: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(self.format.name.as_bytes());
        out.extend_from_slice(b": ");
        match &self.recipe {
            Some(recipe) => {
                let values = Record::new(&self.format.fields, record, self.disclosure);
                recipe.print(values, out);
            }
            None => self.write_fields(record, out),
        }
        out.push(b'\n');
    }

    /// Writes the fields by name, like libtraceevent if it cannot read the text's recipe.
    fn write_fields(&self, record: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"[FAILED TO PARSE]");
        let own = |name: &str| !name.starts_with("common_");
        for field in self.format.fields.iter().filter(|field| own(&field.name)) {
            out.push(b' ');
            out.extend_from_slice(field.name.as_bytes());
            out.push(b'=');
            match (field.bytes(record), field.number(record)) {
                (..) if field.is_pointer && self.disclosure == Disclosure::Masked => {
                    out.extend_from_slice(HIDDEN);
                }
                (_, Some(number)) => write_hexadecimal(out, number as u64),
                (Some(bytes), None) if field.element == 1 || field.shape == FieldShape::Text => {
                    self.disclosure.push_string(out, bytes);
                }
                _ => out.push(b'?'),
            }
        }
    }
}
