//! docs/performance.md and the README's rows, written from measurements and from the figures that are kept.

use std::path::{Path, PathBuf};
use std::process::Command;

pub use crate::figures::WriteError;
use crate::figures::{MachineFigures, Make, RowFigures, machine, read, root};
use crate::markdown;
use crate::measure::BenchReport;

/// Writes the column of this machine from a report of all benchmarks, and the page.
///
/// # Errors
/// [`WriteError`]; a report with holes is not written.
pub fn write(report: &BenchReport) -> Result<(), WriteError> {
    if let Some((name, why)) = report.skipped.iter().next() {
        return Err(WriteError::Skipped(name, why));
    }
    let cpuinfo = read(Path::new("/proc/cpuinfo"))?;
    let make = Make::of(&cpuinfo).ok_or(WriteError::OtherMake)?;
    let figures = MachineFigures {
        machine: machine(&cpuinfo),
        date: said("date", &["-u", "+%F"])?,
        commit: said("git", &["rev-parse", "--short=8", "HEAD"])?,
        load_average: Some(load_average()?),
        rows: report.benchmarks.iter().map(RowFigures::from).collect(),
    };
    let file = make.file();
    let text = serde_json::to_string_pretty(&figures);
    let text = text.map_err(|error| WriteError::Json(file.clone(), error))?;
    put(&file, &(text + "\n"))?;
    write_page()
}

/// Writes the page, and the README's rows, from the figures that are there.
///
/// # Errors
/// [`WriteError`].
pub fn write_page() -> Result<(), WriteError> {
    for (file, text) in pages()? {
        put(&file, &text)?;
    }
    Ok(())
}

/// The page and the README as they have to be.
fn pages() -> Result<[(PathBuf, String); 2], WriteError> {
    let [amd, intel] = Make::ALL.map(Make::figures);
    let machines = [amd?, intel?];
    let (page, readme) = (root().join("docs/performance.md"), root().join("README.md"));
    let text = markdown::with_figures(&read(&page)?, &machines);
    let text = text.ok_or_else(|| WriteError::NoPlace(page.clone()))?;
    let rows = markdown::with_rows(&read(&readme)?, &machines[0]);
    Ok([(page, text), (readme, rows)])
}

fn load_average() -> Result<f64, WriteError> {
    let text = read(Path::new("/proc/loadavg"))?;
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.ok_or(WriteError::Command("/proc/loadavg"))
}

fn put(file: &Path, text: &str) -> Result<(), WriteError> {
    std::fs::write(file, text).map_err(|error| WriteError::File(file.to_owned(), error))
}

fn said(program: &'static str, arguments: &[&str]) -> Result<String, WriteError> {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.map_err(|_| WriteError::Command(program))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(WriteError::Command(program)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_figures_of_both_machines() {
        for (file, text) in pages().unwrap() {
            let there = std::fs::read_to_string(&file).unwrap();
            assert!(there == text, "{}: run `portolan-bench --page`", file.display());
        }
    }
}
