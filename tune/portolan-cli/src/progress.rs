//! Progress of the work, its speed and the time left: one line on standard error, rewritten in place.
//!
//! Nothing is written where standard error is no terminal. Threads may share a [`Progress`].

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::display;

/// Work shorter than this shows no progress.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two lines.
const PACE: Duration = Duration::from_millis(100);
/// Goes to the start of the line and clears it.
const CLEAR: &str = "\r\x1b[K";

/// The line; it goes away when this is dropped.
#[derive(Debug)]
pub struct Progress {
    /// Clock that tells the time.
    now: fn() -> Instant,
    since: Instant,
    total: u64,
    done: AtomicU64,
    line: Mutex<Line>,
}

#[derive(Debug)]
enum Line {
    /// Standard error is no terminal.
    Off,
    /// Start: the terminal shows nothing yet.
    Waiting { until: Instant },
    /// The terminal has a line.
    Shown { next: Instant },
}

impl Progress {
    /// The progress of work that has `total` steps.
    pub fn new(total: u64) -> Self {
        Self::by(Instant::now, total)
    }

    /// Progress by the clock `now`.
    fn by(now: fn() -> Instant, total: u64) -> Self {
        let since = now();
        let line = if io::stderr().is_terminal() {
            Line::Waiting { until: since + QUIET }
        } else {
            Line::Off
        };
        Self { now, since, total, done: AtomicU64::new(0), line: Mutex::new(line) }
    }

    /// The progress of work whose end is not known.
    pub fn unbounded() -> Self {
        Self::new(0)
    }

    /// Adds `steps` to those that are done.
    pub fn add(&self, steps: u64) {
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        self.say(|pace| self.text(done, pace));
    }

    /// Sets the number of steps that are done to `steps`.
    pub fn set(&self, steps: u64) {
        self.done.store(steps, Ordering::Relaxed);
        self.say(|pace| self.text(steps, pace));
    }

    fn text(&self, done: u64, pace: Pace) -> String {
        let (of, total) = (display::grouped(done), display::grouped(self.total));
        let rate = pace.rate(done);
        match done.saturating_mul(100).checked_div(self.total) {
            Some(percent) => {
                let left = pace.left(done, self.total);
                format!("{of} of {total}, {percent} %, {rate}{left}")
            }
            None => format!("{of}, {rate}"),
        }
    }

    /// Shows `text` in place of the last line, if that is due.
    pub fn say(&self, text: impl FnOnce(Pace) -> String) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let due = match *line {
            Line::Off => return,
            Line::Waiting { until } => until,
            Line::Shown { next } => next,
        };
        let now = (self.now)();
        if now >= due {
            let text = text(Pace(now.duration_since(self.since)));
            write(&format!("{CLEAR}{}", fitting(&text)));
            *line = Line::Shown { next: now + PACE };
        }
    }
}

impl Drop for Progress {
    /// Clears the line. Context: Task.
    fn drop(&mut self) {
        let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Line::Shown { .. } = line {
            write(CLEAR);
        }
    }
}

/// The time that the work has taken so far.
#[derive(Clone, Copy, Debug)]
pub struct Pace(Duration);

impl Pace {
    /// Steps per second.
    pub fn rate(self, done: u64) -> String {
        let by_second = done as f64 / self.0.as_secs_f64().max(f64::MIN_POSITIVE);
        match by_second {
            10.0.. => format!("{}/s", display::grouped(by_second.round() as u64)),
            _ => format!("{by_second:.1}/s"),
        }
    }

    /// `, 4 s left` if the rest of `total` goes as `done` did; nothing if that cannot be told.
    pub fn left(self, done: u64, total: u64) -> String {
        let rest = total.saturating_sub(done) as f64 / done as f64;
        match Duration::try_from_secs_f64(self.0.as_secs_f64() * rest) {
            Ok(left) if done > 0 => format!(", {} left", seconds(left)),
            _ => String::new(),
        }
    }
}

/// A length of time in its two largest units.
fn seconds(time: Duration) -> String {
    match time.as_secs() + u64::from(time.subsec_millis() >= 500) {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

/// Part of `text` that fits in one line of the terminal, which can be rewritten in place.
fn fitting(text: &str) -> String {
    let columns = terminal_size::terminal_size_of(io::stderr());
    let columns = columns.map_or(80, |(columns, _)| usize::from(columns.0));
    display::cut(&display::plain(text), columns.saturating_sub(1)).into_owned()
}

/// A terminal that takes no more output does not stop the work.
fn write(text: &str) {
    let mut terminal = io::stderr().lock();
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

#[cfg(test)]
mod tests;
