//! The library's decision from a unit's capability registers, compared with Linux's in each recorded guest.

use std::path::Path;

use portolan::dma::{
    Buffers, DeviceTlbPresence, Policy, PolicyInputs, PolicyPreference, Shadowing, Stage, TrapCost,
    Trust, default_policy,
};
use portolan_hw::vtd::{Features, Mode};

/// QEMU's unit with 48-bit addresses: 39- and 48-bit second-stage tables, page-selective
/// invalidation, 2 MiB and 1 GiB pages.
const CAP: u64 = 0x00d2_008c_222f_0606;
const CAP_CACHING_MODE: u64 = 1 << 7;
const CAP_FIRST_1G: u64 = 1 << 56;
/// Queued invalidation, pass-through and snooping.
const ECAP: u64 = 0x00f0_0f4a;
/// Scalable mode with first-stage tables only.
const ECAP_SCALABLE_FIRST: u64 = ECAP | 1 << 43 | 1 << 47;

/// A guest as it was booted (`data/traces/README.md`).
struct Guest {
    config: &'static str,
    cap: u64,
    ecap: u64,
    mode: Mode,
    wish: PolicyPreference,
}

const fn guest(config: &'static str, cap: u64, wish: PolicyPreference) -> Guest {
    Guest { config, cap, ecap: ECAP, mode: Mode::Legacy, wish }
}

const fn first_stage(config: &'static str, wish: PolicyPreference) -> Guest {
    Guest {
        config,
        cap: CAP | CAP_CACHING_MODE | CAP_FIRST_1G,
        ecap: ECAP_SCALABLE_FIRST,
        mode: Mode::Scalable,
        wish,
    }
}

const GUESTS: [Guest; 6] = [
    guest("vtd-strict", CAP, PolicyPreference::Strict),
    guest("vtd-lazy", CAP, PolicyPreference::Lazy),
    guest("vtd-strict-cm", CAP | CAP_CACHING_MODE, PolicyPreference::Strict),
    guest("vtd-lazy-cm", CAP | CAP_CACHING_MODE, PolicyPreference::Lazy),
    first_stage("vtd-fl-strict-cm", PolicyPreference::Strict),
    first_stage("vtd-fl-lazy-cm", PolicyPreference::Lazy),
];

/// Policy of the recorded Linux: lazy if it invalidated less often than it unmapped.
fn recorded(config: &str) -> Policy {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces");
    let mut table = csv::Reader::from_path(traces.join("invalidations-summary.csv")).unwrap();
    let header = table.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|known| known == name).unwrap();
    let (unmaps, submitted) = (column("guest_iommu_unmap"), column("guest_iotlb_inv"));
    let rows = table.records().map(|row| row.unwrap());
    let lazy: Vec<bool> = rows
        .filter(|row| &row[0] == config)
        .map(|row| {
            let number = |at: usize| row[at].parse::<u64>().unwrap();
            number(submitted) < number(unmaps)
        })
        .collect();
    assert!(!lazy.is_empty() && lazy.iter().all(|one| *one == lazy[0]), "{config}");
    if lazy[0] { Policy::Lazy } else { Policy::Strict }
}

/// Inputs of a driver that keeps its buffers, as Linux's do.
fn facts(guest: &Guest) -> PolicyInputs {
    let known = PolicyInputs {
        trust: Trust::Trusted,
        stage: Stage::Second,
        shadowing: Shadowing::None,
        device_tlb: DeviceTlbPresence::Absent,
        exits: TrapCost::None,
        buffers: Buffers::Kept,
        wish: guest.wish,
    };
    let features = Features::check(guest.cap, guest.ecap).unwrap();
    features.facts(guest.mode, known)
}

#[test]
fn decisions_are_those_of_linux_in_each_recorded_guest() {
    for guest in &GUESTS {
        let decision = default_policy(&facts(guest));
        assert_eq!(decision.policy, recorded(guest.config), "{}", guest.config);
    }
}

#[test]
fn the_registers_tell_the_guests_apart() {
    let told = GUESTS.each_ref().map(|guest| {
        let facts = facts(guest);
        (facts.stage, facts.shadowing, facts.exits)
    });
    let plain = (Stage::Second, Shadowing::None, TrapCost::None);
    let shadowed = (Stage::Second, Shadowing::CachingMode, TrapCost::Expensive);
    let first = (Stage::First, Shadowing::CachingMode, TrapCost::Expensive);
    assert_eq!(told, [plain, plain, shadowed, shadowed, first, first]);
    // Scalable mode that is not used leaves the second stage.
    let unused = Guest { mode: Mode::Legacy, ..first_stage("", PolicyPreference::Lazy) };
    assert_eq!(facts(&unused).stage, Stage::Second);
}
