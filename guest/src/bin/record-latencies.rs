//! `record-latencies FILE COMMAND…`: runs `docs/record-latencies.sh`, word for word, with busybox's shell.
#![forbid(unsafe_code)]

use std::process::Command;

use anyhow::{Context, Result, ensure};

const RECIPE: &str = include_str!("../../../docs/record-latencies.sh");
const PLACE: &str = "/tmp/record-latencies.sh";

fn main() -> Result<()> {
    std::fs::write(PLACE, RECIPE).context(PLACE)?;
    let mut shell = Command::new("/bin/sh");
    let ended = shell.arg(PLACE).args(std::env::args().skip(1)).status();
    ensure!(ended.context("sh")?.success(), "the recipe failed");
    Ok(())
}
