//! Devices that send requests, on every model that has them: none of their scenarios is skipped there.
#![allow(missing_docs)]

use portolan_verify::backend::seam::Seam;
use portolan_verify::backend::{amd, smmuv3, vtd};
use portolan_verify::conformance::{Machine, Outcome, Rig, scenarios};

const REQUESTS: &[&str] = &[
    "requests-are-brought-in",
    "requests-are-refused",
    "detach-answers-requests",
    "request-room-overflows",
    "floods-of-requests",
    "misbehaving-requests",
    "response-after-reset",
    "moved-devices-forget",
    "gone-devices-are-refused",
    "refused-moves-of-keepers",
];
/// Scenarios for drivers that can end kept translations without blocking the stream.
const END: &[&str] = &["kept-translations-end"];
const STALLS: &[&str] = &[
    "stalls-are-brought-in",
    "stalls-are-refused",
    "detach-answers-stalls",
    "stall-room-overflows",
    "floods-of-stalls",
];

/// Scenarios for devices that name their address spaces.
const SHARED: &[&str] = &["tables-shared-by-requests"];
const SHARED_STALLS: &[&str] = &["tables-shared-by-stalls"];

fn must_pass<U, D, H>(names: &[&str], make: impl Fn() -> Result<Rig<U, D, H>, Outcome>)
where
    Box<Rig<U, D, H>>: Machine,
{
    let mut wrong = Vec::new();
    for name in names {
        let all = scenarios::<Box<Rig<U, D, H>>>();
        let scenario = all.iter().find(|one| one.name == *name);
        let outcome = match (scenario, make().map(Box::new)) {
            (Some(scenario), Ok(machine)) => scenario.run(&machine),
            (None, _) => Outcome::Fail("there is no such scenario".to_owned()),
            (_, Err(outcome)) => outcome,
        };
        println!("{name}: {outcome:?}");
        if outcome != Outcome::Pass {
            wrong.push(format!("{name}: {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn smmuv3_first_stage() {
    let make = || smmuv3::first_on_model(smmuv3::SmmuV3Kind::Plain, Seam::Bare);
    must_pass(&[REQUESTS, END, STALLS, SHARED, SHARED_STALLS].concat(), make);
}

#[test]
fn smmuv3_second_stage() {
    let make = || smmuv3::second_on_model(smmuv3::SmmuV3Kind::Plain, Seam::Bare);
    must_pass(&[REQUESTS, END, STALLS].concat(), make);
}

/// Runs a guest's first stage on top.
#[test]
fn smmuv3_nested() {
    let make = || smmuv3::nested_on_model(Seam::Bare);
    must_pass(&[REQUESTS, END, STALLS].concat(), make);
}

#[test]
fn vtd_scalable() {
    must_pass(REQUESTS, || vtd::second_on_model(vtd::VtdKind::Scalable, Seam::Bare));
}

#[test]
fn vtd_first_stage() {
    must_pass(&[REQUESTS, SHARED].concat(), || vtd::first_on_model(Seam::Bare));
}

#[test]
fn amd_guest_tables() {
    let make = || amd::guests_on_model(amd::AmdKind::Guests, Seam::Bare);
    must_pass(&[REQUESTS, SHARED].concat(), make);
}

/// Runs a guest's tables on top.
#[test]
fn amd_nested() {
    must_pass(REQUESTS, || amd::nested_on_model(amd::AmdKind::Nested, Seam::Bare));
}
