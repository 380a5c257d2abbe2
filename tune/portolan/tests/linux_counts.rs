//! Strict by range on the VT-d profile submits the same commands as Linux did, as QEMU counted them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use portolan_sim::profile::Profile;
use portolan_tune::replay::{Policy, Replay};
use portolan_tune::trace;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces")
}

/// Page-selective invalidations by address mask, for each `vtd-strict` workload but the boot, whose
/// first invalidations precede its mappings.
fn counted() -> BTreeMap<String, BTreeMap<u8, u64>> {
    let text = std::fs::read_to_string(traces().join("invalidations.csv")).unwrap();
    let mut counted: BTreeMap<String, BTreeMap<u8, u64>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let columns: Vec<_> = line.split(',').collect();
        let [config, workload, kind, scope, _, mask, count] = columns[..] else {
            panic!("{line}");
        };
        if config == "vtd-strict" && (kind, scope) == ("iotlb", "page") {
            let masks = counted.entry(workload.to_owned()).or_default();
            *masks.entry(mask.parse().unwrap()).or_default() += count.parse::<u64>().unwrap();
        }
    }
    counted
}

#[test]
fn strict_by_range_submits_what_linux_did() {
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let counted = counted();
    assert_eq!(counted.len(), 9);
    for (workload, masks) in counted {
        let path = traces().join(format!("vtd-strict.{workload}.trace.xz"));
        let mut reader = trace::open(&path).unwrap();
        let report = Replay::new(&profile, &[Policy::StrictRange]).run(&mut reader).unwrap();
        let policy = &report.policies[0];
        assert_eq!(policy.masks, masks, "{workload}");
        assert_eq!(policy.invalidations.range, masks.values().sum::<u64>(), "{workload}");
        assert_eq!(policy.invalidations.total(), policy.invalidations.range, "{workload}");
        assert_eq!(policy.syncs, policy.invalidations.range, "{workload}");
        assert_eq!(policy.device.faults, 0, "{workload}");
        let trace = &report.trace;
        assert_eq!(
            (trace.orphan_unmaps, trace.bad_lines, trace.left_mapped),
            (0, 0, 0),
            "{workload}"
        );
    }
}
