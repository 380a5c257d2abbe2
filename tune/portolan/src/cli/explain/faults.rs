//! `portolan explain --faults`: faults in the kernel's log.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::cli::report::{ReportFile, origin};
use crate::doctor::faults::{self, FaultAnswers, LogContents};
use crate::doctor::{Files, Finding, Log, Subject};
use crate::{report, trace};

/// Bytes of the log that are read at once.
const CHUNK: usize = 256 << 10;

/// Prints the answers about the faults of the log that `args` name, and writes them `to` a report.
pub(super) fn run(args: &ExplainArgs, to: Option<&ReportFile>) -> Result<Outcome> {
    let mut subject = Subject::new(&args.from, args.log.as_deref())?;
    let file = args.faults.as_ref().and_then(Option::as_deref);
    let log = match file {
        Some(file) => read(&mut opened(file)?, &file.display().to_string())?,
        None => kept(&subject.log)?,
    };
    // A file may be another machine's: this one's devices would then explain it wrongly.
    let is_foreign = file.is_some() && subject.is_this && !log.is_of(&subject.files);
    if is_foreign {
        subject.files = Files::Kept(BTreeMap::new());
    }
    let mut recording = args.trace.as_deref().map(trace::open).transpose()?;
    let mut answers = FaultAnswers::new(&log, &subject.files, recording.as_mut());
    if is_foreign && !answers.faults.is_empty() {
        let why = "The log is not known to be this machine's: devices are known by the log alone.";
        answers.findings.push(Finding::unknown("machine", why).act("If it is, add `--from /`."));
    }
    args.output.show(&answers, faults::text)?;
    if let Some(to) = to {
        to.write(&report::faults(&answers, origin(Vec::new())))?;
    }
    Ok(Outcome::of(answers.faults.is_empty()))
}

/// Opens a file, packed or not, or standard input for `-`.
fn opened(file: &Path) -> Result<impl BufRead + use<>> {
    let (input, _) = trace::open_file(file)?;
    Ok(BufReader::with_capacity(CHUNK, input))
}

/// Reads the log that belongs to a machine.
fn kept(log: &Log) -> Result<LogContents> {
    let name = match log {
        Log::Ring(path) | Log::File(path) => path.display().to_string(),
        Log::Kept(_) => "the collected log".to_owned(),
        Log::Unknown => bail!("no log was given: `--faults FILE` takes what `dmesg` prints"),
    };
    let advice = || match log {
        Log::Ring(_) => format!(
            "{name} cannot be read: run this as root, or give it the output of `dmesg` or \
             `journalctl -k` (`sudo dmesg | portolan explain --faults -`)"
        ),
        _ => format!("{name} cannot be read"),
    };
    if let Log::File(path) = log {
        return read(&mut opened(path)?, &name);
    }
    read(&mut log.open().with_context(advice)?, &name)
}

fn read(input: &mut dyn BufRead, name: &str) -> Result<LogContents> {
    let log = LogContents::read(input).with_context(|| format!("{name} cannot be read"))?;
    if log.is_empty() {
        bail!("{name} has no lines");
    }
    Ok(log)
}
