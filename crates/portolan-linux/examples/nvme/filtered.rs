//! Requests under filters of system calls, which docs/linux.md lists: a process that makes another call is killed.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;

use crate::Arguments;
use crate::mover::Manner;

#[path = "../../../portolan/tests/support/filtered.rs"]
mod support;

const PAGE: &str = include_str!("../../../../docs/linux.md");
/// Exit code of a process that made all its requests.
const END: i32 = 7;
const SLOTS: usize = 0;
const MAPS: usize = 1;
const INTERRUPTS: usize = 2;

/// Has the kernel kill this thread at any call that is not in the rows of the table up to `row`.
pub fn begin(row: usize) {
    support::filter(&support::calls_of(PAGE, row));
}

/// Ends a process whose requests are made: what is left of it needs more calls.
pub fn end() -> ! {
    std::process::exit(END)
}

/// For each manner in a process of its own: rows that suffice, and rows that do not.
pub fn run(arguments: &Arguments) -> Result<()> {
    let cases = [
        (Manner::Slots, SLOTS, false, true),
        (Manner::Strict, MAPS, false, true),
        (Manner::Strict, SLOTS, false, false),
        (Manner::Strict, INTERRUPTS, true, true),
        (Manner::Strict, MAPS, true, false),
    ];
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ours = ["--filtered", "--bind"];
    let words: Vec<_> = words.iter().filter(|word| !ours.contains(&word.as_str())).collect();
    for (manner, row, interrupts, suffices) in cases {
        let name = manner.to_possible_value().context("no name")?.get_name().to_owned();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&words).args(["--manner", &name, "--row", &row.to_string()]);
        let status = command.args(interrupts.then_some("--interrupts")).status()?;
        let killed = status.signal() == Some(libc::SIGSYS);
        let ended = status.code() == Some(END);
        ensure!(ended == suffices && killed != suffices, "{manner}, row {row}: {status}");
        let requests = arguments.requests;
        portolan_cli::print(&format!(
            "filtered: {manner}, row {row}{}: {}\n",
            if interrupts { ", interrupts" } else { "" },
            if ended { format!("{requests} requests") } else { "killed".to_owned() },
        ))?;
    }
    Ok(())
}
