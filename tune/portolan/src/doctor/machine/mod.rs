//! `portolan explain`: a machine's IOMMU, its mode, and what stands in the way.
//!
//! Each file answers a question: `unit`, `mode`, `judged`, `interrupts`, `width`, `memory`, `guests`.

mod guests;
mod interrupts;
mod judged;
mod known;
mod memory;
mod mode;
mod options;
mod processor;
#[cfg(test)]
mod tests;
mod unit;
mod width;

use std::fmt::Write as _;

use anyhow::{Result, bail};
use portolan_cli::display::wrapped;
use serde::Serialize;

use super::{Finding, Reading, Subject, finding};
use known::Known;

/// Output of `portolan explain --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineAnswers {
    /// The answer in up to five sentences.
    pub verdict: Vec<String>,
    /// The answers.
    pub findings: Vec<Finding>,
    /// Sources that could not be read, and that root can read.
    pub unread: Vec<String>,
}

impl MachineAnswers {
    /// Answers for `subject`.
    ///
    /// # Errors
    /// If nothing of the machine can be read.
    pub fn new(subject: &Subject) -> Result<Self> {
        let known = Known::read(subject);
        let files = ["sys", "proc"].iter().any(|path| known.files().names(path).found().is_some());
        if !files && !known.has_log() {
            bail!("neither /sys nor /proc of the machine can be read, nor its kernel's log");
        }
        let first = [Some(unit::finding(&known)), mode::finding(&known)];
        let more = [
            Some(judged::finding(&known)),
            interrupts::finding(&known),
            width::finding(&known),
            memory::reserved(&known),
            memory::copies(&known),
            memory::locked(&known),
            guests::outside(&known),
            guests::confidential(&known),
            guests::device_memory(&known),
            Some(guests::devices(&known)),
        ];
        let findings: Vec<Finding> = first.into_iter().chain(more).flatten().collect();
        let unread = unread(&known);
        let mut verdict = finding::verdict(&findings);
        if !unread.is_empty() {
            verdict.push("As root it reads more: see the end.".to_owned());
        }
        Ok(Self { verdict, findings, unread })
    }
}

/// Sources that are there and could not be read.
fn unread(known: &Known) -> Vec<String> {
    let mut lacking = Vec::new();
    let refused = known.files().bytes("dev/kmsg").is_denied();
    if !known.has_log() && (known.subject.is_this || refused) {
        lacking.push("the kernel's log (faults, and why something is off)".to_owned());
    }
    for (path, words) in [
        ("sys/firmware/acpi/tables/DMAR", "firmware's tables"),
        ("sys/firmware/acpi/tables/IVRS", "firmware's tables"),
        ("sys/firmware/acpi/tables/IORT", "firmware's tables"),
    ] {
        if known.files().bytes(path).is_denied() {
            lacking.push(format!("{words} (`portolan explain --firmware`)"));
            break;
        }
    }
    if let Reading::Denied = known.files().names("sys/kernel/debug") {
        lacking.push("the size and use of the memory for copies".to_owned());
    }
    lacking
}

/// The report as text, in lines of `columns`.
pub fn text(report: &MachineAnswers, columns: usize) -> String {
    let mut out = String::new();
    for line in &report.verdict {
        let _ = writeln!(out, "{line}");
    }
    out.push('\n');
    out += &finding::text(&report.findings);
    if !report.unread.is_empty() {
        let _ = writeln!(out, "\nRoot would also read:");
        for one in &report.unread {
            let _ = writeln!(out, "  {one}");
        }
    }
    wrapped(&out, columns)
}
