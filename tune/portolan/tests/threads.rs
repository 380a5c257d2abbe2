//! Public threads about IOMMUs: `portolan explain` answers each as its people did.
//!
//! A file of `tests/threads/` has the facts of a thread's machine, the answer that its people accepted (`people_did`,
//! written before the rules were), and what `--json` has to say. `pending` marks a thread that no rule answers yet.

#[path = "threads/functions.rs"]
mod functions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::{Value, json};

/// A thread.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Thread {
    /// The thread's title.
    title: String,
    /// Repository and number, or an address.
    source: String,
    /// The accepted answer in words.
    people_did: String,
    /// Reason why no rule answers it yet.
    pending: Option<String>,
    /// Arguments, without the machine's files and `--json`.
    command: Vec<String>,
    /// Exit code.
    exit: i32,
    /// The machine's files.
    #[serde(default)]
    files: BTreeMap<String, Entry>,
    /// The machine's PCI functions ([`functions`]).
    #[serde(default)]
    functions: String,
    /// Set for a user who is not root.
    #[serde(default)]
    no_root: bool,
    /// Output of `lspci -xxxx`, or the name of a file beside this one.
    lspci: Option<String>,
    /// The kernel's log, or the name of a file beside this one.
    log: Option<String>,
    /// Expected answers.
    expect: Vec<Expect>,
}

/// A file of the machine.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Entry {
    Text(String),
    Other(BTreeMap<String, toml::Value>),
}

/// An entry of a list in `--json`.
#[derive(Debug, Deserialize)]
struct Expect {
    /// The list; `findings` if absent.
    list: Option<String>,
    /// Words that the entry has.
    #[serde(default)]
    says: Vec<String>,
    /// Words that no entry with these fields has.
    #[serde(default)]
    says_not: Vec<String>,
    /// Fields of the entry: `what`, `verdict`, `path`.
    #[serde(flatten)]
    fields: BTreeMap<String, Value>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/threads")
}

fn threads() -> Vec<(String, Thread)> {
    let paths = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).unwrap();
        let thread = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, thread)
    };
    paths.iter().map(read).collect()
}

/// Text that a thread has, or that a file beside it has.
fn text(said: &str) -> String {
    if said.contains('\n') {
        return said.to_owned();
    }
    std::fs::read_to_string(folder().join(said)).unwrap_or_else(|error| panic!("{said}: {error}"))
}

