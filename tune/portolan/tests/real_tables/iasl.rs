//! `iasl`, the disassembler of Debian's package `acpica-tools`, as a referee.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Table;

/// An installed iasl.
pub struct Iasl;

/// Output for one table: fields in order, and the whole text.
pub struct Said {
    fields: Vec<(String, u64)>,
    text: String,
}

/// The program, if it is installed.
pub fn find() -> Option<Iasl> {
    let found = Command::new("iasl").arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        println!("SKIP: iasl (Debian's acpica-tools) is not installed");
    }
    found.ok().map(|_| Iasl)
}

impl Iasl {
    pub fn disassembled(&self, signature: &str, table: &Table) -> Said {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("iasl").join(signature);
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(&table.name);
        fs::write(&file, &table.bytes).expect("a file");
        let output = folder.join(format!("{}.said", table.name));
        let ran = Command::new("iasl")
            .arg("-p")
            .arg(&output)
            .arg("-d")
            .arg(&file)
            .output()
            .expect("iasl runs");
        let text = fs::read(output.with_extension("dsl")).unwrap_or_else(|error| {
            let said = String::from_utf8_lossy(&ran.stderr);
            panic!("{}: {error}: {said}", table.name);
        });
        let text = String::from_utf8_lossy(&text).into_owned();
        let fields = text.lines().filter_map(field).collect();
        Said { fields, text }
    }
}

/// A line such as `[038h 0056   8]  Register Base Address : 00000000FED90000`.
fn field(line: &str) -> Option<(String, u64)> {
    let (_, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (name, value) = rest.split_once(" : ")?;
    let value = value.split_whitespace().next()?;
    Some((name.trim().to_owned(), u64::from_str_radix(value, 16).ok()?))
}

impl Said {
    /// The values of all fields of a name, in order.
    pub fn values(&self, name: &str) -> Vec<u64> {
        let fields = self.fields.iter().filter(|(field, _)| field == name);
        fields.map(|(_, value)| *value).collect()
    }

    pub fn has(&self, words: &str) -> bool {
        self.text.contains(words)
    }
}
