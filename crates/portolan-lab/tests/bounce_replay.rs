//! Traces of a system that bounces everything, replayed with everything bounced: the copies are those
//! that the traced kernel made.

use std::path::PathBuf;

use portolan_lab::replay::{Policy, ReplayReport, run_file};
use portolan_model::profile::Profile;

fn replay(trace: &str) -> ReplayReport {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
    let path = PathBuf::from(data).join(format!("swiotlb.{trace}.trace.xz"));
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let policies = [Policy::StrictRange, Policy::Bounce];
    run_file(Some(&path), &profile, &policies, None).unwrap()
}

#[test]
fn what_linux_bounced_is_copied() {
    // Sizes of the traces' own swiotlb_bounced events, summed; all of it goes from the device, so it
    // is copied both ways.
    for (trace, copies, bytes) in [
        ("read4k-4j", 12_500, 51_200_000),
        ("net-rx", 18_229, 27_047_607),
    ] {
        let report = replay(trace);
        assert_eq!(report.trace.bounced_bytes, bytes, "{trace}");
        let [strict, bounce] = report.policies.as_slice() else {
            panic!("two policies");
        };
        let counts = bounce.bounce.unwrap();
        assert_eq!(counts.copies, copies, "{trace}");
        assert!(counts.bytes_copied <= 2 * bytes, "{trace}: {counts:?}");
        if trace == "read4k-4j" {
            assert_eq!(counts.bytes_copied, 2 * bytes);
        }
        assert_eq!(counts.saved.syncs, report.trace.unmaps, "{trace}");
        assert!(counts.saved.syncs <= strict.syncs);
        assert_eq!(strict.invalidations.range, strict.syncs);
        assert_eq!((bounce.syncs, bounce.invalidations.total()), (0, 0));
        assert_eq!((bounce.rejected_maps, bounce.exposed.max_bytes), (0, 0));
        assert!(
            counts.slots == 32_768 && counts.slots_peak > 0 && counts.slots_peak <= counts.slots
        );
        // 39 ns and 0.032 ns a byte, as the profile has them.
        let us = (39.0 * copies as f64 + 0.032 * counts.bytes_copied as f64) / 1000.0;
        assert!(
            (bounce.time_us.total - us).abs() < 0.01 * us,
            "{trace}: {bounce:?}"
        );
    }
}

#[test]
fn lists_are_copied_piece_by_piece() {
    let report = replay("mixed-sg-4j");
    assert_eq!(report.trace.bounced_bytes, 333_557_760);
    let counts = report.policies[1].bounce.unwrap();
    // Reads are copied twice and writes once.
    let range = report.trace.bounced_bytes..=2 * report.trace.bounced_bytes;
    assert!(range.contains(&counts.bytes_copied), "{counts:?}");
    assert!(counts.copies > report.trace.maps, "{counts:?}");
    assert_eq!(report.policies[1].rejected_maps, 0);
}
