//! Firmware's tables from files: as they are in memory, one or several in a row (a file of
//! `/sys/firmware/acpi/tables`, `acpidump -b`), as `acpidump` prints them or `iasl -d` appends them, in
//! hexadecimal; all of a folder; or a flattened device tree.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use portolan_tables::fdt::{self, DeviceTree};
use portolan_tables::sdt::Tables;

/// The tables that describe IOMMUs.
const WANTED: [&str; 5] = ["DMAR", "IVRS", "IORT", "VIOT", "RIMT"];
/// Bytes of a file that are read at most.
const MOST_BYTES: u64 = 64 << 20;

/// A table, or a device tree, and the file that it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The file.
    pub source: PathBuf,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Table {
    /// Tells if the bytes are a flattened device tree.
    fn is_tree(bytes: &[u8]) -> bool {
        fdt::length(bytes).is_some()
    }

    /// The tree, if it is one.
    pub(super) fn tree(&self) -> Option<DeviceTree<'_>> {
        DeviceTree::parse(&self.bytes)
    }
}

/// The tables in `paths`.
///
/// # Errors
/// If one cannot be read, or has no table.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Table>> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            let files = WANTED.map(|name| path.join(name));
            let files: Vec<_> = files.into_iter().filter(|file| file.exists()).collect();
            if files.is_empty() {
                bail!("{}: none of {} is there", path.display(), WANTED.join(", "));
            }
            for file in files {
                add(&file, &mut found)?;
            }
        } else {
            add(path, &mut found)?;
        }
    }
    Ok(found)
}

/// The bytes of a file of reasonable length.
pub(super) fn bytes(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let length = fs::metadata(path).with_context(|| shown.clone())?.len();
    if length > MOST_BYTES {
        bail!("{shown}: {length} bytes are no firmware table");
    }
    fs::read(path).context(shown)
}

fn add(path: &Path, found: &mut Vec<Table>) -> Result<()> {
    let before = found.len();
    let bytes = bytes(path)?;
    for bytes in tables(&bytes) {
        let source = path.to_owned();
        found.push(Table { source, bytes });
    }
    if found.len() == before {
        bail!("{}: no ACPI table is in it, nor a device tree", path.display());
    }
    Ok(())
}

fn wanted(bytes: &[u8]) -> bool {
    WANTED.iter().any(|name| bytes.starts_with(name.as_bytes()))
}

/// The tables in `bytes`. One that describes IOMMUs is among them even if it is damaged, so that its fault is
/// reported.
fn tables(bytes: &[u8]) -> Vec<Vec<u8>> {
    if Table::is_tree(bytes) {
        return vec![bytes.to_vec()];
    }
    let whole = Tables::new(bytes).filter_map(|found| found.ok());
    let whole: Vec<Vec<u8>> = whole.map(|(_, table)| table.as_slice().to_vec()).collect();
    let dumped = || std::str::from_utf8(bytes).map(dumps).unwrap_or_default();
    let found = Some(whole).filter(|all| !all.is_empty());
    match found.unwrap_or_else(dumped) {
        none if none.is_empty() && wanted(bytes) => vec![bytes.to_vec()],
        all => all,
    }
}

/// The tables of a hexadecimal dump: rows of an offset, a colon and up to sixteen bytes. A row with
/// offset 0 begins a table.
fn dumps(text: &str) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for line in text.lines() {
        let Some((offset, row)) = row(line) else {
            continue;
        };
        if offset == 0 {
            all.push(Vec::new());
        }
        if let Some(table) = all.last_mut().filter(|table| table.len() == offset) {
            table.extend(row);
        }
    }
    all.retain(|table| table.len() >= 36);
    all
}

/// The offset and the bytes of a row.
pub(super) fn row(line: &str) -> Option<(usize, Vec<u8>)> {
    let (offset, rest) = line.trim_start().split_once(": ")?;
    let hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if offset.is_empty() || offset.len() > 8 || !hexadecimal(offset) {
        return None;
    }
    let offset = usize::from_str_radix(offset, 16).ok()?;
    // Behind two spaces are the same bytes as characters.
    let bytes = rest
        .trim_start()
        .split("  ")
        .next()?
        .split(' ')
        .take_while(|byte| byte.len() == 2 && hexadecimal(byte));
    let bytes: Vec<u8> =
        bytes.take(16).filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    (!bytes.is_empty()).then_some((offset, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_dumps_are_read_and_other_lines_are_not() {
        let row = |line| row(line);
        assert_eq!(row("    0010: 4d 53 46 20  // MSF "), Some((16, vec![0x4d, 0x53, 0x46, 0x20])));
        assert_eq!(row("0010: 41 42  41 42"), Some((16, vec![0x41, 0x42])));
        assert_eq!(row("ff0: 00"), Some((0xff0, vec![0])));
        for line in
            ["DMAR @ 0x0000000000000000", "[024h 0036   1] Flags : 05", "00: zz", ": 00", ""]
        {
            assert_eq!(row(line), None, "{line}");
        }
    }

    #[test]
    fn a_table_in_hexadecimal_is_the_table() {
        let table: Vec<u8> = (0..=99).collect();
        let mut text = String::from("TEST @ 0x0\n");
        for (number, row) in table.chunks(16).enumerate() {
            let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02X}")).collect();
            text += &format!("  {:04X}: {}  {}\n", number * 16, hex.join(" "), "41 42 .....");
        }
        assert_eq!(dumps(&text), std::slice::from_ref(&table));
        assert_eq!(dumps(&text.repeat(2)), [table.clone(), table]);
        assert_eq!(dumps("0000: 00 01\n"), Vec::<Vec<u8>>::new());
    }
}