/// Writes the thread's machine as a collected one.
fn machine(name: &str, thread: &Thread) -> PathBuf {
    let file = |entry: &Entry| match entry {
        Entry::Text(text) => json!({ "text": text }),
        Entry::Other(fields) => json!(fields),
    };
    let files = thread.files.iter().map(|(path, entry)| (path.clone(), file(entry)));
    let mut all = functions::files(&thread.functions, !thread.no_root);
    all.extend(files);
    let mut document = json!({ "portolan-collected": 1, "files": all });
    for (key, said) in [("lspci", &thread.lspci), ("log", &thread.log)] {
        if let Some(said) = said {
            document[key] = json!(text(said));
        }
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("thread-{name}.json"));
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

fn portolan(thread: &Thread, from: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(&thread.command).arg("--from").arg(from).args(more);
    command.output().unwrap()
}

/// All that an entry says, in one line.
fn words(entry: &Value) -> String {
    match entry {
        Value::Object(fields) => fields.values().map(words).collect::<Vec<_>>().join(" "),
        Value::Array(entries) => entries.iter().map(words).collect::<Vec<_>>().join(" "),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The reason why `answer` is not what `expected` says.
fn differs(answer: &Value, expected: &Expect) -> Option<String> {
    let list = expected.list.as_deref().unwrap_or("findings");
    let entries = answer[list].as_array().map_or(&[][..], Vec::as_slice);
    let alike = |entry: &&Value| expected.fields.iter().all(|(key, value)| &entry[key] == value);
    let alike: Vec<String> = entries.iter().filter(alike).map(words).collect();
    let says = |entry: &String| expected.says.iter().all(|word| entry.contains(word.as_str()));
    if !alike.iter().any(says) {
        return Some(format!("none of {alike:#?} is {expected:#?}"));
    }
    let unwanted = |word: &&String| alike.iter().any(|entry| entry.contains(word.as_str()));
    let found = expected.says_not.iter().find(unwanted)?;
    Some(format!("{found} is in {alike:#?}"))
}

/// The reason why the command does not answer as the thread's people did.
fn fails(name: &str, thread: &Thread) -> Option<String> {
    let output = portolan(thread, &machine(name, thread), &["--json"]);
    if output.status.code() != Some(thread.exit) {
        return Some(format!("{output:?}"));
    }
    let answer: Value = match serde_json::from_slice(&output.stdout) {
        Ok(answer) => answer,
        Err(_) => return Some(format!("{output:?}")),
    };
    thread.expect.iter().find_map(|expected| differs(&answer, expected))
}

#[test]
fn each_thread_is_answered_as_its_people_did() {
    let mut wrong = Vec::new();
    for (name, thread) in threads() {
        match (fails(&name, &thread), &thread.pending) {
            (Some(reason), None) => {
                let (title, did) = (&thread.title, &thread.people_did);
                wrong.push(format!("{name} ({}, {title}; {did}):\n{reason}", thread.source));
            }
            (None, Some(_)) => wrong.push(format!("{name} is answered and still `pending`")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_answers_fit_80_columns_and_are_harmless() {
    for (name, thread) in threads().iter().filter(|(_, thread)| thread.pending.is_none()) {
        let output = portolan(thread, &machine(&format!("{name}-text"), thread), &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in text.lines() {
            // A word stays whole, to be copied.
            let word = !line.trim().contains(' ');
            assert!(portolan_cli::display::width(line) <= 80 || word, "{name}: `{line}`");
            assert!(!line.contains(|one: char| one.is_control()), "{name}: {line:?}");
        }
    }
}

/// Lines of a terminal, as old as 80 columns.
const SCREEN: usize = 24;
/// Terms that everybody knows in another sense, in which the answers have them: Linux runs, interrupts of devices, a
/// unit of systemd's, memory that a slot shares.
const EVERYDAY: [&str; 5] = ["run", "interrupt", "unit", "shared", "slot"];
/// Terms that belong to a question: a group is what the answer about a device explains, and a fault's line has the
/// number of a stream, an endpoint or a requester, and regions of memory.
const OF_QUESTIONS: [(&str, &[&str]); 2] =
    [("device", &["group"]), ("faults", &["stream", "endpoint", "requester", "region"])];

/// The terms of `docs/glossary.md`.
fn glossary() -> Vec<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/glossary.md");
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split('|').next());
    let terms = cells.flat_map(|cell| cell.split(','));
    let terms = terms.map(|term| term.trim().trim_matches(['`', '*']).to_owned());
    terms.filter(|term| !term.is_empty() && term != "term").collect()
}

/// Terms of `glossary` in `text`, one or several of each thing; an abbreviation in its own letters. Options and names,
/// in which a word stands behind a dot or before an equals sign, are none.
fn terms_in<'g>(text: &str, glossary: &'g [String]) -> Vec<&'g str> {
    let words =
        text.split_whitespace().map(|word| word.trim_matches(['.', ',', ':', ';', '(', ')', '"']));
    let text = format!(" {} ", words.collect::<Vec<_>>().join(" "));
    let lower = text.to_lowercase();
    let is_there = |term: &&String| {
        let is_short = !term.contains(|one: char| one.is_lowercase());
        let there = |word: String| match is_short {
            true => text.contains(&word),
            false => lower.contains(&word.to_lowercase()),
        };
        there(format!(" {term} ")) || there(format!(" {term}s "))
    };
    glossary.iter().filter(is_there).map(String::as_str).collect()
}

#[test]
fn the_first_screen_needs_no_word_of_the_glossary() {
    let glossary = glossary();
    assert!(glossary.len() > 100, "{glossary:?}");
    let lazy = terms_in("the IOTLB, and flush queues; iommu.strict=0", &glossary);
    assert_eq!(lazy, ["flush queue", "IOTLB"], "terms are found");
    let mut screens = BTreeMap::new();
    let all = threads();
    for (name, thread) in &all {
        let output = portolan(thread, &machine(&format!("{name}-screen"), thread), &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        let screen: Vec<_> = text.lines().take(SCREEN).collect();
        let mut terms = terms_in(&screen.join("\n"), &glossary);
        let kind = name.split('-').next().unwrap();
        let of = OF_QUESTIONS.iter().find(|(question, _)| *question == kind);
        let of = of.map_or(&[][..], |(_, terms)| *terms);
        terms.retain(|term| !EVERYDAY.contains(term) && !of.contains(term));
        assert!(terms.is_empty(), "{name}: {terms:?} in\n{}", screen.join("\n"));
        *screens.entry(kind).or_default() += 1;
    }
    let of = |kind| screens.get(kind).copied().unwrap_or(0);
    let least: u32 = ["machine", "device", "between", "faults"].map(of).into_iter().min().unwrap();
    assert!(least >= 15, "{screens:?}");
}
