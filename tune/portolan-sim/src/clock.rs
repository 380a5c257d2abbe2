//! Virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::platform::{Clock, Nanos};

/// A clock that only moves when a caller moves it.
///
/// Counts picoseconds, since prices are fractions of a nanosecond; stops at 2^64 of them, which is
/// 213 days.
#[derive(Debug, Default)]
pub struct VirtualClock {
    picoseconds: AtomicU64,
}

impl VirtualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nanoseconds since the start, rounded down.
    pub fn now_ns(&self) -> u64 {
        self.picoseconds.load(Ordering::Relaxed) / 1000
    }

    /// Nanoseconds since the start with their fraction.
    pub fn now_exact_ns(&self) -> f64 {
        self.picoseconds.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// Moves the clock on by whole nanoseconds; it stops at its end.
    pub fn advance_ns(&self, ns: u64) {
        self.advance_ps(ns.saturating_mul(1000));
    }

    /// Moves the clock on by `count` events of `ns` nanoseconds each, rounded to the picosecond.
    /// Negative and undefined prices move nothing.
    pub fn charge(&self, ns: f64, count: u64) {
        let picoseconds = (ns * 1000.0).round().max(0.0) as u64;
        self.advance_ps(picoseconds.saturating_mul(count));
    }

    fn advance_ps(&self, by: u64) {
        let step = |now: u64| Some(now.saturating_add(by));
        // The closure never refuses, so the update cannot fail.
        let _ = self.picoseconds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }
}

/// A step that a caller takes while others wait.
pub trait Tick: Send + Sync {
    /// Called whenever a waiter relaxes.
    fn tick(&self);
}

/// A [`VirtualClock`] for drivers: each reading between two polls takes time, and lets the hardware continue.
#[derive(Debug)]
pub struct PollingClock<T> {
    clock: Arc<VirtualClock>,
    relax_ns: u64,
    hardware: T,
}

impl<T: Tick> PollingClock<T> {
    /// Moves `clock` by `relax_ns`, which counts at least 1, whenever a waiter relaxes, and then
    /// lets `hardware` go on.
    pub fn new(clock: Arc<VirtualClock>, relax_ns: u64, hardware: T) -> Self {
        Self { clock, relax_ns: relax_ns.max(1), hardware }
    }
}

portolan::one_cpu!(PollingClock<T>, T: Tick);

impl<T: Tick> Clock for PollingClock<T> {
    fn now(&self) -> Nanos {
        Nanos::new(self.clock.now_ns())
    }

    fn relax(&self) {
        self.clock.advance_ns(self.relax_ns);
        self.hardware.tick();
    }
}

impl<T: Tick + ?Sized> Tick for Arc<T> {
    fn tick(&self) {
        (**self).tick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_fractions_and_stops_at_its_end() {
        let clock = VirtualClock::new();
        clock.charge(0.4, 5);
        assert_eq!(clock.now_ns(), 2);
        clock.charge(120.835, 8192);
        assert_eq!(clock.now_ns(), 2 + 989_880);
        clock.charge(f64::NAN, 3);
        clock.charge(-1.0, 3);
        assert_eq!(clock.now_ns(), 989_882);
        clock.advance_ns(u64::MAX);
        clock.advance_ns(1);
        assert_eq!(clock.now_ns(), u64::MAX / 1000);
    }
}
