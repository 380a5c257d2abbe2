//! Windows that follow the streams of each device and address space.
//!
//! A requester's faults are sorted into a few streams. A fault one granule after the last one of a
//! stream, or twice the same step away, gives it a direction; from then on each fault where the
//! stream was expected says that all granules mapped ahead were used, and the window grows. A
//! stream that is not continued is forgotten in time, and the granules that were mapped ahead for
//! it count as wasted. The allowed waste bounds the windows: a part of the used granules, and an
//! allowance.
//!
//! Nothing here knows the granules that devices really used: there are no access marks in most
//! tables. Granules that a stream passed by count as used.

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::{Ahead, Requester};

/// Requesters that are remembered.
const REQUESTERS: usize = 16;
/// Streams of each.
const STREAMS: usize = 8;
/// The longest step, in granules, that makes a stream.
const LONGEST_STEP: u64 = 512;
/// Granules mapped ahead one by one, where the step is not 1: each is a map of its own.
const MOST_APART: u32 = 64;
/// Factor by which a window grows each time that it was used.
const GROWTH: u32 = 8;
/// Of so many granules used, one may be mapped for nothing.
const WASTED: u64 = 10;

/// Bounds of windows that adapt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptive {
    /// The largest window, in granules.
    pub most: u32,
    /// Granules of each requester that may be mapped for nothing, beyond one of each ten used.
    pub allowance: u32,
}

impl Default for Adaptive {
    /// Windows of up to 4096 granules, and as many for nothing.
    fn default() -> Self {
        Self { most: 4096, allowance: 4096 }
    }
}

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamDirection {
    /// One fault says nothing.
    Unknown,
    /// Two faults so far apart.
    Guessed(i64),
    Known(i64),
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The last granule that faulted.
    last: u64,
    direction: StreamDirection,
    /// Granules mapped for the last fault.
    window: u32,
    touched: u64,
}

#[derive(Debug)]
struct History {
    who: Requester,
    streams: ArrayVec<Stream, STREAMS>,
    used: u64,
    wasted: u64,
    touched: u64,
}

/// The streams of all requesters.
#[derive(Debug)]
pub struct Streams {
    options: Adaptive,
    /// At most [`REQUESTERS`].
    histories: Vec<History>,
    /// Counts faults, to find the history touched longest ago.
    time: u64,
}

impl Streams {
    /// Nothing known. Without memory for all requesters that could be remembered, fewer are.
    ///
    /// *Context.* Task.
    pub fn new(options: Adaptive) -> Self {
        let mut histories = Vec::new();
        let _ = histories.try_reserve_exact(REQUESTERS);
        Self { options, histories, time: 0 }
    }

    /// Notes a fault of `who` on granule number `granule`, which was not mapped, and returns the
    /// granules to map.
    ///
    /// *Context.* Interrupt.
    pub fn fault(&mut self, who: Requester, granule: u64) -> Ahead {
        self.time = self.time.wrapping_add(1);
        let (options, time) = (self.options, self.time);
        let Some(history) = self.history(who) else {
            return Ahead::ONE;
        };
        history.touched = time;
        history.fault(&options, granule, time)
    }

    /// The history of `who`, in place of the one touched longest ago if there is no room.
    fn history(&mut self, who: Requester) -> Option<&mut History> {
        let found = self.histories.iter().position(|h| h.who == who);
        let at = found.unwrap_or_else(|| {
            let most = self.histories.capacity().min(REQUESTERS);
            if self.histories.len() >= most {
                let oldest = self.histories.iter().enumerate();
                let oldest = oldest.min_by_key(|(_, h)| h.touched);
                let oldest = oldest.map(|(at, _)| at);
                oldest.map(|at| self.histories.swap_remove(at));
            }
            if self.histories.capacity() > self.histories.len() {
                self.histories.push(History::new(who));
            }
            self.histories.len().saturating_sub(1)
        });
        self.histories.get_mut(at)
    }
}

impl History {
    fn new(who: Requester) -> Self {
        Self { who, streams: ArrayVec::new(), used: 0, wasted: 0, touched: 0 }
    }

    fn fault(&mut self, options: &Adaptive, granule: u64, time: u64) -> Ahead {
        self.used = self.used.saturating_add(1);
        let headroom = self.headroom(options);
        let Some(at) = self.streams.iter().position(|s| s.expects(granule)) else {
            self.begin(granule, time);
            return Ahead::ONE;
        };
        // The stream has passed the granules that were mapped ahead.
        let confirmed = self.streams.get(at).map_or(0, |s| u64::from(s.window) - 1);
        self.used = self.used.saturating_add(confirmed);
        let Some(stream) = self.streams.get_mut(at) else {
            return Ahead::ONE;
        };
        stream.follow(options, granule, headroom);
        stream.touched = time;
        match stream.direction {
            StreamDirection::Known(step) => Ahead { count: stream.window, step },
            _ => Ahead::ONE,
        }
    }

