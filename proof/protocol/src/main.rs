//! `portolan-protocol`: proves the protocol of unmap, invalidate and free.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;
use portolan_protocol::checks::{self, Part, Verdict, Wanted};

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
    /// Make the checks of this part alone.
    #[arg(long)]
    part: Option<Part>,
    /// Prove the entries of tables as well, from the compiler's intermediate code of
    /// portolan-formats in this file.
    #[arg(long, value_name = "FILE")]
    formats: Option<PathBuf>,
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
    let code = arguments.formats.as_ref().map(std::fs::read_to_string).transpose();
    let code = match code {
        Ok(code) => code,
        Err(error) => return fail(&error),
    };
    let wanted = Wanted { part: arguments.part, code: code.as_deref() };
    match checks::all(wanted, &mut |verdict| tell(verdict, &arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
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
