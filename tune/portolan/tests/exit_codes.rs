//! Exit codes of `portolan explain`: 0 no problem, 1 a problem, 2 nothing could be read; for each question, and for
//! machines of which little or nothing sensible is there.

#[path = "threads/functions.rs"]
mod functions;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Two cards behind root ports, and the host bridge.
const FUNCTIONS: &str = "
00:00.0 8086:09a2 060000 conventional group=0
00:01.0 8086:352a 060400 root-port buses=01-01 acs=5f/1d group=1 driver=pcieport
00:02.0 8086:352a 060400 root-port buses=02-02 acs=5f/1d group=2 driver=pcieport
01:00.0 10de:2bb1 030000 endpoint group=3 driver=nvidia bars=16M,256M
02:00.0 10de:2bb1 030000 endpoint group=4 driver=nvidia bars=16M,256M
";
const FAULT: &str = "[    9.0] DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0xffa00000 \
                     [fault reason 0x06] PTE Read access is not set\n";

/// Files by path, as a collected machine has them.
type Machine = BTreeMap<String, Value>;

/// A machine on which all is well.
fn well() -> Machine {
    let mut files = functions::files(FUNCTIONS, true);
    for (path, text) in [
        ("proc/cmdline", "ro intel_iommu=on iommu=pt\n"),
        ("proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t\t: fpu vmx\n"),
        ("proc/interrupts", "  30:  7  IR-PCI-MSI-0000:01:00.2  0-edge  nvme0q0\n"),
        ("proc/sys/kernel/osrelease", "6.12.1\n"),
        ("sys/class/iommu/dmar0/intel-iommu/cap", "d2078c106f0466\n"),
    ] {
        files.insert(path.to_owned(), json!({ "text": text }));
    }
    for group in 0..=4 {
        let path = format!("sys/kernel/iommu_groups/{group}/type");
        files.insert(path, json!({ "text": "identity\n" }));
    }
    files
}

/// That machine in a container that hides `/sys`.
fn container() -> Machine {
    well().into_iter().filter(|(path, _)| path.starts_with("proc/")).collect()
}

/// That machine, of whose files each second one may not be read.
fn half() -> Machine {
    let denied = |(number, (path, file))| match number % 2 {
        0 => (path, file),
        _ => (path, json!({ "denied": true })),
    };
    well().into_iter().enumerate().map(denied).collect()
}

/// That machine with hostile bytes in each file.
fn hostile() -> Machine {
    let odd = |(path, file): (String, Value)| match file.get("text") {
        Some(_) => (path, json!({ "hex": "1b5d303b789c1b5b324a00ff3d2c3a0a".repeat(9) })),
        None => (path, file),
    };
    well().into_iter().map(odd).collect()
}

fn written(name: &str, machine: &Machine, log: Option<&str>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("exit-{name}.json"));
    let mut document = json!({ "portolan-collected": 1, "files": machine });
    if let Some(log) = log {
        document["log"] = json!(log);
    }
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

/// The exit code, after a check that neither output has what a terminal obeys.
fn code(args: &[&str], from: &Path) -> i32 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    let output = command.arg("explain").args(args).arg("--from").arg(from).output().unwrap();
    for bytes in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(bytes);
        let obeyed = text.contains(|one: char| one.is_control() && one != '\n');
        assert!(!obeyed, "{args:?} {}: {text:?}", from.display());
    }
    output.status.code().unwrap()
}

const QUESTIONS: [&[&str]; 6] =
    [&[], &["0000:00:00.0"], &["0000:01:00.0"], &["--between"], &["--faults"], &["0000:09:00.0"]];

#[test]
fn each_question_ends_with_the_code_of_its_answer() {
    let quiet = "[    0.0] Linux version 6.12.1\n";
    let cut = FAULT.split(" fault addr").next();
    let russian = format!("19 июля 23:11:56 машина kernel: {FAULT}");
    let coloured = FAULT.replace("01:00.0", "\u{1b}[1m01:00.0\u{1b}[0m");
    let nothing = Machine::new();
    // The machine; a host bridge; a device; pairs; faults; a device that is not there.
    for (name, machine, log, codes) in [
        ("nothing", &nothing, None, [2, 2, 2, 2, 2, 2]),
        ("nothing-quiet", &nothing, Some(quiet), [0, 2, 2, 2, 0, 2]),
        ("nothing-fault", &nothing, Some(FAULT), [0, 2, 2, 2, 1, 2]),
        ("nothing-empty", &nothing, Some(""), [2, 2, 2, 2, 2, 2]),
        ("well", &well(), Some(quiet), [0, 0, 0, 0, 0, 2]),
        ("well-fault", &well(), Some(FAULT), [0, 0, 0, 0, 1, 2]),
        ("well-cut", &well(), cut, [0, 0, 0, 0, 1, 2]),
        ("well-russian", &well(), Some(&russian), [0, 0, 0, 0, 1, 2]),
        ("well-coloured", &well(), Some(&coloured), [0, 0, 0, 0, 1, 2]),
        ("container", &container(), None, [0, 2, 2, 2, 2, 2]),
        ("half", &half(), None, [0, 0, 0, 0, 2, 2]),
        ("hostile", &hostile(), Some("\u{1b}]0;x\u{7}\u{0}\n"), [0, 0, 0, 0, 0, 2]),
    ] {
        let from = written(name, machine, log);
        let found = QUESTIONS.map(|args| code(args, &from));
        assert_eq!(found, codes, "{name}: {QUESTIONS:?}");
    }
}

#[test]
fn folders_and_files_of_nothing_are_nothing_to_read() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exit-empty");
    std::fs::create_dir_all(&folder).unwrap();
    let odd = folder.join("odd.json");
    for bytes in [&b"{"[..], b"", b"\xff\x00", b"\x1f\x8b\x08", b"{\"portolan-collected\": 9}"] {
        std::fs::write(&odd, bytes).unwrap();
        assert_eq!(code(&[], &odd), 2, "{bytes:?}");
        assert_eq!(code(&["--faults"], &odd), 2, "{bytes:?}");
    }
    std::fs::remove_file(&odd).unwrap();
    for args in QUESTIONS {
        assert_eq!(code(args, &folder), 2, "{args:?}");
        assert_eq!(code(args, &folder.join("missing")), 2, "{args:?}");
    }
}

#[test]
fn a_fault_behind_many_lines_of_other_things_is_found() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(["explain", "--faults", "-", "--json"]);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines =
        "[    1.0] usb 1-1: new high-speed USB device number 2 using xhci_hcd\n".repeat(1000);
    let feed = std::thread::spawn(move || {
        for _ in 0..100 {
            input.write_all(lines.as_bytes()).unwrap();
        }
        input.write_all(FAULT.as_bytes()).unwrap();
    });
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["lines"], 100_001);
    assert_eq!(answer["faults"][0]["line"], 100_001);
}
