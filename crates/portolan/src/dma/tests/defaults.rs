//! The default policy for everything that can be known of a device.

use alloc::vec::Vec;

use crate::dma::{
    Buffers, DeviceTlbPresence, Policy, PolicyInputs, PolicyPreference, Trust, default_policy,
};
use crate::iommu::{Shadowing, Stage, TrapCost};

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
