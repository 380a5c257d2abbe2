//! Policy of the traced system for its DMA: translated or not, strict or lazy; and the evidence for it.

use serde::{Deserialize, Serialize};

use crate::trace::Excerpt;

/// Policy of the traced kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Now {
    /// The trace maps nothing.
    Nothing,
    /// Device addresses are memory's: no IOMMU translates.
    Untranslated,
    /// DMA goes through bounce buffers.
    Bounced,
    /// An invalidation for each unmap.
    Strict,
    /// Shadowed: a map is invalidated too, because a hypervisor shadows the tables (caching mode).
    Shadowed,
    /// Lazy: one invalidation for many unmaps.
    Lazy,
}

impl Now {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Untranslated => "no IOMMU",
            Self::Bounced => "bounced",
            Self::Strict => "strict",
            Self::Shadowed => "strict, shadowed",
            Self::Lazy => "lazy",
        }
    }
}

/// Evidence for the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnownBy {
    /// A line of the trace.
    Line(Excerpt),
    /// The facts in the recording.
    Fact(String),
    /// Nothing: it is assumed.
    Assumption,
}

/// Policy of the traced kernel, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Situation {
    /// The policy.
    pub now: Now,
    /// The evidence.
    pub known_by: KnownBy,
}

impl Situation {
    /// Tells if unmaps wait for an invalidation of their own.
    pub(super) fn is_strict(&self) -> bool {
        matches!(self.now, Now::Strict | Now::Shadowed)
    }

    /// Tells if an IOMMU translates.
    pub(super) fn is_translated(&self) -> bool {
        self.is_strict() || self.now == Now::Lazy
    }
}
