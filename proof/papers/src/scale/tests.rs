//! Short runs: properties that hold for all prices.

use portolan_sim::profile::Profile;

use super::*;

fn options(policies: &[ScalePolicy], cpus: &[usize], horizon_ms: u64) -> Options {
    Options { policies: policies.to_vec(), cpus: cpus.to_vec(), seed: 1, horizon_ms }
}

fn rates(report: &ScaleReport, policy: ScalePolicy) -> Vec<f64> {
    let of_policy = |row: &&ScaleRow| row.policy == policy && row.with.is_none();
    let rows = report.rows.iter().filter(of_policy);
    rows.map(|row| row.operations_per_s).collect()
}

#[test]
fn combined_rises_where_strict_is_at_its_end() {
    let profile = Profile::by_name("vtd-nested").unwrap();
    let policies = [ScalePolicy::Strict, ScalePolicy::Combined];
    let report = run(&profile, &options(&policies, &[8, 32, 64], 4)).unwrap();
    let strict = rates(&report, ScalePolicy::Strict);
    let combined = rates(&report, ScalePolicy::Combined);
    assert!(strict[2] < strict[0] * 1.2, "{strict:?}");
    assert!(combined[2] > combined[1] * 1.2, "{combined:?}");
    assert!(combined[2] > strict[2] * 3.0, "{combined:?} {strict:?}");
    let fit = report.fit.unwrap();
    assert!(fit.error < 0.1, "{fit:?}");
    let workload = profile.workload().unwrap();
    // The profile's values come from a longer run.
    assert!((fit.bytes / workload.bytes as f64 - 1.0).abs() < 0.1, "{fit:?}");
    assert!((fit.work_ns / workload.work.ns - 1.0).abs() < 0.1, "{fit:?}");
}

#[test]
fn the_strict_row_of_grace_meets_what_it_was_fitted_on() {
    let profile = Profile::by_name("grace").unwrap();
    let report = run(&profile, &options(&[], &[144], 2)).unwrap();
    for row in &report.rows {
        let published = row.published.filter(|_| row.fitted);
        let Some(published) = published else {
            continue;
        };
        let error = row.operations_per_s / published - 1.0;
        assert!(error.abs() < 0.03, "{row:?}");
    }
    let combined = rates(&report, ScalePolicy::Combined)[0];
    // The pages of a batch lie in leaf tables of as many CPUs, so each needs a command: syncs alone are saved.
    assert!(combined > 1.5 * rates(&report, ScalePolicy::Strict)[0], "{combined}");
}

#[test]
fn equal_seeds_give_equal_rows() {
    let profile = Profile::by_name("grace").unwrap();
    let policies = [ScalePolicy::Combined, ScalePolicy::Deferred, ScalePolicy::Lazy];
    let once = || run(&profile, &options(&policies, &[3, 12], 1)).unwrap();
    let (one, other) = (once(), once());
    for (a, b) in one.rows.iter().zip(&other.rows) {
        assert_eq!(a.operations_per_s.to_bits(), b.operations_per_s.to_bits());
        assert_eq!(a.syncs_per_operation.to_bits(), b.syncs_per_operation.to_bits());
    }
}

#[test]
fn a_machine_without_a_workload_says_so() {
    let profile = Profile::by_name("sm8150").unwrap();
    let error = run(&profile, &options(&[], &[1], 1)).unwrap_err();
    assert!(error.to_string().contains("sm8150"), "{error}");
}
