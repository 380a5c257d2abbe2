//! Numbers over time in bounded memory: intervals of equal length, which grows with the time through round lengths:
//! 1, 2, 10, 20, 100 µs and so on.

/// Intervals at most; at least a fifth of them is in use once time has gone on for so many of the shortest.
pub(super) const BINS: usize = 256;
const SHORTEST_NS: u64 = 1000;

/// Intervals of `width_ns` in the next longer one.
pub(super) fn parts(width_ns: u64) -> u64 {
    let mut digits = width_ns.max(1);
    while digits.is_multiple_of(10) {
        digits /= 10;
    }
    match digits {
        1 => 2,
        _ => 5,
    }
}

/// Intervals from time 0 on; `then` makes one of two that follow each other.
pub(super) struct Bins<T> {
    width_ns: u64,
    all: Vec<T>,
    then: fn(T, T) -> T,
}

impl<T: Copy + Default + PartialEq> Bins<T> {
    pub(super) fn new(then: fn(T, T) -> T) -> Self {
        Self { width_ns: SHORTEST_NS, all: vec![T::default(); BINS], then }
    }

    /// The interval of `at_ns`, by its number. Intervals become longer until there is one.
    pub(super) fn index(&mut self, at_ns: u64) -> usize {
        while at_ns / self.width_ns >= BINS as u64 {
            let parts = parts(self.width_ns);
            let chunks = self.all.chunks(parts as usize);
            let merged = chunks.map(|some| some.iter().copied().reduce(self.then));
            let mut merged: Vec<T> = merged.flatten().collect();
            merged.resize(BINS, T::default());
            self.all = merged;
            self.width_ns = self.width_ns.saturating_mul(parts);
        }
        (at_ns / self.width_ns) as usize
    }

    /// The interval of `at_ns`.
    pub(super) fn at(&mut self, at_ns: u64) -> &mut T {
        let index = self.index(at_ns);
        &mut self.all[index]
    }

    /// Bins up to the last one that is not empty.
    pub(super) fn used(&self) -> &[T] {
        let last = self.all.iter().rposition(|bin| *bin != T::default());
        &self.all[..last.map_or(0, |last| last + 1)]
    }

    /// Nanoseconds of each.
    pub(super) fn width_ns(&self) -> u64 {
        self.width_ns
    }
}
