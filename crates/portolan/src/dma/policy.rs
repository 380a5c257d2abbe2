//! Policies: limits of a device and the trust in it, directions, times of invalidation, and the
//! default for what is known of a device.
//!
//! [`default_policy`] is a pure function of the known facts of the device, the IOMMU and the
//! driver. Its reason is a sentence for the administrator of the machine.
//!
//! *Context.* Interrupt: everything here is a value.

use core::num::NonZeroU64;

use crate::addr::{Iova, PageSize};
use crate::iommu::{Shadowing, Stage, TrapCost};
use crate::platform::Nanos;
use crate::platform::contract::{HostVisibility, MemoryKind};
use crate::table::Access;

/// Time at which an unmap is invalidated.
///
/// A [`Mapping`](super::Mapping) that is deferred is safe under each of them: its buffer comes back
/// only when it is quiet. The unit, not the space, chooses the submitter: the drivers of
/// `portolan-hw` have one submitter for CPUs that meet under each policy as an option
/// (`combining`), and a [`Combined`](crate::inval::Combined) queue has it in front of any other
/// unit.
///
/// ```
/// use portolan::dma::{Policy, SpaceOptions};
///
/// let mut options = SpaceOptions::default();
/// assert_eq!(options.policy, Policy::Strict);
/// options.policy = Policy::Deferred; // one invalidation for the buffers that are reclaimed together
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Each unmap pays its own debt before it returns.
    #[default]
    Strict,
    /// Unmaps join their CPU's queue; one that has to return the buffer flushes that queue, and
    /// so pays for all that was deferred there before.
    Deferred,
    /// Unmaps join their CPU's queue and return at once: devices may reach unmapped buffers until
    /// the queue is flushed, within its bounds. Addresses are not reused before. For devices that
    /// are trusted: others are refused.
    Lazy,
}

/// Permission of a caller's operation to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayBlock {
    /// For hardware, other CPUs and the heap.
    Yes,
    /// A handler's: for nothing.
    No,
}

/// Bounds of the ranges that are unmapped and not yet invalidated, in each CPU's queue.
///
/// A [`Mapping::defer`](super::Mapping::defer) that reaches one of them says so by
/// [`DmaSpace::is_flush_due`](super::DmaSpace::is_flush_due). Under
/// [`Policy::Lazy`] an unmap that reaches one flushes. While a flush is under way
/// there is room for as much again; an unmap that finds none pays for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LazyBounds {
    /// Mappings; at least 1.
    pub entries: usize,
    /// Bytes.
    pub bytes: u64,
    /// Age of the oldest.
    pub age: Nanos,
}

impl Default for LazyBounds {
    /// 256 mappings, 64 MiB, 10 ms.
    fn default() -> Self {
        Self { entries: 256, bytes: 64 << 20, age: Nanos::from_millis(10) }
    }
}

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

/// Direction of the bytes.
///
/// ```
/// use portolan::dma::{DataDirection, Direction, ToDevice};
/// assert_eq!(ToDevice.direction(), Direction::ToDevice);
/// assert!(Direction::Bidirectional.device_writes());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The device reads.
    ToDevice,
    /// The device writes.
    FromDevice,
    /// The device reads and writes.
    Bidirectional,
}

impl Direction {
    /// Access that the device gets.
    #[inline]
    pub const fn access(self) -> Access {
        match self {
            Self::ToDevice => Access::READ,
            Self::FromDevice => Access::WRITE,
            Self::Bidirectional => Access::READ_WRITE,
        }
    }

    /// The same, of memory of `kind`.
    #[inline]
    pub(super) fn access_to(self, kind: MemoryKind) -> Access {
        match kind {
            MemoryKind::Registers => self.access().union(Access::DEVICE),
            MemoryKind::Cached | MemoryKind::Uncached => self.access(),
        }
    }

    /// Tells if the device writes into the buffer.
    #[inline]
    pub const fn device_writes(self) -> bool {
        !matches!(self, Self::ToDevice)
    }
}

mod sealed {
    pub trait SealedDirection {}
}

/// A direction that is known when the program runs ([`Direction`]), or when it is compiled
/// ([`ToDevice`], [`FromDevice`], [`Bidirectional`]): then it is part of a mapping's type.
pub trait DataDirection: sealed::SealedDirection + Copy + Send + 'static {
    /// The direction.
    fn direction(self) -> Direction;
}

impl sealed::SealedDirection for Direction {}

impl DataDirection for Direction {
    #[inline]
    fn direction(self) -> Direction {
        self
    }
}

macro_rules! direction {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl sealed::SealedDirection for $name {}

        impl DataDirection for $name {
            #[inline]
            fn direction(self) -> Direction {
                Direction::$name
            }
        }
    };
}

direction! {
    /// The device reads.
    ToDevice
}
direction! {
    /// The device writes.
    FromDevice
}
direction! {
    /// The device reads and writes.
    Bidirectional
}

/// Presence of a device TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceTlbPresence {
    /// The device asks the IOMMU each time.
    Absent,
    /// The device keeps translations, and has to be told of every unmap as well.
    Present,
}

/// Ownership of a driver's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffers {
    /// The driver hands them over and gets them back when they are quiet.
    Owned,
    /// The driver keeps them, and may reuse one as soon as an unmap has returned.
    Kept,
}

