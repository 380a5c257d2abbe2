//! `portolan-protocol`: proves the protocol of unmap, invalidate and free.
#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};

use clap::Parser;
use portolan_protocol::checks::{self, Verdict};
use portolan_protocol::smt::ProveError;

/// Proves the protocol of unmap, invalidate and free, for any number of CPUs, tables and devices.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Print each verdict as a line of JSON.
    #[arg(long)]
    json: bool,
    /// Print the run by which each defect breaks a promise.
    #[arg(long)]
    traces: bool,
}

/// Exit code for a machine without Z3, as `cargo xtask` knows it.
const SKIPPED: u8 = 3;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let version = Command::new("z3").arg("--version").output();
    let Ok(version) = version else {
        println!("SKIP z3 is not installed (Debian's package z3)");
        return ExitCode::from(SKIPPED);
    };
    if !arguments.json {
        println!("{}", String::from_utf8_lossy(&version.stdout).trim());
    }
    match checks::all(&mut |verdict| tell(verdict, &arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(&error),
    }
}

fn fail(error: &ProveError) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(1)
}

fn tell(verdict: &Verdict, arguments: &Arguments) {
    if arguments.json {
        match serde_json::to_string(verdict) {
            Ok(line) => println!("{line}"),
            Err(error) => eprintln!("{error}"),
        }
        return;
    }
    let word = if verdict.holds { "PASS" } else { "FAIL" };
    println!("{word}  {} ({:.1} s)", verdict.name, verdict.seconds);
    if !verdict.holds || arguments.traces {
        println!("      {}", verdict.found);
        verdict.trace.iter().for_each(|line| println!("        {line}"));
    }
}
