//! `portolan explain`: a machine's IOMMU, its mode, and what stands in the way.

use anyhow::{Result, bail};
use portolan_cli::display::wrapped;
use serde::Serialize;

use super::{Finding, Subject, finding};

/// Output of `portolan explain --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineAnswers {
    /// The answers.
    pub findings: Vec<Finding>,
}

impl MachineAnswers {
    /// Answers for `subject`.
    ///
    /// # Errors
    /// If nothing of the machine can be read.
    pub fn new(subject: &Subject) -> Result<Self> {
        if ["sys", "proc"].iter().all(|folder| subject.files.names(folder).found().is_none()) {
            bail!("neither /sys nor /proc of the machine can be read");
        }
        let units = subject.files.names("sys/class/iommu").found().unwrap_or_default();
        let there = match units.is_empty() {
            true => Finding::problem("IOMMU", "Linux runs none on this machine."),
            false => Finding::good("IOMMU", format!("Linux runs {}.", units.join(", "))),
        };
        Ok(Self { findings: vec![there] })
    }
}

/// The report as text, in lines of `columns`.
pub fn text(report: &MachineAnswers, columns: usize) -> String {
    wrapped(&finding::text(&report.findings), columns)
}
