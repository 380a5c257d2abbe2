//! Limits of a device, and the trust in it.
//!
//! *Context.* Interrupt: everything here is a value.

use core::num::NonZeroU64;

use super::HostVisibility;
use crate::addr::{Iova, PageSize};

/// Trust in a device, which decides if it may reach more than its buffers.
///
/// The address space isolates: all of its devices reach all of its mappings. So a space has the
/// trust of the least trusted of them, from the start
/// ([`SpaceOptions::trust`](super::SpaceOptions::trust)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Bytes in the same pages as a buffer may be reachable.
    Trusted,
    /// Nothing but the bytes of its buffers.
    Untrusted,
}

impl Trust {
    /// The lesser of the two.
    #[must_use]
    pub const fn least(self, other: Self) -> Self {
        match (self, other) {
            (Self::Trusted, Self::Trusted) => Self::Trusted,
            _ => Self::Untrusted,
        }
    }
}

/// Coherency of a device's accesses with the CPUs' caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coherency {
    /// The device snoops them.
    Coherent,
    /// Lines have to be written back before it reads, and dropped before the CPU reads. So a line in
    /// which it writes must hold nothing else: a buffer that does not begin and end with one is
    /// copied there ([`DataCache::line`](crate::platform::DataCache::line)).
    NotCoherent,
}

/// The longest segment of a device that says nothing.
const MAX_SEGMENT: NonZeroU64 = NonZeroU64::MIN.saturating_add(u32::MAX as u64 - 1);

/// The limits of one device, and its trust, which has no default.
///
/// ```
/// # use portolan::addr::PageSize;
/// # use portolan::dma::Constraints;
/// // A controller with 32 bits of address, whose segments must not cross 64 KiB.
/// let mut limits = Constraints::trusted().address_bits(32);
/// limits.seg_boundary = Some(PageSize::SIZE_64K);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Constraints {
    /// The highest address that the device can put on the bus.
    pub dma_mask: Iova,
    /// The longest segment in bytes.
    pub max_segment: NonZeroU64,
    /// No segment crosses a multiple of this.
    pub seg_boundary: Option<PageSize>,
    /// Alignment of the page in which a buffer begins, as far as [`min_align_mask`](Self::min_align_mask)
    /// leaves it free.
    pub align: PageSize,
    /// A piece has the same address as its memory modulo this size, copied or not: the device keeps
    /// data in these low bits of an address (NVMe: offsets into a page of 4 KiB).
    pub min_align_mask: PageSize,
    /// Coherency of the device's accesses with the CPUs' caches.
    pub coherency: Coherency,
    /// Trust in the device.
    pub trust: Trust,
    /// [`HostVisibility::Shared`] for a device of a confidential guest that reaches only memory
    /// that its host reaches, and nothing private: every one that the guest has not let in (TDISP).
    /// Its buffers are copied through a pool in shared memory, but for those that are shared
    /// themselves.
    pub reach: HostVisibility,
}

impl Constraints {
    /// A device that snoops and reaches all memory, with 64-bit addresses and segments of up to
    /// 2^32 - 1 bytes. A device is trusted only if the caller says so: there is no default.
    #[must_use]
    pub const fn of(trust: Trust) -> Self {
        Self {
            dma_mask: Iova::new(u64::MAX),
            max_segment: MAX_SEGMENT,
            seg_boundary: None,
            align: PageSize::of_lg2(0),
            min_align_mask: PageSize::of_lg2(0),
            coherency: Coherency::Coherent,
            trust,
            reach: HostVisibility::Private,
        }
    }

    /// A trusted device, with [the limits](Self::of) that most have: one of the machine's own, whose firmware and
    /// driver are as trusted as the kernel.
    #[must_use]
    pub const fn trusted() -> Self {
        Self::of(Trust::Trusted)
    }

    /// The same for a device that is not trusted: one that can be plugged in from outside, or whose firmware
    /// others can change.
    #[must_use]
    pub const fn untrusted() -> Self {
        Self::of(Trust::Untrusted)
    }

    /// The same, for a device whose addresses have `bits` bits.
    #[must_use]
    pub const fn address_bits(self, bits: u32) -> Self {
        let mask = match bits {
            0..=63 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        Self { dma_mask: Iova::new(mask), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_so_many_bits_reaches_all_that_they_can_say() {
        for (bits, mask) in
            [(0, 0), (1, 1), (32, 0xffff_ffff), (63, u64::MAX >> 1), (64, u64::MAX), (65, u64::MAX)]
        {
            let limits = Constraints::trusted().address_bits(bits);
            assert_eq!(limits.dma_mask, Iova::new(mask), "{bits}");
        }
    }
}