/// Policy that an administrator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyPreference {
    /// Nothing.
    None,
    /// No window, at any price.
    Strict,
    /// Speed, with a bounded window.
    Lazy,
}

/// Facts of which a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyInputs {
    /// Trust in the device.
    pub trust: Trust,
    /// Stage of the tables.
    pub stage: Stage,
    /// Way in which a hypervisor follows mappings; those parts of it that do not hold for `stage`
    /// are left out.
    pub shadowing: Shadowing,
    /// Presence of a device TLB.
    pub device_tlb: DeviceTlbPresence,
    /// Cost of an invalidation.
    pub exits: TrapCost,
    /// Ownership of the driver's buffers.
    pub buffers: Buffers,
    /// Policy that the administrator asked for.
    pub wish: PolicyPreference,
}

/// A policy and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The policy.
    pub policy: Policy,
    /// Reason, as a sentence.
    pub reason: &'static str,
}

/// The policy for `facts`.
///
/// Lazy is never chosen where it would leave a window to a device that is not trusted, nor where a
/// hypervisor follows mappings ([`Shadowing`]): it is told of every unmap anyway, or takes longest
/// to follow the invalidation of a whole context, which a flush queue uses.
pub const fn default_policy(facts: &PolicyInputs) -> Decision {
    let (policy, reason) = match (facts.buffers, facts.trust, facts.wish) {
        (Buffers::Owned, _, PolicyPreference::None | PolicyPreference::Lazy) => (
            Policy::Deferred,
            "The driver hands its buffers over, so they can wait for a common invalidation: \
             there is no window, and no unmap waits on its own.",
        ),
        (Buffers::Owned | Buffers::Kept, _, PolicyPreference::Strict) => {
            (Policy::Strict, "Strict was asked for: each unmap waits for its own invalidation.")
        }
        (Buffers::Kept, Trust::Untrusted, _) => (
            Policy::Strict,
            "The device is not trusted and the driver may reuse a buffer at once: any window \
             would be open to an attack.",
        ),
        (Buffers::Kept, Trust::Trusted, wish) => {
            match (lazy_forbidden(facts.shadowing, facts.stage), wish) {
                (Some(reason), _) => (Policy::Strict, reason),
                (None, PolicyPreference::Lazy) => (Policy::Lazy, lazy_allowed(facts.shadowing)),
                (None, _) => unasked(facts.exits, facts.device_tlb),
            }
        }
    };
    Decision { policy, reason }
}

/// Reason for which unmaps must not be put off where a hypervisor follows mappings; `None` where
/// they may.
const fn lazy_forbidden(shadowing: Shadowing, stage: Stage) -> Option<&'static str> {
    match shadowing.of(stage) {
        Shadowing::None => None,
        Shadowing::CachingMode => Some(
            "Caching mode with second-stage tables: the hypervisor shadows them, has to be told \
             of every mapping anyway, and would have to follow the whole context at each flush.",
        ),
        Shadowing::WriteProtection => Some(
            "The hypervisor write-protects the tables: each entry that is cleared is an exit \
             already, and a flush of the whole context would have it compare all of them.",
        ),
        Shadowing::Requests => Some(
            "Each unmap is a request to the hypervisor, which has the tables: there is no \
             invalidation that could be put off or shared.",
        ),
    }
}

/// The policy that a space gets which was asked to have `policy`, and the reason if lazy is
/// refused: by the `domain`'s own shadowing, or else by that `known` of the hypervisor.
pub(super) const fn accepted(
    policy: Policy,
    known: Shadowing,
    domain: Shadowing,
) -> (Policy, Option<&'static str>) {
    let shadowing = match domain {
        Shadowing::None => known,
        told => told,
    };
    // The domain has left out the forms that do not hold for its stage.
    match (policy, lazy_forbidden(shadowing, Stage::Second)) {
        (Policy::Lazy, Some(reason)) => (Policy::Strict, Some(reason)),
        (policy, _) => (policy, None),
    }
}

const fn lazy_allowed(shadowing: Shadowing) -> &'static str {
    match shadowing {
        Shadowing::None => {
            "Lazy was asked for, the device is trusted, and nothing shadows the tables."
        }
        _ => {
            "Lazy was asked for, and caching mode does not forbid it: first-stage tables are \
             walked by the hardware and not shadowed."
        }
    }
}

/// Of a trusted device whose driver keeps its buffers, where the administrator asked for no policy.
const fn unasked(exits: TrapCost, device_tlb: DeviceTlbPresence) -> (Policy, &'static str) {
    match (exits, device_tlb) {
        (TrapCost::Expensive, _) => (
            Policy::Lazy,
            "Each invalidation is an exit to the hypervisor, the device is trusted, and the \
                 tables are not shadowed: one exit for many unmaps, within the bounds.",
        ),
        (TrapCost::None, DeviceTlbPresence::Present) => (
            Policy::Strict,
            "The device keeps translations of its own, which a window would leave to it for \
                 as long as it likes: strict, and one sync covers both caches.",
        ),
        (TrapCost::None, DeviceTlbPresence::Absent) => (
            Policy::Strict,
            "No window was asked for, and invalidations go straight to the hardware, where \
                 CPUs can combine theirs. What they cost all the same, lazy would save if asked for.",
        ),
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
