//! The invalidation policies that a replay compares, and the library's setup for each.
//!
//! The strict policies invalidate at each unmap and differ in the form of command. The lazy one has
//! the library's flush queues, each flushed by context. Combined and deferred are the library's own
//! ways of being strict: no memory can be reused while a device may reach it.

use std::fmt;
use std::str::FromStr;

use super::bounce::Swiotlb;
use portolan::dma::Policy as Unmaps;
use portolan::inval::{Caching, Capabilities, Preference, Quirks, RangeForm, WalkFlush};

/// Time and form of the invalidations of unmapped addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Invalidates at each unmap, with one command for each page.
    StrictPage,
    /// Invalidates at each unmap, by range.
    StrictRange,
    /// Invalidates at each unmap, the whole context.
    StrictContext,
    /// The whole context, once for many unmaps.
    Lazy,
    /// Invalidates at each unmap by the library's plan; CPUs that meet share a sync.
    Combined,
    /// Invalidates once for many unmaps, and returns their buffers only then.
    Deferred,
    /// Never: buffers are copied through a pool that the device always reaches.
    Bounce(Swiotlb),
}

impl Policy {
    /// Policies that are replayed by default: all that translate, in the order of reports.
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
        Self::ALL.into_iter().chain([Self::Bounce(Swiotlb::default())])
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
            Self::Bounce(_) => "bounce",
        }
    }

    /// Describes in words the work of an unmap.
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::StrictPage => "each unmap waits for its invalidation, one command a page",
            Self::StrictRange => {
                "each unmap waits for its invalidation, by range; by page on machines without ranges"
            }
            Self::StrictContext => {
                "each unmap waits for its invalidation, of the whole address space (context)"
            }
            Self::Lazy => {
                "one invalidation for many unmaps; until then a device reaches memory that may be in use again"
            }
            Self::Combined => {
                "each unmap waits, in whichever way costs least; CPUs that unmap at once wait together"
            }
            Self::Deferred => {
                "one invalidation for many unmaps; until then their memory is used for nothing else"
            }
            Self::Bounce(_) => {
                "nothing is invalidated: data are copied through a pool that devices always reach"
            }
        }
    }

    /// Place of the policy called `name` in reports: last for an unknown name.
    pub(crate) fn place_of(name: &str) -> usize {
        let place = Self::every().position(|policy| policy.name() == name);
        place.unwrap_or(usize::MAX)
    }

    /// Time of invalidation in the library's DMA layer.
    pub(super) fn unmaps(self) -> Unmaps {
        match self {
            Self::Lazy => Unmaps::Lazy,
            Self::Deferred => Unmaps::Deferred,
            _ => Unmaps::Strict,
        }
    }

    /// Quirks for planning invalidations under this policy, on a machine whose own plan has the quirks `own`.
    ///
    /// The strict policies by page and by range stay as they are: no threshold and no walk flush turns them into
    /// another. Where the hardware has no ranges, strict by range goes by page.
    pub(super) fn quirks(self, caps: &Capabilities, own: Quirks) -> Quirks {
        let (walk_flush, preference, context_above) = match (self, caps.range, caps.caching) {
            (Self::StrictPage, ..) | (Self::StrictRange, RangeForm::Absent, _) => {
                (WalkFlush::ByAddress, Preference::ByPage, u64::MAX)
            }
            (Self::StrictRange, ..) => (WalkFlush::ByAddress, Preference::ByRange, u64::MAX),
            // Maps owe an invalidation too, and there it is not worth the whole context.
            (Self::Lazy, _, Caching::NotPresentToo) => (own.walk_flush, Preference::Fewest, 1),
            (Self::StrictContext | Self::Lazy, ..) => {
                (own.walk_flush, Preference::ByContext, own.context_above)
            }
            (Self::Combined | Self::Deferred | Self::Bounce(_), ..) => return own,
        };
        Quirks { walk_flush, preference, context_above, ..own }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_told() {
        for policy in Policy::every() {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "loose".parse::<Policy>().unwrap_err();
        assert!(error.contains("`loose`") && error.contains("strict-range"), "{error}");
    }
}
