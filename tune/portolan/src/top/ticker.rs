//! The rhythm of looks at the kernel's buffers, and of intervals; tests have another.

use std::time::{Duration, Instant};

use crate::record::command::Signals;

/// Time between two looks at the buffers.
const PAUSE: Duration = Duration::from_millis(20);
/// Seconds of the shortest and the longest interval.
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 86_400.0;

/// Reads the length of an interval.
pub(super) fn seconds(word: &str) -> Result<f64, String> {
    let seconds: f64 = word.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    match (SHORTEST..=LONGEST).contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("it is not within {SHORTEST} to {LONGEST} seconds")),
    }
}

/// Next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    /// Look at the buffers.
    Sweep,
    /// Look at the buffers, and tell an interval.
    Interval,
    /// End, with the last interval.
    Over,
}

/// A rhythm.
pub(super) trait Ticker {
    /// Waits for `seconds`, or until it is over.
    fn rest(&mut self, seconds: u64);
    /// Begins the first interval.
    fn begin(&mut self);
    /// Waits for the next step.
    fn next(&mut self) -> Tick;
    /// Seconds since the beginning.
    fn seconds(&self) -> f64;
}

/// The rhythm of a clock, until a signal comes or all intervals have been told.
pub(super) struct WallClock<'s> {
    signals: &'s Signals,
    interval: Duration,
    began: Instant,
    due: Instant,
    left: Option<u64>,
}

impl<'s> WallClock<'s> {
    /// A clock of `count` intervals of `seconds`.
    pub(super) fn new(signals: &'s Signals, seconds: f64, count: Option<u64>) -> Self {
        let now = Instant::now();
        let interval = Duration::from_secs_f64(seconds);
        Self { signals, interval, began: now, due: now, left: count }
    }
}

impl Ticker for WallClock<'_> {
    fn rest(&mut self, seconds: u64) {
        let began = Instant::now();
        while !self.signals.came() && began.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(PAUSE);
        }
    }

    fn begin(&mut self) {
        self.began = Instant::now();
        self.due = self.began + self.interval;
    }

    fn next(&mut self) -> Tick {
        if self.signals.came() {
            return Tick::Over;
        }
        let now = Instant::now();
        if now < self.due {
            std::thread::sleep(PAUSE.min(self.due - now));
            return Tick::Sweep;
        }
        // A late one does not make those after it short.
        self.due = (self.due + self.interval).max(now);
        match &mut self.left {
            None => Tick::Interval,
            Some(0 | 1) => Tick::Over,
            Some(left) => {
                *left -= 1;
                Tick::Interval
            }
        }
    }

    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}
