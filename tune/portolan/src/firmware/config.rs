//! PCI functions from a file: output of `lspci -xxx` and `lspci -xxxx` (with any other options), or a folder like
//! `/sys/bus/pci/devices`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use portolan::addr::{PciFunction, PciSegment, RequesterId};

use super::files;

/// Bytes of configuration space without its extension.
const SHORT: usize = 256;

/// Configuration spaces that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config(BTreeMap<PciFunction, Vec<u8>>);

impl Config {
    /// Reads a file, or a folder with a folder for each function.
    ///
    /// # Errors
    /// If it cannot be read, or has no configuration space.
    pub fn read(path: &Path) -> Result<Self> {
        let found = if path.is_dir() {
            Self::folder(path)?
        } else {
            Self::of_text(&String::from_utf8_lossy(&files::bytes(path)?))
        };
        if found.0.is_empty() {
            bail!(
                "{}: no configuration space is in it; `lspci -xxxx`, as root, prints all",
                path.display()
            );
        }
        Ok(found)
    }

    fn folder(path: &Path) -> Result<Self> {
        let mut all = Self::default();
        for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
            let entry = entry?;
            let at = entry.file_name().to_str().and_then(function);
            if let Some(at) = at {
                all.0.insert(at, files::bytes(&entry.path().join("config"))?);
            }
        }
        Ok(all)
    }

    /// Makes the spaces in what `lspci` prints.
    pub fn of_text(text: &str) -> Self {
        let mut all = Self::default();
        let mut of: Option<PciFunction> = None;
        for line in text.lines() {
            let begins = line.split_whitespace().next().and_then(function);
            if begins.is_some() && !line.starts_with(char::is_whitespace) {
                of = begins;
            } else if let (Some(of), Some((offset, row))) = (of, files::row(line)) {
                let space = all.0.entry(of).or_default();
                if space.len() == offset {
                    space.extend(row);
                }
            }
        }
        all
    }

    /// The spaces, by their functions.
    pub fn into_spaces(self) -> BTreeMap<PciFunction, Vec<u8>> {
        self.0
    }

    /// Number of functions.
    pub fn functions(&self) -> usize {
        self.0.len()
    }

    /// Number of functions of which at most 256 bytes are known, so that their ACS capability is unknown.
    pub fn short(&self) -> usize {
        self.0.values().filter(|space| space.len() <= SHORT).count()
    }

    /// 32 bits of a function's space.
    pub fn word(&self, of: PciFunction, offset: u16) -> Option<u32> {
        let offset = usize::from(offset);
        let bytes = self.0.get(&of)?.get(offset..offset + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// The function of an argument.
///
/// # Errors
/// If it names none.
pub fn port(text: &str) -> Result<PciFunction> {
    function(text).with_context(|| format!("{text} names no PCI function such as 0000:00:1d.0"))
}

/// `0000:00:1c.0`, or without the segment.
fn function(text: &str) -> Option<PciFunction> {
    let (bus_device, function) = text.split_once('.')?;
    let mut parts = bus_device.rsplit(':');
    let number = |text: &str, most: u16| {
        let number = u16::from_str_radix(text, 16).ok()?;
        (number <= most).then_some(number)
    };
    let device = number(parts.next()?, 31)?;
    let bus = number(parts.next()?, 255)?;
    let segment = parts.next().map_or(Some(0), |text| number(text, u16::MAX))?;
    let function = number(function, 7)?;
    let requester = RequesterId::of(bus as u8, device as u8, function as u8);
    let segment = PciSegment::new(segment);
    parts.next().is_none().then_some(PciFunction { segment, requester })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_words_of_a_dump() {
        let text = "00:02.0 VGA compatible controller: Intel\n\
                    00: 86 80 49 9a 07 04 10 00 01 00 00 03 00 00 00 00\n\
                    10: 04 00 00 00\n\
                    \n\
                    0001:ff:1f.7 0604: 8086:1234\n\tCapabilities: [40] Express\n\
                    00: 86 80 34 12\n20: ff\n";
        let config = Config::of_text(text);
        let display = PciFunction::of(0, 2, 0);
        assert_eq!(config.word(display, 0), Some(0x9a49_8086));
        assert_eq!(config.word(display, 0x10), Some(4));
        assert_eq!(config.word(display, 0x14), None);
        let far =
            PciFunction { segment: PciSegment::new(1), requester: RequesterId::of(0xff, 0x1f, 7) };
        assert_eq!(config.word(far, 0), Some(0x1234_8086));
        assert_eq!((config.word(far, 0x20), config.word(far, 2)), (None, None));
        assert_eq!((config.functions(), config.short()), (2, 2));
    }

    #[test]
    fn names_that_are_no_functions() {
        for name in ["0:20.0", "00:02", "00:02.8", "100:00.0", "g:0.0", "1:0:0:0.0", "."] {
            assert_eq!(function(name), None, "{name}");
        }
        assert_eq!(function("0:2.0"), Some(PciFunction::of(0, 2, 0)));
    }
}
