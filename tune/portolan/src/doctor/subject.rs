//! The machine that is asked about: this one, or one that others send files of.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::collect::Collected;
use super::{Files, Log};

/// Bytes of a file that are read at most.
const MOST_BYTES: u64 = 64 << 20;
/// Beginning of a file in gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A machine, by its files, its kernel's log and its PCI functions.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its files.
    pub files: Files,
    /// Its kernel's log.
    pub log: Log,
    /// The text that `lspci -xxxx` printed there, if it was given.
    pub lspci: Option<String>,
    /// It is the machine that this program runs on.
    pub is_this: bool,
}

impl Subject {
    /// Makes the machine that this program runs on.
    pub fn this() -> Self {
        Self {
            files: Files::Below(PathBuf::from("/")),
            log: Log::Ring(PathBuf::from("/dev/kmsg")),
            lspci: None,
            is_this: true,
        }
    }

    /// Reads the machine of the files `from`, or this one if there are none; `log` replaces the log that they have.
    ///
    /// # Errors
    /// If one cannot be read, or is of no known kind.
    pub fn new(from: &[PathBuf], log: Option<&Path>) -> Result<Self> {
        let mut subject = match (from, log) {
            ([], None) => Self::this(),
            _ => Self::empty(),
        };
        for path in from {
            subject.add(path).with_context(|| path.display().to_string())?;
        }
        if let Some(log) = log {
            subject.log = Log::File(log.to_owned());
        }
        Ok(subject)
    }

    fn empty() -> Self {
        let files = Files::Kept(BTreeMap::new());
        Self { files, log: Log::Unknown, lspci: None, is_this: false }
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        if path.is_dir() {
            if !["proc", "sys"].iter().any(|name| path.join(name).is_dir()) {
                bail!("neither `proc` nor `sys` is in this folder");
            }
            self.files = Files::Below(path.to_owned());
            return Ok(());
        }
        let bytes = contents(path)?;
        if bytes.trim_ascii_start().starts_with(b"{") {
            let collected = Collected::parse(&bytes)?;
            self.log = collected.log.map_or(Log::Unknown, Log::Kept);
            self.lspci = collected.lspci.or(self.lspci.take());
            self.files = Files::Kept(collected.files);
            return Ok(());
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if !is_lspci(&text) {
            bail!("this is neither a file of `portolan collect` nor what `lspci -xxxx` prints");
        }
        self.lspci = Some(text);
        Ok(())
    }
}

/// The bytes of a file, unpacked if they are in gzip.
fn contents(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.starts_with(&GZIP) {
        let packed = std::mem::take(&mut bytes);
        let unpacked = flate2::read::MultiGzDecoder::new(packed.as_slice());
        unpacked.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > MOST_BYTES {
        bail!("it is longer than 64 MiB");
    }
    Ok(bytes)
}

/// Tells if a line begins with the place of a PCI function.
fn is_lspci(text: &str) -> bool {
    let place = |line: &str| {
        let word = line.split(' ').next()?;
        let (before, function) = word.rsplit_once('.')?;
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Vec<&str> = before.split(':').collect();
        let known = (2..=3).contains(&parts.len()) && parts.iter().all(|part| digits(part));
        Some(known && function.len() == 1 && digits(function))
    };
    text.lines().any(|line| place(line) == Some(true))
}
