//! Recording from a folder that looks like tracefs: what is set, what comes back, and what is left after each failure.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Parser;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::tracefs::{Folders, Tracefs};
use super::*;

const LINES: &str = "  dd-7 [000] ..... 1.000001: dma_map_page: 0000:00:03.0 dir=FROM_DEVICE \
    dma_addr=fffff000 size=4096 phys_addr=1000 attrs=\n  dd-7 [000] ..... 1.000002: dma_unmap_page: 0000:00:03.0 \
    dir=FROM_DEVICE dma_addr=fffff000 size=4096 attrs=\n";

/// A machine in a folder: tracefs, `/sys`, `/proc`, and somewhere to write.
struct Machine {
    root: PathBuf,
    /// The instance as it was when it went, and the ends of its pipe that the "kernel" holds.
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    pipes: Vec<File>,
    made: Vec<PathBuf>,
}

#[derive(Parser)]
struct Words {
    #[command(flatten)]
    args: RecordArgs,
}

impl Machine {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("portolan-record-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let machine = Self {
            root,
            seen: Arc::default(),
        };
        for event in ["dma/dma_map_page", "dma/dma_unmap_page", "iommu/map"] {
            let field = match event.starts_with("dma") {
                true => "\tfield:__data_loc char[] device;\toffset:8;\n",
                false => "\tfield:u64 iova;\toffset:8;\n",
            };
            machine.write(&format!("tracing/events/{event}/format"), field);
        }
        machine.write("sys/bus/pci/devices/0000:00:03.0/vendor", "0x1b36");
        machine.write("proc/sys/kernel/osrelease", "6.12.0\n");
        machine.write("sys/devices/system/cpu/online", "0-1\n");
        fs::create_dir_all(machine.root.join("tracing/instances")).unwrap();
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn instances(&self) -> usize {
        fs::read_dir(self.root.join("tracing/instances"))
            .unwrap()
            .count()
    }

    /// A tracefs whose instances have all files but `without`, and say `lines`.
    fn tracefs(&self, without: &'static str, lines: &'static str) -> Tracefs {
        let seen = Arc::clone(&self.seen);
        let make = move |path: &Path| {
            fs::create_dir(path)?;
            let mut files = vec![
                "tracing_on",
                "buffer_size_kb",
                "trace_clock",
                "events/enable",
            ];
            files.extend([
                "events/dma/dma_map_page/enable",
                "events/dma/dma_map_page/filter",
            ]);
            files.extend([
                "events/dma/dma_unmap_page/enable",
                "events/dma/dma_unmap_page/filter",
            ]);
            files.extend(["events/iommu/map/enable", "per_cpu/cpu0/stats"]);
            for file in files.iter().filter(|file| **file != without) {
                fs::create_dir_all(path.join(file).parent().unwrap())?;
                fs::write(
                    path.join(file),
                    "read events: 2\noverrun: 3\ndropped events: 1\n",
                )?;
            }
            let pipe = path.join("trace_pipe");
            mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            let mut end = OpenOptions::new().read(true).write(true).open(&pipe)?;
            end.write_all(lines.as_bytes())?;
            let mut seen = seen.lock().unwrap();
            seen.pipes.push(end);
            seen.made.push(path.to_owned());
            Ok(())
        };
        // What was set is looked at afterwards.
        let remove = |path: &Path| fs::rename(path, path.parent().unwrap().join("../gone"));
        Tracefs {
            root: self.root.join("tracing"),
            folders: Folders {
                make: Box::new(make),
                remove,
            },
        }
    }

    fn record(&self, tracefs: &Tracefs, words: &[&str]) -> Result<RecordReport, RecordError> {
        let out = self.root.join("out.gz").display().to_string();
        let mut line = vec!["record"];
        if !words.contains(&"-o") {
            line.extend(["-o", &out]);
        }
        line.extend(words);
        super::record(&Words::parse_from(line).args, tracefs, &self.root)
    }

    fn set(&self, file: &str) -> String {
        fs::read_to_string(self.root.join("tracing/gone").join(file)).unwrap()
    }

