//! Granules that a fault maps beyond the one that it asked for.
//!
//! Fixed windows are those of "Add IOPF support for VFIO passthrough" (2021), which maps so many
//! pages from the one that faulted. Adaptive ones follow each device's streams; see [`Adaptive`].

mod adaptive;

use core::num::NonZeroU32;

pub use adaptive::{Adaptive, Streams};

pub use crate::iommu::Requester;

/// Granules that a fault maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// The granule.
    #[default]
    Page,
    /// Those around it that are not mapped, up to the aligned run of 512 granules: a block where
    /// the run is one and its memory is contiguous and aligned.
    Block,
    /// So many granules from it on, up to the first that is mapped.
    Fixed(NonZeroU32),
    /// As many as the device's own pattern makes likely.
    Adaptive(Adaptive),
}

/// The granules to map: `count` of them from the one that faulted, each `step` from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// At least 1.
    pub count: u32,
    /// In granules; not 0.
    pub step: i64,
}

impl Ahead {
    /// The granule that faulted.
    pub const ONE: Self = Self { count: 1, step: 1 };
}

/// Histories of all requesters.
#[derive(Debug)]
pub(super) struct Detector {
    streams: Option<Streams>,
}

impl Detector {
    pub(super) fn new(window: Window) -> Self {
        let streams = match window {
            Window::Adaptive(adaptive) => Some(Streams::new(adaptive)),
            Window::Page | Window::Block | Window::Fixed(_) => None,
        };
        Self { streams }
    }

    pub(super) fn ahead(&mut self, who: Requester, granule: u64) -> Ahead {
        (self.streams.as_mut()).map_or(Ahead::ONE, |streams| streams.fault(who, granule))
    }
}
