//! Evidence of advice in the bundled traces is there, by a count that shares no code with the program.

use std::collections::HashSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use portolan_cli::display::grouped;
use portolan_tune::replay::{KnownBy, Rule, Setting};
use portolan_tune::trace::open_bytes;

use super::{check_sense, machine, replayed};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The value of `name=` in an event.
fn field<'l>(line: &'l str, name: &str) -> &'l str {
    let found = line.split_once(&format!(" {name}="));
    found.map_or("", |(_, rest)| rest.split(' ').next().unwrap())
}

fn list(value: &str) -> Vec<u64> {
    let inside = value.trim_matches(['{', '}']);
    let numbers = inside.split(',').map(|n| n.trim_start_matches("0x"));
    numbers.map(|n| u64::from_str_radix(n, 16).unwrap()).collect()
}

/// A list of single pages of which no two are adjacent.
fn is_scattered(line: &str) -> bool {
    if !line.contains(" dma_map_sg: ") {
        return false;
    }
    let (pas, sizes) = (list(field(line, "phys_addrs")), list(field(line, "sizes")));
    pas.len() > 1
        && sizes.iter().sum::<u64>() == 4096 * pas.len() as u64
        && pas.windows(2).all(|two| two[0] + 4096 != two[1])
}

/// Numbers of the lines that show why `setting` is advised.
fn lines_that_show(setting: &Setting, known_by: &KnownBy, lines: &[&str]) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut shows = |line: &str| match setting.rule {
        // Page-selective ones end in f2, or are of a PASID and end in 36.
        Rule::LazyGroup if matches!(known_by, KnownBy::Line(_)) => {
            line.contains("iotlb_inv dmar0: ") && (line.contains("f2 0x") || line.contains("36 0x"))
        }
        Rule::LazyGroup => line.contains(" dma_unmap_page: "),
        Rule::FirstStage => line.contains(" cache_tag_flush_range_np: "),
        Rule::NoForcedBounce => line.contains(" swiotlb_bounced: ") && line.ends_with(" FORCE"),
        Rule::HugePages => is_scattered(line),
        Rule::KeepMapped => {
            let packet = line.contains(" dma_map_page: ") && line.contains("dir=FROM_DEVICE");
            let bytes: u64 = field(line, "size").parse().unwrap_or(u64::MAX);
            let at = field(line, "phys_addr");
            packet && !seen.insert(at.to_owned()) && bytes < 4096
        }
        rule => panic!("{rule:?} is not expected of a bundled trace"),
    };
    let numbered = lines.iter().zip(1u64..);
    numbered.filter(|(line, _)| shows(line)).map(|(_, number)| number).collect()
}

/// Rows of the table in `docs/advice.md` about `trace`.
fn documented(docs: &str, trace: &str) -> Vec<String> {
    let start = format!("| `{trace}` | ");
    let rows = docs.lines().filter_map(|line| line.strip_prefix(&start));
    rows.map(str::to_owned).collect()
}

fn row(setting: &Setting) -> String {
    let saving = setting.effect.saving.unwrap();
    let rule = serde_json::to_value(setting.rule).unwrap();
    format!(
        "{} | {} | {} | {} | {} |",
        rule.as_str().unwrap(),
        grouped(setting.evidence.line),
        grouped(setting.evidence.count),
        grouped(saving.before_us.round() as u64),
        grouped(saving.after_us.round() as u64),
    )
}

#[test]
fn what_advice_points_at_in_the_bundled_traces_is_there() {
    let xeon = machine("xeon-vtd");
    let docs = std::fs::read_to_string(file("docs/advice.md")).unwrap();
    let mut traces = 0;
    let folder = std::fs::read_dir(file("data/traces")).unwrap();
    for path in folder.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(name) = name.strip_suffix(".trace.xz") else {
            continue;
        };
        traces += 1;
        let mut text = String::new();
        let packed = Box::new(std::fs::File::open(&path).unwrap());
        open_bytes(packed).unwrap().read_to_string(&mut text).unwrap();
        let report = replayed(&text, &xeon);
        let lines: Vec<&str> = text.lines().collect();
        for setting in &report.advice {
            check_sense(setting);
            let evidence = &setting.evidence;
            let there = lines[evidence.line as usize - 1].trim();
            let whole = evidence.text.strip_suffix("...");
            let same = whole.map_or(there == evidence.text, |start| there.starts_with(start));
            assert!(same, "{name}: {evidence:?}, {there}");
            let found = lines_that_show(setting, &report.situation.known_by, &lines);
            assert_eq!(found.first(), Some(&evidence.line), "{name}: {evidence:?}");
            assert_eq!(found.len() as u64, evidence.count, "{name}: {evidence:?}");
        }
        let mut rows: Vec<_> = report.advice.iter().map(row).collect();
        if rows.is_empty() {
            let now = serde_json::to_value(report.situation.now).unwrap();
            rows.push(format!("none: {} |  |  |  |  |", now.as_str().unwrap()));
        }
        assert_eq!(rows, documented(&docs, name), "{name}");
    }
    assert_eq!(traces, 28);
}
