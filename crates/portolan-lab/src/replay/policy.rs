//! The invalidation policies that a replay compares, and the lazy policy's queue.
//!
//! The strict policies pay each unmap's debt at once and differ in the form of command. The lazy
//! one keeps what was unmapped in a single queue and pays for all of it with one context
//! invalidation when the queue is full by entries or by bytes, or when its oldest entry reaches the
//! time bound by the trace's own clock. Combined and deferred are the library's own ways of being
//! strict: no memory can be reused while a device may reach it.

use std::fmt;
use std::str::FromStr;

use portolan::inval::{Capabilities, Gather, Preference, Quirks, RangeForm, WalkFlush};

use crate::iova::Block;

/// When and how unmapped addresses are invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// At each unmap, one command a page.
    StrictPage,
    /// At each unmap, by range.
    StrictRange,
    /// At each unmap, the whole context.
    StrictContext,
    /// The whole context, once for many unmaps.
    Lazy,
    /// At each unmap, the library's own plan; those of several CPUs that meet share a sync.
    Combined,
    /// Once for many unmaps, whose buffers come back only then.
    Deferred,
    /// Never: everything is copied through a pool that the device always reaches.
    Bounce,
}

impl Policy {
    /// Those that are replayed unless others are asked for: all that translate, in the order in which
    /// reports list them.
    pub const ALL: [Self; 6] = [
        Self::StrictPage,
        Self::StrictRange,
        Self::StrictContext,
        Self::Lazy,
        Self::Combined,
        Self::Deferred,
    ];

    /// Every policy that can be asked for.
    pub fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain([Self::Bounce])
    }

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::StrictPage => "strict-page",
            Self::StrictRange => "strict-range",
            Self::StrictContext => "strict-context",
            Self::Lazy => "lazy",
            Self::Combined => "combined",
            Self::Deferred => "deferred",
            Self::Bounce => "bounce",
        }
    }

    /// How this policy has an unmap's debt planned on a machine.
    ///
    /// The strict policies by page and by range stay what they are: no threshold and no walk flush
    /// turns them into another. Where the hardware has no ranges, strict by range goes by page.
    pub(crate) fn unmap_quirks(self, caps: &Capabilities, machine: Quirks) -> Quirks {
        let preference = match (self, caps.range) {
            (Self::Combined | Self::Deferred | Self::Bounce, _) => return machine,
            (Self::StrictPage, _) | (Self::StrictRange, RangeForm::Absent) => Preference::ByPage,
            (Self::StrictRange, _) => Preference::ByRange,
            (Self::StrictContext | Self::Lazy, _) => {
                return Quirks {
                    preference: Preference::ByContext,
                    ..machine
                };
            }
        };
        let walk_flush = WalkFlush::ByAddress;
        Quirks {
            preference,
            walk_flush,
            context_above: u64::MAX,
            ..machine
        }
    }

    /// How this policy has a map's debt planned. Lazy defers unmaps only, and a map is as cheap as
    /// the hardware lets it be.
    pub(crate) fn map_quirks(self, caps: &Capabilities, machine: Quirks) -> Quirks {
        match self {
            Self::Lazy => Quirks {
                preference: Preference::Fewest,
                ..machine
            },
            Self::Combined | Self::Deferred | Self::Bounce => machine,
            strict => strict.unmap_quirks(caps, machine),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::every().find(|p| p.name() == text).ok_or_else(|| {
            let names = Self::every().map(Self::name).collect::<Vec<_>>().join(", ");
            format!("there is no policy `{text}`; the policies are {names}")
        })
    }
}

/// How much the lazy policy may leave reachable, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LazyBounds {
    /// Unmapped operations; reaching it flushes.
    pub entries: usize,
    /// Nanoseconds of trace time since the oldest unmap; reaching it flushes.
    pub ns: u64,
    /// Bytes; reaching it flushes.
    pub bytes: u64,
}

impl Default for LazyBounds {
    /// 256 entries, 10 ms, 64 MiB.
    fn default() -> Self {
        Self {
            entries: 256,
            ns: 10_000_000,
            bytes: 64 << 20,
        }
    }
}

/// What the lazy policy has unmapped and not yet invalidated.
#[derive(Debug)]
pub(crate) struct LazyQueue {
    bounds: LazyBounds,
    /// The debt of all entries.
    pub(crate) gather: Gather,
    held: Vec<Block>,
    bytes: u64,
    /// Trace time of the oldest unmap.
    oldest_ns: u64,
}

/// Whether a queue has to be flushed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Room,
    Full,
}

impl LazyQueue {
    pub(crate) fn new(bounds: LazyBounds) -> Self {
        let held = Vec::with_capacity(bounds.entries.min(1 << 16));
        Self {
            bounds,
            gather: Gather::new(),
            held,
            bytes: 0,
            oldest_ns: 0,
        }
    }

    /// When the queue has to be flushed at the latest, in trace time; `None` if it is empty.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        (!self.held.is_empty()).then(|| self.oldest_ns.saturating_add(self.bounds.ns))
    }

    /// Nanoseconds of trace time between the oldest unmap and `now_ns`.
    pub(crate) fn age_ns(&self, now_ns: u64) -> u64 {
        if self.held.is_empty() {
            0
        } else {
            now_ns.saturating_sub(self.oldest_ns)
        }
    }

    /// Bytes that the device can still reach.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds an operation whose debt is in [`Self::gather`] already.
    pub(crate) fn push(&mut self, block: Block, bytes: u64, now_ns: u64) -> Fill {
        if self.held.is_empty() {
            self.oldest_ns = now_ns;
        }
        self.held.push(block);
        self.bytes = self.bytes.saturating_add(bytes);
        let full = self.held.len() >= self.bounds.entries || self.bytes >= self.bounds.bytes;
        if full { Fill::Full } else { Fill::Room }
    }

    /// Empties the queue once its debt has been paid.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Block> {
        self.bytes = 0;
        self.held.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iova::Space;
    use portolan::addr::PageSize;

    #[test]
    fn names_round_trip_and_unknown_ones_are_told() {
        for policy in Policy::every() {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "loose".parse::<Policy>().unwrap_err();
        assert!(
            error.contains("`loose`") && error.contains("strict-range"),
            "{error}"
        );
    }

    #[test]
    fn each_bound_is_kept() {
        let bounds = LazyBounds {
            entries: 3,
            ns: 100,
            bytes: 10_000,
        };
        let mut space = Space::new(PageSize::SIZE_4K, 32);
        let mut queue = LazyQueue::new(bounds);
        let mut block = || space.alloc(1).unwrap();
        assert_eq!(queue.due_ns(), None);
        assert_eq!(queue.push(block(), 4096, 50), Fill::Room);
        assert_eq!(queue.push(block(), 4096, 70), Fill::Room);
        assert_eq!(queue.due_ns(), Some(150));
        assert_eq!(queue.age_ns(80), 30);
        assert_eq!(queue.push(block(), 1, 80), Fill::Full);
        assert_eq!(queue.bytes(), 8193);
        assert_eq!(queue.drain().count(), 3);
        assert_eq!((queue.bytes(), queue.due_ns()), (0, None));
        assert_eq!(queue.push(block(), 10_000, 90), Fill::Full);
    }
}
