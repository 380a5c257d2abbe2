//! Recording from a folder that looks like tracefs: settings, their restoration, and the state after each failure.

pub(crate) mod latency;
pub(crate) mod machine;
mod names;
mod pages;
mod refusals;

use std::fs;

use super::tracefs::Tracefs;
use super::*;
use machine::{Machine, TIMER, UNMAP, event, page, two};

#[test]
fn a_recording_has_facts_lines_and_an_end_and_the_instance_is_given_back() {
    let machine = Machine::new("whole");
    let tracefs = machine.tracefs("", vec![two()]);
    let words = ["--device", "0000:00:03.0", "--buffer-kb", "128", "--", "true"];
    let report = machine.record(&tracefs, &words).unwrap();
    assert_eq!((report.events, report.lost_events, machine.instances()), (2, 4, 0));
    assert_eq!(report.outcome(), Outcome::Good);
    let nameless = ["iommu:map", "timer:timer_expire_entry"];
    assert_eq!(report.kernel_events.without_device, nameless);
    assert!(report.kernel_events.absent.contains(&"unmaps of lists"));
    assert_eq!(machine.set("tracing_on").lines().next(), Some("0"));
    assert_eq!(machine.set("buffer_size_kb").trim_end(), "128");
    assert_eq!(machine.set("events/dma/dma_map_page/enable"), "1");
    let filter = machine.set("events/dma/dma_map_page/filter");
    assert_eq!(filter, "device == \"0000:00:03.0\"");
    assert!(machine.set("events/iommu/map/enable").starts_with("read"), "not touched");

    let text = machine.recorded();
    let lines = "              dd-7       [000] d... 1.000001000: dma_map_page: 0000:00:03.0 dir=FROM_DEVICE \
        dma_addr=ffff000 size=4096 phys_addr=1000 attrs=SKIP_CPU_SYNC\n              \
        dd-7       [000] d... 1.000002000: dma_unmap_page: 0000:00:03.0 dir=FROM_DEVICE dma_addr=ffff000 size=4096 \
        attrs=SKIP_CPU_SYNC\n";
    assert!(text.starts_with(crate::facts::HEAD) && text.contains(lines), "{text}");
    let file = machine.root.join("out.gz");
    let mut reader = crate::trace::open(&file).unwrap();
    assert_eq!(reader.facts().unwrap().unwrap(), report.facts);
    while reader.next_op().is_some() {}
    let summary = reader.summary();
    assert_eq!((summary.events, summary.maps, summary.unmaps, summary.bad_lines), (2, 1, 1, 0));
    assert_eq!(summary.recorder, crate::trace::RecorderStatus::Ended);
}

#[test]
fn what_is_wrong_with_the_request_is_said_before_anything_is_made() {
    let machine = Machine::new("request");
    let tracefs = machine.tracefs("", vec![two()]);
    let unknown = machine.record(&tracefs, &["--device", "0000:00:04.0"]);
    assert!(matches!(unknown, Err(RecordError::UnknownDevice(_))));
    let nowhere = machine.record(&tracefs, &["-o", "/nowhere-at-all/x"]);
    assert!(matches!(nowhere, Err(RecordError::Output { .. })));
    machine.write("out.gz", "mine");
    let there = machine.record(&tracefs, &["--", "true"]);
    assert!(matches!(there, Err(RecordError::Exists(_))));
    assert_eq!(fs::read_to_string(machine.root.join("out.gz")).unwrap(), "mine");
    machine.record(&tracefs, &["--force", "--", "true"]).unwrap();
    fs::remove_dir_all(machine.root.join("tracing/events/dma")).unwrap();
    let filtered = machine.record(&tracefs, &["--device", "0000:00:03.0", "--force"]);
    assert!(matches!(filtered, Err(RecordError::NoDeviceEvents)));
    fs::remove_dir_all(machine.root.join("tracing/events/iommu")).unwrap();
    let none = machine.record(&tracefs, &["--force"]);
    assert!(matches!(none, Err(RecordError::NoEvents { .. })));
    assert_eq!(machine.seen.lock().unwrap().made.len(), 1, "only where all was right");
    let lost = Tracefs::find(&machine.root, Some(&machine.root));
    assert!(matches!(lost, Err(RecordError::NoTracefs(_))));
}