    /// Granules that may be mapped for nothing.
    fn headroom(&self, options: &Adaptive) -> u64 {
        let bound = (self.used / WASTED).saturating_add(options.allowance.into());
        bound.saturating_sub(self.wasted)
    }

    /// A stream begins; if there are too many, the one touched longest ago ends.
    fn begin(&mut self, granule: u64, time: u64) {
        if self.streams.is_full() {
            let oldest = self.streams.iter().enumerate();
            let oldest = oldest.min_by_key(|(_, s)| s.touched).map_or(0, |(at, _)| at);
            let ended = self.streams.swap_remove(oldest);
            self.wasted = (self.wasted).saturating_add(u64::from(ended.window) - 1);
        }
        self.streams.push(Stream {
            last: granule,
            direction: StreamDirection::Unknown,
            window: 1,
            touched: time,
        });
    }
}

impl Stream {
    /// Tells if a fault on `granule` continues the stream.
    fn expects(&self, granule: u64) -> bool {
        match self.direction {
            StreamDirection::Unknown => granule.abs_diff(self.last) <= LONGEST_STEP,
            StreamDirection::Guessed(step) => self.last.checked_add_signed(step) == Some(granule),
            StreamDirection::Known(step) => {
                let ahead = step.saturating_mul(self.window.into());
                self.last.checked_add_signed(ahead) == Some(granule)
            }
        }
    }

    fn follow(&mut self, options: &Adaptive, granule: u64, headroom: u64) {
        let step = granule.wrapping_sub(self.last) as i64;
        self.last = granule;
        let step = match self.direction {
            StreamDirection::Unknown if step == 0 => return,
            StreamDirection::Unknown if step.unsigned_abs() != 1 => {
                self.direction = StreamDirection::Guessed(step);
                return;
            }
            StreamDirection::Unknown | StreamDirection::Guessed(_) => step,
            StreamDirection::Known(step) => step,
        };
        self.direction = StreamDirection::Known(step);
        let most = match step.unsigned_abs() {
            1 => options.most,
            _ => options.most.min(MOST_APART),
        };
        let room = u32::try_from(headroom.saturating_add(1)).unwrap_or(u32::MAX);
        let grown = self.window.saturating_mul(GROWTH);
        self.window = grown.min(most).min(room).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::StreamId;

    const WHO: Requester = Requester { stream: StreamId::new(1), pasid: None };

    #[test]
    fn without_memory_nothing_is_remembered() {
        let mut streams = Streams::new(Adaptive::default());
        streams.histories = Vec::new();
        for granule in 0..3 {
            assert_eq!(streams.fault(WHO, granule), Ahead::ONE);
        }
        assert_eq!(streams.histories.capacity(), 0);
    }

    #[test]
    fn a_share_of_what_was_used_may_be_wasted_and_the_allowance() {
        let options = Adaptive { allowance: 5, ..Adaptive::default() };
        let mut history = History::new(WHO);
        for (used, wasted, room) in [(0, 0, 5), (99, 0, 14), (1234, 100, 28), (100, 20, 0)] {
            (history.used, history.wasted) = (used, wasted);
            assert_eq!(history.headroom(&options), room, "{used} {wasted}");
        }
    }

    #[test]
    fn what_a_stream_mapped_ahead_is_wasted_when_it_ends() {
        let options = Adaptive::default();
        let mut history = History::new(WHO);
        // A stream with a window of 8, and others that end nothing or that one.
        let mut ahead = (0..2).map(|granule| history.fault(&options, granule, granule).count);
        assert!(ahead.by_ref().eq([1, 8]));
        for far in 1..STREAMS as u64 {
            history.fault(&options, far * 10_000, 1 + far);
        }
        assert_eq!(history.wasted, 0);
        history.fault(&options, 1_000_000, 100);
        assert_eq!(history.wasted, 7);
    }

    #[test]
    fn a_fault_again_on_the_same_granule_says_nothing_of_a_direction() {
        let mut streams = Streams::new(Adaptive::default());
        let counts = [5, 5, 6].map(|granule| streams.fault(WHO, granule).count);
        assert_eq!(counts, [1, 1, 8]);
    }
}
