//! A machine's files in one file, for another person to look at.
//!
//! The file is JSON, usually in gzip: `{ "portolan-collected": 1, "files": { "proc/cmdline": { "text": "…" } },
//! "log": "…", "lspci": "…", "left_out": ["…"] }`. A file is `text`, `hex`, `link` (a symbolic link's target) or
//! `denied`.

mod gather;
mod redact;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::KeptFile;

/// Version of the format.
const VERSION: u32 = 1;

/// A collected machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Its files, by path without a leading slash.
    pub files: BTreeMap<String, KeptFile>,
    /// Its kernel's log.
    pub log: Option<String>,
    /// The text of `lspci -xxxx`.
    pub lspci: Option<String>,
    /// Remarks on what was left out or replaced.
    pub left_out: Vec<String>,
}

/// The file's form.
#[derive(Debug, Deserialize, Serialize)]
struct Document {
    #[serde(rename = "portolan-collected")]
    version: u32,
    files: BTreeMap<String, KeptForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lspci: Option<String>,
    #[serde(default)]
    left_out: Vec<String>,
}

/// A file's form.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum KeptForm {
    Text(String),
    Hex(String),
    Link(String),
    Denied(bool),
}

impl Collected {
    /// Reads the JSON of a collected machine.
    ///
    /// # Errors
    /// If it is damaged, or of a later version.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let document: Document =
            serde_json::from_slice(json).context("this is no file of `portolan collect`")?;
        if document.version > VERSION {
            bail!("a later `portolan collect` wrote this file (version {})", document.version);
        }
        let mut files = BTreeMap::new();
        for (path, entry) in document.files {
            let file = match entry {
                KeptForm::Text(text) => KeptFile::Bytes(text.into_bytes()),
                KeptForm::Hex(digits) => match bytes(&digits) {
                    Some(bytes) => KeptFile::Bytes(bytes),
                    None => bail!("{path} has digits that are no hexadecimal ones"),
                },
                KeptForm::Link(target) => KeptFile::Link(target),
                KeptForm::Denied(_) => KeptFile::Denied,
            };
            files.insert(path, file);
        }
        let Document { log, lspci, left_out, .. } = document;
        Ok(Self { files, log, lspci, left_out })
    }

    /// The JSON of this machine.
    ///
    /// # Errors
    /// None that a machine's files bring about.
    pub fn json(&self) -> Result<String> {
        let files = self.files.iter().map(|(path, file)| (path.clone(), entry(file)));
        let document = Document {
            version: VERSION,
            files: files.collect(),
            log: self.log.clone(),
            lspci: self.lspci.clone(),
            left_out: self.left_out.clone(),
        };
        Ok(serde_json::to_string(&document)?)
    }
}

fn entry(file: &KeptFile) -> KeptForm {
    match file {
        KeptFile::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => KeptForm::Text(text.to_owned()),
            Err(_) => KeptForm::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        },
        KeptFile::Link(target) => KeptForm::Link(target.clone()),
        KeptFile::Denied => KeptForm::Denied(true),
    }
}

/// The bytes of hexadecimal digits, in which spaces and line ends may stand.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<char> = digits.chars().filter(|one| !one.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some((high.to_digit(16)? * 16 + low.to_digit(16)?) as u8),
        _ => None,
    });
    pairs.collect()
}
