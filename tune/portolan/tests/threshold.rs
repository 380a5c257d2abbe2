//! The library's own plan is nowhere much dearer than the best fixed one: neither than pages, nor than
//! ranges, nor than the whole context each time.

use std::path::Path;

use portolan::inval::RangeForm;
use portolan_hw::smmuv2::{Implementation, WaitForSafe};
use portolan_sim::profile::Profile;
use portolan_tune::replay::{Policy, Replay};
use portolan_tune::trace;

/// Largest allowed cost, as a multiple of the cost of the best fixed plan.
const WITHIN: f64 = 1.05;
/// Traces that differ most in the size of their maps; `PORTOLAN_ALL_TRACES` takes all.
const TRACES: [&str; 2] = ["vtd-strict.mixed-sg-4j", "vtd-strict.net-tx"];

fn traces() -> Vec<std::path::PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces");
    if std::env::var_os("PORTOLAN_ALL_TRACES").is_none() {
        let named = TRACES.map(|name| dir.join(format!("{name}.trace.xz")));
        return named.to_vec();
    }
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "xz")).collect()
}

#[test]
fn the_library_s_own_plan_is_never_dearer_than_the_best_fixed_one_by_more_than_5_pct() {
    let policies =
        [Policy::StrictPage, Policy::StrictRange, Policy::StrictContext, Policy::Combined];
    let all = std::env::var_os("PORTOLAN_ALL_TRACES").is_some();
    for profile in Profile::builtin().unwrap() {
        // With ranges one command names each unmap, for any threshold.
        if !all && profile.capabilities().range != RangeForm::Absent {
            continue;
        }
        for path in traces() {
            let mut reader = trace::open(&path).unwrap();
            let report = Replay::new(&profile, &policies).run(&mut reader).unwrap();
            let total = |n: usize| report.policies[n].time_us.total;
            let best = (0..3).map(total).fold(f64::INFINITY, f64::min);
            let name = (profile.name(), path.file_name().unwrap());
            println!("{name:?}: {:.3}", total(3) / best);
            assert!(total(3) <= best * WITHIN, "{name:?}: {} and {best}", total(3));
        }
    }
}

/// The driver's default is the threshold that follows from the prices of its profile.
#[test]
fn qualcomm_s_driver_has_the_threshold_of_its_prices() {
    let profile = Profile::by_name("sm8150").unwrap();
    let price = |event| profile.price(event).unwrap().round() as u64;
    use portolan_sim::profile::Event;
    let walk = u64::from(profile.format().levels()) * price(Event::IotlbMissStep);
    let threshold = (price(Event::CmdContext) + walk) / price(Event::CmdPage);
    let driver = Implementation::Qualcomm(WaitForSafe::Off).quirks();
    assert_eq!(driver.context_above, threshold);
}
