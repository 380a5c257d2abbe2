//! `portolan calibrate`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use portolan_cli::display::{width_of_output, wrapped};
use portolan_cli::{Outcome, Output};
use portolan_sim::profile::Profile;

use super::machine::{self, file_of};
use super::report::{ReportArgs, fact, of_profile, origin};
use crate::calibrate::{self, MachineTraces};
use crate::{replay, report};

#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    /// Latencies of the kernel's functions: ftrace's function_graph, `trace-cmd report` of it, bpftrace's or bcc's
    /// histograms, or rows function,units,ns (docs/calibrate.md has the commands), plain, .gz, .xz or .zst; - is
    /// standard input. Files that `portolan record` wrote may be among them: their facts choose the profile, and with
    /// --latency they have latencies.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Profile, or a file with one, whose prices stay where the traces do not tell them. If absent, the one for the
    /// machine whose facts are in a trace, or xeon-vtd.
    #[arg(long, value_name = "MACHINE")]
    from: Option<String>,
    /// Write the profile to this file, for --machine.
    #[arg(short = 'o', long = "output", value_name = "FILE.toml")]
    to: Option<PathBuf>,
    /// Write it even if the file is there.
    #[arg(long, requires = "to")]
    force: bool,
    /// Seed of the choice of calls that are held out, and of the resamples.
    #[arg(long, default_value_t = calibrate::SEED)]
    seed: u64,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: Output,
}

/// The profile whose prices are the first ones: `named`, unless `from` names none and the traces have a machine's
/// facts.
fn base(named: Profile, from: Option<&str>, gathered: &MachineTraces) -> Result<(Profile, String)> {
    let profile = match (from, gathered.facts()) {
        (None, Some(facts)) => {
            let (profile, choice) = replay::fit(facts)?;
            let sentences = replay::sentences(&choice, profile.name())
                .replace("--machine names", "--from names");
            eprint!("{}", wrapped(&sentences, width_of_output()));
            profile
        }
        _ => named,
    };
    let text = machine::text_of(from.unwrap_or(profile.name()))?;
    Ok((profile, text))
}

pub(super) fn run(args: &CalibrateArgs) -> Result<Outcome> {
    let target = args.to.as_deref();
    if let Some(path) = target
        && path.exists()
        && !args.force
    {
        bail!("{} is there; choose another, or say --force", path.display());
    }
    let from = args.from.as_deref();
    let traces = args.traces.iter().map(PathBuf::as_path);
    let others = traces.chain(from.and_then(file_of)).chain(target);
    let others: Vec<_> = others.collect();
    let destination = args.report.destination(&others)?;
    let named = machine::profile(from.unwrap_or(replay::DEFAULT_MACHINE))?;
    let mut gathered = MachineTraces::new(named.format(), args.seed)?;
    for trace in &args.traces {
        gathered.read_file(trace)?;
    }
    let (base, text) = base(named, from, &gathered)?;
    let stem = target.and_then(Path::file_stem);
    let name = stem.map_or("calibrated".into(), |stem| stem.to_string_lossy());
    let mut report = gathered.calibrate(&base, &text, &name)?;
    if let Some(path) = target {
        write(path, &report.profile)?;
        report.written = Some(path.display().to_string());
    }
    args.output.show(&report, calibrate::text)?;
    if let Some(destination) = destination {
        let seed =
            format!("{}, which chooses the calls that are held out, and the resamples", args.seed);
        let facts = vec![fact("begun with", of_profile(&base).1), fact("seed", seed)];
        destination.write(&report::calibrate(&report, origin(facts)))?;
    }
    Ok(Outcome::Good)
}

/// Writes the file as a whole, or not at all.
fn write(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("the profile cannot be written to {}", path.display());
    let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file());
    if is_special {
        let mut file = OpenOptions::new().write(true).open(path).with_context(failed)?;
        return file.write_all(text.as_bytes()).with_context(failed);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let file = File::create(&partial);
    let written = file
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.with_context(failed)
}