#[test]
fn nothing_is_left_of_a_recording_that_fails() {
    let full = ["-o", "/dev/full", "--", "true"];
    let absent = ["--", "no-such-program-at-all"];
    let good = ["--", "true"];
    let cases: [(&str, &'static str, &[&str]); 5] = [
        ("disk-full", "", &full),
        ("no-command", "", &absent),
        ("no-buffer", "buffer_size_kb", &good),
        ("no-event", "events/iommu/map/enable", &good),
        ("no-switch", "tracing_on", &good),
    ];
    for (name, without, words) in cases {
        let machine = Machine::new(name);
        let tracefs = machine.tracefs(without, vec![two()]);
        let error = machine.record(&tracefs, words).unwrap_err();
        let said = error.to_string();
        let wanted = match name {
            "disk-full" => "make room",
            "no-command" => "check its name",
            _ => "cannot be set",
        };
        assert!(said.contains(wanted), "{name}: {said}");
        assert!(machine.is_as_before(), "{name}");
    }
}

#[test]
fn a_command_that_fails_is_told_and_its_trace_kept() {
    let machine = Machine::new("fails");
    let tracefs = machine.tracefs("", vec![two()]);
    let report = machine.record(&tracefs, &["--", "false"]).unwrap();
    assert_eq!(report.outcome(), Outcome::CheckFailed);
    assert!(machine.root.join("out.gz").exists() && machine.instances() == 0);
    for columns in [40, 60, 80] {
        let text = text(&report, columns);
        let fits = |line: &str| line.len() <= columns || !line.contains(' ');
        assert!(text.lines().all(fits), "{text}");
    }
    assert!(text(&report, usize::MAX).contains("exit status: 1"), "{}", text(&report, usize::MAX));
}

#[test]
fn a_recording_in_which_nothing_happened_fails_the_check() {
    let machine = Machine::new("idle");
    let tracefs = machine.tracefs("", vec![Vec::new()]);
    let report = machine.record(&tracefs, &["--seconds", "1"]).unwrap();
    assert_eq!((report.events, report.outcome()), (0, Outcome::CheckFailed));
    assert!(text(&report, usize::MAX).contains("Nothing did DMA"));
    assert!(!report.kept && machine.is_as_before());
}

/// The kernel's timers run on a machine without DMA, too.
#[test]
fn runs_of_timers_alone_are_no_dma() {
    let machine = Machine::new("timers");
    let run = page(5, &[(1, event(TIMER, 77))], 0);
    let tracefs = machine.tracefs("", vec![run]);
    let report = machine.record(&tracefs, &["--", "true"]).unwrap();
    assert_eq!((report.events, report.timers, report.kept), (1, 1, false));
    assert!(text(&report, usize::MAX).contains("Nothing did DMA"));
    machine.remove("tracing/gone");
    let run = page(2_000_000_000, &[(1, event(TIMER, 77))], 0);
    let tracefs = machine.tracefs("", vec![two(), run]);
    machine.record(&tracefs, &["--force", "--", "true"]).unwrap();
    let line = "timer_expire_entry: timer=hidden function=hidden now=77 baseclk=77\n";
    let text = machine.recorded();
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_recording_without_maps_is_refused_and_says_what_to_do() {
    let machine = Machine::new("no-maps");
    let unmap = page(5, &[(1, event(UNMAP, 0x1000))], 0);
    let tracefs = machine.tracefs("", vec![unmap]);
    let report = machine.record(&tracefs, &["--", "true"]).unwrap();
    assert_eq!((report.events, report.maps, report.kept), (1, 0, false));
    assert_eq!(report.outcome(), Outcome::CheckFailed);
    let text = text(&report, usize::MAX);
    assert!(text.contains("is not written") && text.contains("before the load begins"), "{text}");
    assert!(machine.is_as_before());
}

#[test]
fn a_page_that_is_none_ends_the_recording() {
    let machine = Machine::new("no-page");
    let tracefs = machine.tracefs("", vec![vec![0xff; machine::PAGE]]);
    let error = machine.record(&tracefs, &["--", "true"]).unwrap_err();
    assert!(matches!(error, RecordError::Page(0)), "{error}");
    assert!(machine.is_as_before());
}

#[test]
fn an_instance_that_goes_while_it_records_is_told() {
    let machine = Machine::new("removed");
    let tracefs = machine.tracefs("", vec![two()]);
    let instance = machine.root.join("tracing/instances/portolan-1");
    let gone = machine.root.join("tracing/gone");
    let script = format!("mv {} {}; exec sleep 3600", instance.display(), gone.display());
    let error = machine.record(&tracefs, &["--", "sh", "-c", &script]).unwrap_err();
    assert!(matches!(error, RecordError::Removed(_)), "{error}");
    assert!(error.to_string().contains("removed while it recorded"));
    assert!(machine.is_as_before());
}

#[test]
fn what_a_killed_recorder_left_goes_and_what_a_live_one_uses_stays() {
    let machine = Machine::new("killed");
    let tracefs = machine.tracefs("", vec![two()]);
    let (live, removed) = Instance::make(&tracefs).unwrap();
    assert_eq!(removed, 0);
    let dead = machine.root.join("tracing/instances/portolan-7");
    fs::create_dir(&dead).unwrap();
    fs::create_dir(machine.root.join("tracing/instances/somebody-elses")).unwrap();
    let report = machine.record(&tracefs, &["--", "true"]).unwrap();
    assert_eq!(report.removed_instances, 1);
    assert!(live.path().exists() && !dead.exists());
    assert_eq!(machine.instances(), 2, "a live one and another program's");
}

#[test]
fn a_signal_ends_a_recording_and_the_command_with_it() {
    let machine = Machine::new("signal");
    let tracefs = machine.tracefs("", vec![two()]);
    // The command sends it; it would run on for an hour.
    let script = "kill -TERM $PPID; exec sleep 3600";
    let report = machine.record(&tracefs, &["--", "sh", "-c", script]).unwrap();
    assert_eq!((report.events, report.command), (2, None));
    assert_eq!(machine.instances(), 0);
}
