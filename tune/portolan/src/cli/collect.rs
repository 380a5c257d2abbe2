//! `portolan collect`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use portolan_cli::display::{bytes, wrapped};
use portolan_cli::{Outcome, Output};
use serde_json::json;

use crate::doctor::Subject;
use crate::doctor::collect::Collected;

/// File that is written if none is named.
const DEFAULT: &str = "portolan-collected.json.gz";

#[derive(Debug, Args)]
pub(super) struct CollectArgs {
    /// File to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT)]
    output: PathBuf,
    /// Another machine than this one: a folder that has its `proc` and `sys`, or what `lspci -xxxx` prints.
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// The kernel's log of the machine, as `dmesg` or `journalctl -k` prints it.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    form: Output,
}

/// Collects a machine, and says what was left out.
pub(super) fn run(args: &CollectArgs) -> Result<Outcome> {
    let mut subject = Subject::new(&args.from, None)?;
    if let Some(log) = &args.log {
        subject.log = crate::doctor::Log::File(log.clone());
    }
    let collected = Collected::of(&subject);
    if collected.files.is_empty() && collected.log.is_none() && collected.lspci.is_none() {
        bail!("nothing of the machine can be read");
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(collected.json()?.as_bytes())?;
    let packed = packed.finish()?;
    if args.output == Path::new("-") {
        io::stdout().lock().write_all(&packed)?;
        return Ok(Outcome::Good);
    }
    let mut options = OpenOptions::new();
    // A file that was not named is not written over.
    match args.output == Path::new(DEFAULT) {
        true => options.write(true).create_new(true),
        false => options.write(true).create(true).truncate(true),
    };
    let name = args.output.display().to_string();
    let unwritten = || format!("{name} cannot be written; -o names another file");
    options
        .open(&args.output)
        .with_context(unwritten)?
        .write_all(&packed)
        .with_context(unwritten)?;
    let report = json!({
        "file": name, "bytes": packed.len(), "files": collected.files.len(), "left_out": collected.left_out
    });
    args.form.show(&report, |_, columns| {
        let mut text = format!(
            "{name}: {} files and the log in {}. Read it with `zcat` before you pass it on.\n\nLeft out:\n",
            collected.files.len(),
            bytes(packed.len() as u64)
        );
        for one in &collected.left_out {
            text += &format!("  {one}\n");
        }
        text += "\nTo look at it elsewhere: portolan explain --from ";
        text += &format!("{name}\n");
        wrapped(&text, columns)
    })?;
    Ok(Outcome::Good)
}
