//! From lines to operations, one line at a time: for a trace that is read to its end, and for one that has none yet.

use super::event;
use super::line;
use super::outbox::Outgoing;
use super::pair::{Fed, Pairing};
use super::source::RawLine;
use super::ticks::Ticks;
use super::{Event, Op, RecorderStatus, Summary, TraceLine, is_of_dma};
use crate::facts::{END, HEAD};

/// Lines on their way to operations.
#[derive(Default)]
pub(crate) struct Intake {
    pairing: Pairing,
    summary: Summary,
    ticks: Ticks,
    /// The operation that was handed out last.
    out: Option<Box<Outgoing>>,
}

impl Intake {
    /// Steps to the next operation that is known; false if none is.
    pub(crate) fn advance(&mut self) -> bool {
        if let Some(used) = self.out.take() {
            self.pairing.give_back(used);
        }
        self.out = self.pairing.next(&mut self.summary);
        self.out.is_some()
    }

    /// The operation that [`Self::advance`] found.
    pub(crate) fn op(&self) -> Option<Op<'_>> {
        self.out.as_deref()?.op()
    }

    /// Counts of the lines so far.
    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Notes the end of the lines; operations that wait are decided with the knowledge so far.
    pub(crate) fn finish(&mut self) {
        self.pairing.finish(&mut self.summary);
    }

    /// Notes that the stream breaks off after line `number`, because of `error`.
    pub(super) fn note_cut(&mut self, number: u64, error: &str) {
        self.summary.cut_after_line = Some(number);
        self.summary.note_bad(number + 1, error, b"");
    }

    /// Closes the books, when all operations are out.
    pub(super) fn close(&mut self) {
        self.pairing.close(&mut self.summary);
    }

    /// Takes a line.
    pub(crate) fn line(&mut self, line: &RawLine<'_>) {
        self.summary.lines += 1;
        if line.bytes.starts_with(HEAD.as_bytes()) {
            self.summary.recorder = RecorderStatus::Begun;
            self.summary.recordings += 1;
        } else if line.bytes.starts_with(END.as_bytes()) {
            self.summary.recorder = RecorderStatus::Ended;
        }
        match line::parse(line.bytes) {
            TraceLine::Blank => self.summary.header_lines += 1,
            TraceLine::Comment { overwritten } => {
                self.summary.header_lines += 1;
                self.summary.note_lost(line.number, overwritten);
            }
            TraceLine::Lost(events) => {
                self.summary.header_lines += 1;
                self.summary.lost_unknown += u64::from(events.is_none());
                let events = events.unwrap_or(1);
                self.summary.note_lost(line.number, events);
                self.summary.understood.note_unread(events);
            }
            TraceLine::Bad(reason) => {
                let is_of_dma = line::is_without_context(line.bytes);
                self.summary.understood.note_unread(u64::from(is_of_dma));
                self.summary.note_bad(line.number, reason, line.bytes);
            }
            TraceLine::Event(stamped) => match event::parse(stamped.name, stamped.fields) {
                Ok(event) => {
                    self.summary.note_event(line, &stamped, &event);
                    if let Event::TimerRan(run) = event {
                        self.ticks.note(&stamped, run);
                    }
                    let fed = Fed {
                        line: line.number,
                        text: line.bytes,
                        stamped: &stamped,
                        timers_late: self.ticks.is_late(stamped.cpu),
                    };
                    self.pairing.feed(&fed, event, &mut self.summary);
                }
                Err(reason) => {
                    if is_of_dma(stamped.name) {
                        self.summary.understood.note_unread(1);
                    }
                    self.summary.note_bad(line.number, reason, line.bytes);
                }
            },
        }
        if line.too_long {
            self.summary.note_bad(line.number, "the line is longer than 1 MiB", line.bytes);
        }
    }
}
