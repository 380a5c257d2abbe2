//! How far the work is: one line on standard error, rewritten in place.
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
    total: u64,
    done: AtomicU64,
    line: Mutex<Line>,
}

#[derive(Debug)]
enum Line {
    /// Standard error is no terminal.
    Off,
    /// Nothing is on the terminal yet.
    Waiting { until: Instant },
    /// The terminal has a line.
    Shown { next: Instant },
}

impl Progress {
    /// The progress of work that has `total` steps.
    pub fn new(total: u64) -> Self {
        let line = match io::stderr().is_terminal() {
            true => Line::Waiting {
                until: Instant::now() + QUIET,
            },
            false => Line::Off,
        };
        Self {
            total,
            done: AtomicU64::new(0),
            line: Mutex::new(line),
        }
    }

    /// The progress of work whose end is not known.
    pub fn unbounded() -> Self {
        Self::new(0)
    }

    /// Adds `steps` to what is done.
    pub fn add(&self, steps: u64) {
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        self.say(|| self.text(done));
    }

    /// Sets what is done to `steps`.
    pub fn set(&self, steps: u64) {
        self.done.store(steps, Ordering::Relaxed);
        self.say(|| self.text(steps));
    }

    fn text(&self, done: u64) -> String {
        let (of, total) = (display::grouped(done), display::grouped(self.total));
        match done.saturating_mul(100).checked_div(self.total) {
            Some(percent) => format!("{of} of {total}, {percent} %"),
            None => of,
        }
    }

    /// Shows `text` in place of what was shown last, if that is due.
    pub fn say(&self, text: impl FnOnce() -> String) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let due = match *line {
            Line::Off => return,
            Line::Waiting { until } => until,
            Line::Shown { next } => next,
        };
        let now = Instant::now();
        if now >= due {
            write(&format!("{CLEAR}{}", text()));
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

/// A terminal that takes no more output does not stop the work.
fn write(text: &str) {
    let mut terminal = io::stderr().lock();
    let _ = terminal
        .write_all(text.as_bytes())
        .and_then(|()| terminal.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_with_their_share_where_the_end_is_known() {
        let work = Progress::new(2000);
        assert_eq!(work.text(1500), "1,500 of 2,000, 75 %");
        assert_eq!(Progress::unbounded().text(1500), "1,500");
        work.set(500);
        work.add(5);
        assert_eq!(work.done.load(Ordering::Relaxed), 505);
    }
}
