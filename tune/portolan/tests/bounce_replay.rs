//! Traces of a system that bounces everything, replayed with everything bounced: the copies are those
//! that the traced kernel made.

use std::io::Cursor;
use std::path::PathBuf;

use portolan_sim::profile::Profile;
use portolan_tune::replay::{Policy, Replay, ReplayReport, Swiotlb, TraceInput};

fn replay(trace: &str) -> ReplayReport {
    replay_with(trace, Swiotlb::default())
}

fn replay_with(trace: &str, pool: Swiotlb) -> ReplayReport {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
    let path = PathBuf::from(data).join(format!("swiotlb.{trace}.trace.xz"));
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let policies = [Policy::StrictRange, Policy::Bounce(pool)];
    let mut reader = TraceInput::File(&path).open().unwrap();
    Replay::new(&profile, &policies).run(&mut reader).unwrap()
}

#[test]
fn what_linux_bounced_is_copied() {
    // Sizes of the traces' own swiotlb_bounced events, summed; all of it goes from the device, so it
    // is copied both ways.
    for (trace, copies, bytes) in
        [("read4k-4j", 12_500, 51_200_000), ("net-rx", 18_229, 27_047_607)]
    {
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
        assert!((bounce.time_us.total - us).abs() < 0.01 * us, "{trace}: {bounce:?}");
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

#[test]
fn slots_and_areas_are_those_that_were_asked_for() {
    let bounced = |pool: &str| {
        let report = replay_with("read4k-4j", pool.parse().unwrap());
        (report.policies[1].rejected_maps, report.policies[1].bounce.unwrap())
    };
    let (rejected, whole) = bounced("32768,4,force");
    assert_eq!((rejected, whole.slots, whole.areas), (0, 32_768, 4));
    // Three areas become four, as in Linux.
    assert_eq!(bounced("32768,3,force"), (rejected, whole));
    // Too few for the mappings at once: some maps find no room, and no more is used.
    let peak = whole.slots_peak;
    let (rejected, small) = bounced("64,1,force");
    assert!(peak > 64 && rejected > 0, "{peak} {rejected}");
    assert_eq!((small.slots, small.slots_peak), (64, 64));
    assert!(small.copies + rejected >= whole.copies);
}

#[test]
fn without_force_only_what_a_device_does_not_reach_is_copied() {
    use portolan_tune::trace;
    let line = |pa: &str| {
        format!(
            "x-1 [000] ..... 1.0: dma_map_page: 0000:00:02.0 dir=TO_DEVICE dma_addr={pa} size=4096 \
             phys_addr={pa} attrs=\n"
        )
    };
    // The last page that 32 bits reach, outside of the pool, and the first that they do not.
    let text = ["70000000", "100000000"].map(line).concat();
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let bounced = |pool: &str| {
        let mut reader =
            trace::Reader::new(Box::new(Cursor::new(text.clone().into_bytes()))).unwrap();
        let policies = [Policy::Bounce(pool.parse().unwrap())];
        let report = Replay::new(&profile, &policies).run(&mut reader).unwrap();
        let counts = report.policies[0].bounce.unwrap();
        (counts.copies, counts.bytes_copied, counts.forced)
    };
    assert_eq!(bounced("32768,4,force"), (2, 8192, true));
    assert_eq!(bounced("32768,4"), (1, 4096, false));
}

#[test]
fn what_makes_no_pool_is_told() {
    for (text, word) in [
        ("", "says nothing"),
        ("0", "slots"),
        ("99999999999", "slots"),
        ("1000000", "4 GiB"),
        ("1024,0", "areas"),
        ("1024,4,4", "`4`"),
        ("1024,4,often", "`often`"),
        ("1024,force,4", "too many"),
        ("noforce", "nothing"),
        ("force,1024", "too many"),
    ] {
        let error = text.parse::<Swiotlb>().unwrap_err();
        assert!(error.contains(word), "`{text}`: {error}");
    }
    let report = |text: &str| {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/traces");
        let path = PathBuf::from(data).join("swiotlb.net-rx.trace.xz");
        let profile = Profile::by_name("xeon-vtd").unwrap();
        let mut reader = TraceInput::File(&path).open().unwrap();
        Replay::new(&profile, &[Policy::Bounce(text.parse().unwrap())]).run(&mut reader)
    };
    let error = format!("{:#}", report("64,2").unwrap_err());
    assert!(error.contains("2 areas") && error.contains("262144"), "{error}");
}
