//! Default policy of a device, and the reason for it.
//!
//! [`default_policy`] is a pure function of the known facts of the device, the IOMMU and the
//! driver. Its reason is a sentence for the administrator of the machine.
//!
//! *Context.* Interrupt: everything here is a value.

use super::{Policy, Trust};
use crate::iommu::{Shadowing, Stage, TrapCost};

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
            "Nobody asked for a window, and invalidations go straight to the hardware, where \
                 CPUs can combine theirs. What they cost all the same, lazy would save if asked for.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const LINUX: PolicyInputs = PolicyInputs {
        trust: Trust::Trusted,
        stage: Stage::Second,
        shadowing: Shadowing::None,
        device_tlb: DeviceTlbPresence::Absent,
        exits: TrapCost::None,
        buffers: Buffers::Kept,
        wish: PolicyPreference::Lazy,
    };

    const SHADOWINGS: [Shadowing; 4] =
        [Shadowing::None, Shadowing::CachingMode, Shadowing::WriteProtection, Shadowing::Requests];

    fn all() -> impl Iterator<Item = PolicyInputs> {
        let bits = 0..(1u32 << 7) * 3;
        bits.map(|n| {
            let bit = |i: u32| n >> i & 1 != 0;
            PolicyInputs {
                trust: [Trust::Trusted, Trust::Untrusted][usize::from(bit(0))],
                stage: [Stage::First, Stage::Second][usize::from(bit(1))],
                shadowing: SHADOWINGS[usize::from(bit(2)) + 2 * usize::from(bit(6))],
                device_tlb: [DeviceTlbPresence::Absent, DeviceTlbPresence::Present]
                    [usize::from(bit(3))],
                exits: [TrapCost::None, TrapCost::Expensive][usize::from(bit(4))],
                buffers: [Buffers::Owned, Buffers::Kept][usize::from(bit(5))],
                wish: [PolicyPreference::None, PolicyPreference::Strict, PolicyPreference::Lazy]
                    [(n >> 7) as usize],
            }
        })
    }

    #[test]
    fn no_window_is_left_to_the_untrusted_nor_where_tables_are_shadowed() {
        for facts in all() {
            let decision = default_policy(&facts);
            if decision.policy == Policy::Lazy {
                assert_eq!(facts.trust, Trust::Trusted);
                assert_eq!(facts.buffers, Buffers::Kept);
                assert_ne!(facts.wish, PolicyPreference::Strict);
                assert_eq!(facts.shadowing.of(facts.stage), Shadowing::None);
            }
            assert!(decision.reason.ends_with('.'));
        }
    }

    #[test]
    fn each_way_of_following_has_a_reason_of_its_own() {
        let mut reasons: Vec<_> = SHADOWINGS
            .map(|shadowing| default_policy(&PolicyInputs { shadowing, ..LINUX }))
            .map(|decision| decision.reason)
            .to_vec();
        assert!(reasons[1].contains("Caching mode") && reasons[2].contains("write-protects"));
        assert!(reasons[3].contains("request") && !reasons[3].contains("aching mode"));
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), SHADOWINGS.len());
    }

    #[test]
    fn caching_mode_forces_strict_only_where_tables_are_shadowed() {
        let policy = |facts| default_policy(&facts).policy;
        let shadowing = Shadowing::CachingMode;
        assert_eq!(policy(LINUX), Policy::Lazy);
        assert_eq!(policy(PolicyInputs { shadowing, ..LINUX }), Policy::Strict);
        let stage = Stage::First;
        let first = PolicyInputs { shadowing, stage, ..LINUX };
        assert_eq!(policy(first), Policy::Lazy);
        let wish = PolicyPreference::Strict;
        assert_eq!(policy(PolicyInputs { wish, ..first }), Policy::Strict);
        let trust = Trust::Untrusted;
        assert_eq!(policy(PolicyInputs { trust, ..first }), Policy::Strict);
        let buffers = Buffers::Owned;
        assert_eq!(policy(PolicyInputs { buffers, ..first }), Policy::Deferred);
    }
}
