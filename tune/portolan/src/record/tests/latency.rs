//! `--latency`: measured latencies, their use by a replay, and the kernel's settings on every way out.

use std::fs;
use std::io::Read;
use std::path::Path;

use portolan_sim::profile::{Event, Profile};

use super::super::restore::give_back;
use super::super::settings::Changed;
use super::super::{RecordError, text};
use super::machine::{Machine, TRACER, two};
use crate::calibrate::MachineTraces;
use crate::facts::LATENCY;
use crate::trace;

/// Output of a kernel in a guest.
const LATENCIES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/latencies/vtd-strict.read4k.graph.xz");

/// Output of a kernel's tracer.
pub(crate) fn latencies() -> String {
    let mut printed = String::new();
    let file = fs::File::open(LATENCIES).unwrap();
    let mut unpacked = trace::open_bytes(Box::new(file)).unwrap();
    unpacked.read_to_string(&mut printed).unwrap();
    printed
}

/// A machine whose load has the tracer print latencies into `place`; and the command that is that load.
fn machine(name: &str, tracers: &'static str, place: &str) -> (Machine, [String; 3]) {
    let mut machine = Machine::new(name);
    machine.tracers = tracers;
    machine.with_tracer();
    machine.write("printed", &latencies());
    let script = format!("cp printed tracing/{place}trace");
    let script = format!("cd {} && {script}", machine.root.display());
    (machine, ["sh", "-c", &script].map(str::to_owned))
}

/// The settings of the main tracing.
fn settings(machine: &Machine) -> Vec<String> {
    let files = TRACER.iter().filter(|(file, _)| *file != "trace");
    let read = |file: &str| fs::read_to_string(machine.root.join("tracing").join(file)).unwrap();
    // A star is the kernel's own.
    let values =
        files.map(|(file, _)| format!("{file}: {}", read(file).trim_end_matches(['*', '\n'])));
    values.collect()
}

fn words<'w>(more: &[&'w str], command: &'w [String]) -> Vec<&'w str> {
    let mut words = [&["--latency", "1"], more, &["--"]].concat();
    words.extend(command.iter().map(String::as_str));
    words
}

#[test]
fn latencies_are_measured_in_the_instance_and_a_replay_has_their_prices() {
    let instance = "instances/portolan-1/";
    let (machine, command) = machine("latency", "function_graph nop\n", instance);
    let before = settings(&machine);
    let tracefs = machine.tracefs("", vec![two()]);
    let report = machine.record(&tracefs, &words(&[], &command)).unwrap();
    assert_eq!(settings(&machine), before, "the main tracing is not touched");
    assert_eq!(machine.set("current_tracer"), "nop");
    assert_eq!(machine.set("options/funcgraph-args"), "0");
    assert!(report.latencies.unwrap() > 5000 && report.kept);
    let said = text(&report, usize::MAX);
    assert!(said.contains("this machine's own"), "{said}");
    // As the machine's buffers count.
    assert_eq!(report.latencies_overwritten, 4);
    assert!(said.contains("4 older events of the tracer were overwritten"), "{said}");

    let file = machine.root.join("out.gz");
    let reader = trace::open(&file).unwrap();
    let (profile, choice, warning) = crate::replay::of_recording(&reader).unwrap();
    assert_eq!(warning, None);
    let measured = choice.as_ref().unwrap().measured.clone().unwrap();
    assert!(measured.calls > 1000 && measured.prices.contains(&"map_call"), "{measured:?}");
    let built_in = Profile::by_name("xeon-vtd").unwrap();
    let price = |profile: &Profile| profile.price(Event::MapCall).unwrap();
    assert!(price(&profile) > 2.0 * price(&built_in), "an emulated CPU is slow");
    let said = crate::replay::sentences(&choice.unwrap(), profile.name());
    assert!(said.contains("prices measured on this machine, "), "{said}");
    assert!(said.contains("other prices are those of "), "{said}");

    is_read_as_without_latencies(&machine);

    // `calibrate` takes the file, and finds the same calls as in the kernel's own text.
    let calls = |path: &Path| {
        let mut gathered = MachineTraces::new(built_in.format(), 1).unwrap();
        gathered.read_file(path).unwrap();
        let text = Profile::text_of("xeon-vtd").unwrap();
        let report = gathered.calibrate(&built_in, text, "x").unwrap();
        (report.functions, report.prices, report.sources[0].latencies, report.sources[0].bad)
    };
    let own = calls(&file);
    assert_eq!(own, calls(Path::new(LATENCIES)));
    assert_eq!(Some(own.2), report.latencies);
}

/// Checks that a replay reads the same events as without the latencies.
fn is_read_as_without_latencies(machine: &Machine) {
    let lines = machine.recorded();
    let plain: String = lines
        .lines()
        .filter(|line| !line.starts_with(LATENCY))
        .fold(String::new(), |text, line| text + line + "\n");
    let count = |input: Box<dyn Read>| {
        let mut reader = trace::Reader::new(input).unwrap();
        while reader.next_op().is_some() {}
        let summary = reader.summary();
        (summary.events, summary.maps, summary.unmaps, summary.bad_lines, summary.lost_events)
    };
    let with = count(Box::new(std::io::Cursor::new(lines.into_bytes())));
    assert_eq!(with, count(Box::new(std::io::Cursor::new(plain.into_bytes()))));
    assert_eq!(with, (2, 1, 1, 0, 0));
}

