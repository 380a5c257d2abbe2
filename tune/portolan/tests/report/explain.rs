//! Pages of answers about a machine: the verdict, each finding, pairs and faults; hostile words stay words.

#[path = "../threads/functions.rs"]
mod functions;

use serde_json::{Value, json};

use super::browser::Browser;
use super::*;

/// Two graphics cards, each behind a root port that redirects.
const FUNCTIONS: &str = "
00:01.0 8086:0c01 060400 root-port buses=01-01 acs=5f/1d group=1 driver=pcieport
00:02.0 8086:0c05 060400 root-port buses=02-02 acs=5f/1d group=2 driver=pcieport
01:00.0 10de:1187 030000 endpoint several group=1 driver=vfio-pci bars=16M,128M
01:00.1 10de:0e0a 040300 endpoint several group=1 driver=snd_hda_intel bars=16K
02:00.0 10de:1187 030000 endpoint group=2 driver=nouveau bars=16M,128M
";
/// Faults of a unit and of a device with hostile names.
const LOG: &str = "\
[    1.000000] arm-smmu <script>alert(1)</script>: Unhandled context fault: fsr=0x402, \
     iova=0xfd7ff000, fsynr=0x540013, cbfrsynra=0x19c3, cb=10
[    2.000000] <script>alert(2)</script> 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT \
     domain=0x000d address=0xcfd51ad0 flags=0x0020]
";

/// A collected machine of the test `name`, whose command line and log are hostile.
fn machine(name: &str) -> PathBuf {
    let mut files = functions::files(FUNCTIONS, true);
    for (path, text) in [
        ("proc/cpuinfo", "vendor_id\t: GenuineIntel\n"),
        ("proc/cmdline", "amd_iommu=<script>alert(3)</script> iommu.<b>odd=1\n"),
        ("sys/class/iommu/dmar0/intel-iommu/cap", "c0000020660462\n"),
        ("sys/kernel/iommu_groups/1/type", "DMA-FQ\n"),
        ("sys/kernel/iommu_groups/2/type", "DMA-FQ\n"),
    ] {
        files.insert(path.to_owned(), json!({ "text": text }));
    }
    let path = scratch(&format!("explained-{name}.json"));
    let document = json!({ "portolan-collected": 1, "files": files, "log": LOG });
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

/// `text` as a page has it.
fn escaped(text: &str) -> String {
    let mut text = text.replace('&', "&amp;");
    for (sign, name) in [('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")] {
        text = text.replace(sign, name);
    }
    for mark in ["<code>", "</code>"].into_iter().cycle() {
        if !text.contains('`') {
            break;
        }
        text = text.replacen('`', mark, 1);
    }
    text
}

/// All text of `fields` in the entries of `list`.
fn said<'v>(answer: &'v Value, list: &str, fields: &[&str]) -> Vec<&'v str> {
    let entries = answer[list].as_array().map_or(&[][..], Vec::as_slice);
    let of = |entry: &'v Value| fields.iter().filter_map(|field| entry[*field].as_str());
    entries.iter().flat_map(|entry| of(entry).collect::<Vec<_>>()).collect()
}

#[test]
fn each_question_has_a_page_with_all_answers() {
    let mut browser = Browser::start();
    let from = machine("pages");
    let from = from.to_str().unwrap();
    let finding = ["what", "verdict", "why", "do", "gives_up"];
    let pair = ["a", "b", "verdict", "why", "do", "gives_up"];
    let fault = ["unit", "device", "driver", "tried", "address", "belongs_to", "times", "verdict"];
    for (name, question, list, fields, words) in [
        ("machine", &[][..], "findings", &finding[..], "Look at: "),
        ("device", &["01:00.0"], "findings", &finding, "Look at: drivers"),
        ("between", &["--between"], "pairs", &pair, ", 1 pair."),
        ("faults", &["--faults"], "faults", &fault, "2 faults of 2 kinds in 2 lines."),
    ] {
        let args = [&["explain", "--from", from], question].concat();
        let (file, html) = report(&format!("explain-{name}.html"), &args);
        let output = portolan(&[&args[..], &["--json"]].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let first = html.split("class=\"answer\"").nth(1).unwrap();
        let first = first.split("</section>").next().unwrap();
        assert!(first.contains(words), "{name}: no `{words}` in {first}");
        for line in answer["verdict"].as_array().into_iter().flatten() {
            let line = line.as_str().unwrap();
            assert!(first.contains(&escaped(line)), "{name}: no `{line}` in {first}");
        }
        let cells = said(&answer, list, fields);
        assert!(!cells.is_empty(), "{name}: no {list}");
        for text in cells.into_iter().chain(said(&answer, "findings", &finding)) {
            assert!(html.contains(&escaped(text)), "{name}: no `{text}`");
        }
        for cause in answer["faults"].as_array().into_iter().flatten() {
            for text in said(cause, "causes", &["why", "do", "gives_up"]) {
                assert!(html.contains(&escaped(text)), "{name}: no `{text}`");
            }
        }
        assert_eq!(html.matches("<script").count(), 1, "{name}: a script beside its own");
        assert!(!html.contains("<b>"), "{name}");
        is_fine(browser.as_mut(), &file);
    }
}

#[test]
fn words_of_a_log_and_of_a_command_line_stay_words() {
    let from = machine("hostile");
    let from = from.to_str().unwrap();
    for (name, more, number) in [("log", &["--faults"][..], 1), ("line", &[], 3)] {
        let args = [&["explain", "--from", from], more].concat();
        let (_, html) = report(&format!("hostile-{name}.html"), &args);
        let wanted = format!("&lt;script&gt;alert({number})&lt;/script&gt;");
        assert!(html.contains(&wanted), "{name}: no {wanted}");
        assert!(!html.contains("<script>alert"), "{name}");
    }
}

#[test]
fn answers_without_a_page_refuse_one() {
    let page = scratch("no-page.html");
    let to = page.to_str().unwrap();
    for args in [&["--machine", "xeon-vtd"][..], &["--all"], &["--firmware", "never-read"]] {
        let output = portolan(&[&["explain", "--report", to], args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("--report") && !page.exists(), "{args:?}: {said}");
    }
}
