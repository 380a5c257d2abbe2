//! `explain-faults DEVICE`: records a device (QEMU's `edu`) that reads memory after its unmap, and has
//! `portolan explain --faults` explain the kernel's own log with that recording.
//!
//! Prints the answer as text, and as JSON in a line that begins with `faults: `.
#![forbid(unsafe_code)]

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

const RECORDING: &str = "/tmp/stray.gz";

fn portolan(arguments: &[&str]) -> Result<Output> {
    Command::new("portolan").args(arguments).output().context("portolan")
}

fn main() -> Result<()> {
    let device = std::env::args().nth(1).context("no device was named")?;
    let quiet = portolan(&["explain", "--faults"])?;
    ensure!(quiet.status.code() == Some(0), "a fault before the first: {quiet:?}");
    let recorded = portolan(&["record", "-o", RECORDING, "--", "stray", &device])?;
    ensure!(recorded.status.success(), "{recorded:?}");
    let explained = ["explain", "--faults", "--trace", RECORDING];
    let text = portolan(&explained)?;
    println!("{}", String::from_utf8_lossy(&text.stdout));
    ensure!(text.status.code() == Some(1), "{text:?}");
    let answer = portolan(&[&explained[..], &["--json"]].concat())?;
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
    println!("faults: {answer}");
    Ok(())
}