    /// Neither an instance nor a file is left.
    fn is_as_before(&self) -> bool {
        let out = ["out.gz", "out.gz.partial"];
        self.instances() == 0 && out.iter().all(|name| !self.root.join(name).exists())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_recording_has_facts_lines_and_an_end_and_the_instance_is_given_back() {
    let machine = Machine::new("whole");
    let tracefs = machine.tracefs("", LINES);
    let words = [
        "--device",
        "0000:00:03.0",
        "--buffer-kb",
        "128",
        "--",
        "true",
    ];
    let report = machine.record(&tracefs, &words).unwrap();
    assert_eq!(
        (report.events, report.lost_events, machine.instances()),
        (2, 4, 0)
    );
    assert_eq!(report.outcome(), Outcome::Good);
    assert_eq!(report.kernel_events.without_device, ["iommu:map"]);
    assert!(report.kernel_events.absent.contains(&"unmaps of lists"));
    assert_eq!(machine.set("tracing_on").lines().next(), Some("0"));
    assert_eq!(machine.set("buffer_size_kb").trim_end(), "128");
    assert_eq!(machine.set("events/dma/dma_map_page/enable"), "1");
    let filter = machine.set("events/dma/dma_map_page/filter");
    assert_eq!(filter, "device == \"0000:00:03.0\"");
    assert!(
        machine.set("events/iommu/map/enable").starts_with("read"),
        "not touched"
    );

    let file = machine.root.join("out.gz");
    let mut text = String::new();
    let packed = File::open(&file).unwrap();
    flate2::read::GzDecoder::new(packed)
        .read_to_string(&mut text)
        .unwrap();
    assert!(
        text.starts_with(crate::facts::HEAD) && text.contains(LINES),
        "{text}"
    );
    let mut reader = crate::trace::open(&file).unwrap();
    assert_eq!(reader.facts().unwrap().unwrap(), report.facts);
    while reader.next_op().is_some() {}
    let summary = reader.summary();
    assert_eq!(
        (
            summary.events,
            summary.maps,
            summary.unmaps,
            summary.bad_lines
        ),
        (2, 1, 1, 0)
    );
    assert_eq!(summary.recorder, crate::trace::Recorder::Ended);
}

#[test]
fn what_is_wrong_with_the_request_is_said_before_anything_is_made() {
    let machine = Machine::new("request");
    let tracefs = machine.tracefs("", LINES);
    let unknown = machine.record(&tracefs, &["--device", "0000:00:04.0"]);
    assert!(matches!(unknown, Err(RecordError::UnknownDevice(_))));
    let nowhere = machine.record(&tracefs, &["-o", "/nowhere-at-all/x"]);
    assert!(matches!(nowhere, Err(RecordError::Output { .. })));
    machine.write("out.gz", "mine");
    let there = machine.record(&tracefs, &["--", "true"]);
    assert!(matches!(there, Err(RecordError::Exists(_))));
    assert_eq!(
        fs::read_to_string(machine.root.join("out.gz")).unwrap(),
        "mine"
    );
    machine
        .record(&tracefs, &["--force", "--", "true"])
        .unwrap();
    fs::remove_dir_all(machine.root.join("tracing/events/dma")).unwrap();
    let filtered = machine.record(&tracefs, &["--device", "0000:00:03.0", "--force"]);
    assert!(matches!(filtered, Err(RecordError::NoDeviceEvents)));
    fs::remove_dir_all(machine.root.join("tracing/events/iommu")).unwrap();
    let none = machine.record(&tracefs, &["--force"]);
    assert!(matches!(none, Err(RecordError::NoEvents(_))));
    assert_eq!(
        machine.seen.lock().unwrap().made.len(),
        1,
        "only where all was right"
    );
    let lost = Tracefs::find(Some(&machine.root));
    assert!(matches!(lost, Err(RecordError::NoTracefs)));
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
        let tracefs = machine.tracefs(without, LINES);
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
    let tracefs = machine.tracefs("", LINES);
    let report = machine.record(&tracefs, &["--", "false"]).unwrap();
    assert_eq!(report.outcome(), Outcome::CheckFailed);
    assert!(machine.root.join("out.gz").exists() && machine.instances() == 0);
    for columns in [40, 60, 80] {
        let text = text(&report, columns);
        let fits = |line: &str| line.len() <= columns || !line.contains(' ');
        assert!(text.lines().all(fits), "{text}");
    }
    assert!(
        text(&report, usize::MAX).contains("exit status: 1"),
        "{}",
        text(&report, usize::MAX)
    );
}

#[test]
fn a_recording_in_which_nothing_happened_fails_the_check() {
    let machine = Machine::new("idle");
    let tracefs = machine.tracefs("", "");
    let report = machine.record(&tracefs, &["--seconds", "1"]).unwrap();
    assert_eq!((report.events, report.outcome()), (0, Outcome::CheckFailed));
    assert!(text(&report, usize::MAX).contains("Nothing did DMA"));
}

#[test]
fn what_a_killed_recorder_left_goes_and_what_a_live_one_uses_stays() {
    let machine = Machine::new("killed");
    let tracefs = machine.tracefs("", LINES);
    let (live, removed) = tracefs.instance().unwrap();
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
    let tracefs = machine.tracefs("", LINES);
    // The command sends it; it would run on for an hour.
    let script = "kill -TERM $PPID; exec sleep 3600";
    let report = machine
        .record(&tracefs, &["--", "sh", "-c", script])
        .unwrap();
    assert_eq!((report.events, report.command), (2, None));
    assert_eq!(machine.instances(), 0);
}
