//! What a device can reach, and how far it is trusted.
//!
//! *Context.* Interrupt: everything here is a value.

use core::num::NonZeroU64;

use crate::addr::{Iova, PageSize};

/// Whether a device may be allowed more than its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// What lies in the same pages as a buffer may be reachable.
    Trusted,
    /// Nothing but the bytes of its buffers.
    Untrusted,
}

/// Whether a device sees what CPUs have in their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coherency {
    /// It does.
    Coherent,
    /// Lines have to be written back before it reads, and dropped before the CPU reads.
    NotCoherent,
}

/// The limits of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constraints {
    /// The highest address that it can put on the bus.
    pub limit: Iova,
    /// The longest segment in bytes.
    pub max_segment: NonZeroU64,
    /// No segment crosses a multiple of this.
    pub boundary: Option<PageSize>,
    /// Alignment of the page in which a buffer begins.
    pub align: PageSize,
    /// Lowest bits of a buffer's address, as a size, that a copy of it has to share.
    pub keep: PageSize,
    /// Whether it snoops.
    pub coherency: Coherency,
    /// How far it is trusted.
    pub trust: Trust,
}

impl Default for Constraints {
    /// A trusted device that snoops, with 64-bit addresses and segments of up to 2^32 - 1 bytes.
    fn default() -> Self {
        Self {
            limit: Iova::new(u64::MAX),
            max_segment: NonZeroU64::MIN.saturating_add(u32::MAX as u64 - 1),
            boundary: None,
            align: PageSize::of_lg2(0),
            keep: PageSize::of_lg2(0),
            coherency: Coherency::Coherent,
            trust: Trust::Trusted,
        }
    }
}

impl Constraints {
    /// The same, for a device whose addresses have `bits` bits.
    #[must_use]
    pub const fn address_bits(self, bits: u32) -> Self {
        let limit = match bits {
            0..=63 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        Self {
            limit: Iova::new(limit),
            ..self
        }
    }
}
