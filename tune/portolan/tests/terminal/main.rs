//! Output of every command on terminals of 40 to 200 columns: no line is wider, nothing is cut or left out silently,
//! and the figures are those of `--wide`. Texts are rendered here; `pty.rs` runs the built command on terminals.

mod fits;
mod pty;
mod screen;

use std::path::Path;

use portolan::dma::PolicyPreference;
use portolan_sim::profile::Profile;
use portolan_tune::linux::LinuxArgs;
use portolan_tune::replay::{Policy, Replay, TraceInput};
use portolan_tune::{explain, firmware, machines, replay};

use fits::{everywhere, has_words};

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan");

fn profile(name: &str) -> Profile {
    Profile::by_name(name).unwrap()
}

#[test]
fn replays_fit() {
    let xeon = profile("xeon-vtd");
    let bounce: Policy = "bounce".parse().unwrap();
    let asked = LinuxArgs { as_linux: Some(PolicyPreference::Lazy), ..LinuxArgs::default() };
    let policies = [&Policy::ALL[..], &[bounce]].concat();
    let rules = asked.rules(&xeon).unwrap();
    let replay = Replay { linux: rules, ..Replay::new(&xeon, &policies) };
    let report = replay.run(&mut TraceInput::Bundled.open().unwrap()).unwrap();
    everywhere("replay", |columns| replay::text(&report, columns));
    has_words("replay", &replay::text(&report, usize::MAX), replay::COLUMNS_IN_WORDS);
}

#[test]
fn machines_and_their_policies_fit() {
    let profiles = Profile::builtin().unwrap();
    everywhere("machines", |columns| machines::list(&profiles, columns));
    everywhere("machines NAME", |columns| machines::text(&profiles, columns));
    for wide in [machines::list(&profiles, usize::MAX), machines::text(&profiles, usize::MAX)] {
        has_words("machines", &wide, machines::COLUMNS_IN_WORDS);
    }
    let mut explanation = explain::explain(&profiles);
    everywhere("explain", |columns| explain::text(&explanation, columns));
    explanation.table = explain::everything();
    everywhere("explain --all", |columns| explain::text(&explanation, columns));
    has_words("explain", &explain::text(&explanation, usize::MAX), explain::COLUMNS_IN_WORDS);
}

#[test]
fn firmware_s_tables_fit() {
    let report = firmware_report("0000:00:1e.0");
    everywhere("firmware", |columns| firmware::text(&report, columns));
    has_words("firmware", &firmware::text(&report, usize::MAX), explain::COLUMNS_IN_WORDS);
}

/// A machine whose maker and functions have odd names.
pub fn firmware_report(name: &str) -> firmware::Report {
    let unit = firmware::UnitReport {
        unit: 0,
        kind: "VT-d",
        place: "registers at 0xfed90000..=0xfed90fff".to_owned(),
        serves: vec![name.to_owned()],
        refused: Some(format!("its registers are those of {name}")),
        limits: vec![format!("{name}: addresses up to 0xfffffffff")],
        reserved: vec![firmware::ReservedReport {
            first_stream: 0x128,
            last_stream: 0x12f,
            start: 0x7000_0000,
            last: 0x7fff_ffff,
            kind: "firmware's memory: mapped one to one until a driver takes over".to_owned(),
        }],
    };
    let function = |unit, group: &str| firmware::PciFunctionReport {
        function: name.to_owned(),
        id: "8086:1236".to_owned(),
        class: "0200".to_owned(),
        kind: "conventional PCI device".to_owned(),
        unit,
        streams: vec![0x128, 0xf0],
        group: group.to_owned(),
        below: unit.map(|_| name.to_owned()),
        refused: unit.is_none().then(|| format!("no unit serves {name}")),
        last_address: unit.map(|_| 0x7f_ffff_ffff),
    };
    firmware::Report {
        table: firmware::TableReport {
            signature: "DMAR".to_owned(),
            bytes: 112,
            maker: name.to_owned(),
            source: Path::new("/sys/firmware/acpi/tables/DMAR").display().to_string(),
        },
        units: vec![unit],
        functions: vec![function(Some(0), "0000:00:1e.0"), function(None, name)],
        wants_dma_protection: true,
        external_ports: vec![name.to_owned()],
        groups: vec![firmware::GroupReport {
            functions: vec![name.to_owned(), "0000:01:04.0".to_owned()],
            reasons: vec![format!("{name} is behind 0000:00:1e.0: conventional PCI has no ACS")],
        }],
        remarks: vec![firmware::RemarkReport {
            wrong: true,
            text: format!("two units claim {name}"),
        }],
    }
}