#[test]
fn a_kernel_that_measures_in_the_main_tracing_alone_gets_all_settings_back() {
    let failing: [(&str, &[&str]); 4] = [
        ("ends", &[]),
        ("signal", &["sh", "-c", "kill -TERM $PPID; exec sleep 3600"]),
        ("no-command", &["no-such-program-at-all"]),
        ("fails", &["false"]),
    ];
    for (name, other) in failing {
        let (machine, command) = machine(&format!("main-{name}"), "nop\n", "");
        let before = settings(&machine);
        let tracefs = machine.tracefs("", vec![two()]);
        let other: Vec<String> = other.iter().map(|word| (*word).to_owned()).collect();
        let command = if other.is_empty() { command.to_vec() } else { other };
        let recorded = machine.record(&tracefs, &words(&[], &command));
        assert_eq!(settings(&machine), before, "{name}");
        assert_eq!(machine.instances(), 0, "{name}");
        match name {
            "ends" => assert!(recorded.unwrap().latencies.unwrap() > 5000),
            "no-command" => assert!(matches!(recorded, Err(RecordError::Command { .. }))),
            _ => assert_eq!(recorded.unwrap().latencies, Some(0)),
        }
    }
}

#[test]
fn what_fails_while_the_tracer_is_set_up_is_put_back() {
    for file in ["current_tracer", "set_ftrace_filter"] {
        let (machine, command) = machine(&format!("half-{file}"), "nop\n", "");
        fs::remove_file(machine.root.join("tracing").join(file)).unwrap();
        let tracefs = machine.tracefs("", vec![two()]);
        let error = machine.record(&tracefs, &words(&[], &command)).unwrap_err();
        let tells = match file {
            "current_tracer" => matches!(error, RecordError::Tracing { .. }),
            _ => matches!(error, RecordError::NoFunctions),
        };
        assert!(tells && machine.is_as_before(), "{file}: {error}");
        machine.write(&format!("tracing/{file}"), "");
        let now = settings(&machine);
        let (fresh, _) = self::machine(&format!("fresh-{file}"), "nop\n", "");
        fresh.write(&format!("tracing/{file}"), "");
        assert_eq!(now, settings(&fresh), "{file}");
    }
}

#[test]
fn a_panic_puts_back_what_was_changed() {
    let (machine, _) = machine("panic", "nop\n", "");
    let before = settings(&machine);
    let changed = Changed::default();
    for (file, value) in
        [("current_tracer", "function_graph"), ("tracing_on", "0"), ("tracing_on", "1")]
    {
        changed.set(&machine.root.join("tracing").join(file), value).unwrap();
    }
    let instance = machine.root.join("tracing/instances/portolan-1");
    fs::create_dir(&instance).unwrap();
    assert_ne!(settings(&machine), before);
    give_back(&instance, &changed);
    assert_eq!(settings(&machine), before);
    assert_eq!(machine.instances(), 0);
}

#[test]
fn a_main_tracing_that_is_in_use_is_left_alone() {
    let cases = [
        ("current_tracer", "function\n", "current_tracer has \\\"function\\\""),
        ("set_event", "sched:sched_switch\n", "sched_switch"),
        ("set_ftrace_filter", "vfs_read\n", "vfs_read"),
        ("set_ftrace_pid", "1234\n", "1234"),
        ("trace", "# tracer: nop\n  dd-7 [000] d... 1.0: mark: x\n", "dd-7"),
    ];
    for (file, value, wanted) in cases {
        let (machine, command) = machine(&format!("used-{file}"), "nop\n", "");
        machine.write(&format!("tracing/{file}"), value);
        let before = settings(&machine);
        let tracefs = machine.tracefs("", vec![two()]);
        let error = machine.record(&tracefs, &words(&[], &command)).unwrap_err();
        let said = error.to_string();
        let wanted = wanted.replace('\\', "");
        assert!(said.contains("is in use") && said.contains(&wanted), "{file}: {said}");
        assert!(said.contains("echo nop > current_tracer"), "{said}");
        assert_eq!(settings(&machine), before, "{file}");
        assert!(machine.is_as_before(), "{file}");
    }
}

#[test]
fn a_kernel_that_cannot_measure_says_so() {
    let machine = Machine::new("no-tracer");
    machine.write("tracing/available_tracers", "blk nop\n");
    let tracefs = machine.tracefs("", vec![two()]);
    let error = machine.record(&tracefs, &["--latency", "1", "--", "true"]).unwrap_err();
    assert!(matches!(error, RecordError::NoTracer) && machine.is_as_before(), "{error}");
}

#[test]
fn latencies_alone_are_kept_for_calibrate_and_a_replay_says_what_they_are() {
    let (machine, command) = machine("alone", "function_graph\n", "instances/portolan-1/");
    let tracefs = machine.tracefs("", vec![Vec::new()]);
    let report = machine.record(&tracefs, &words(&[], &command)).unwrap();
    assert!(report.kept && report.maps == 0);
    let said = text(&report, usize::MAX);
    assert!(said.contains("portolan calibrate"), "{said}");
    let Err(error) = trace::open(&machine.root.join("out.gz")) else {
        panic!("there are no events")
    };
    assert!(error.to_string().contains("portolan calibrate"), "{error}");
}

#[test]
fn functions_that_are_measured_are_those_that_calibrate_knows_and_their_callers() {
    for name in crate::calibrate::wanted_functions() {
        assert!(super::super::FUNCTIONS.contains(&name), "{name}");
    }
}
