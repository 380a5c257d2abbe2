//! Speed of a replay on this machine, beside a plain parse of the same text.
//!
//! `cargo run --release -p portolan-tune --example replay_speed -- TRACE [ROUNDS]`. A trace is unpacked into memory
//! first. The plain parse splits each line at blanks and reads its numbers, which a script would do as well; it
//! understands nothing. Times are the least of all rounds, of the wall clock, so they differ from run to run.

use std::hint::black_box;
use std::io::{Cursor, Read};
use std::time::Instant;

use anyhow::{Context, Result};
use portolan_cli::display;
use portolan_sim::profile::Profile;
use portolan_tune::replay::{self, Policy, Replay};
use portolan_tune::trace::{Reader, open_bytes};

/// A part of the work and the seconds that it takes.
struct Stage {
    name: String,
    seconds: f64,
}

/// The least seconds of `rounds` runs.
fn least(rounds: u32, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Reads the numbers of a line: decimal, or hexadecimal after `0x`.
fn numbers(line: &str) -> u64 {
    let words = line.split(|c: char| c.is_ascii_whitespace() || "=:,[]()-".contains(c));
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    words.filter_map(number).fold(0, u64::wrapping_add)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().context("which trace?")?;
    let rounds: u32 = args.next().map_or(Ok(5), |n| n.parse())?;
    let mut bytes = Vec::new();
    open_bytes(Box::new(std::fs::File::open(&path)?))?.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().filter(|line| !line.starts_with('#')).count() as f64;
    let profile = Profile::by_name(replay::DEFAULT_MACHINE)?;
    let read = || Reader::new(Box::new(Cursor::new(bytes.clone())));

    let plain = least(rounds, || {
        black_box(text.lines().map(numbers).fold(0, u64::wrapping_add));
        Ok(())
    })?;
    let mut operations = 0u64;
    let reading = least(rounds, || {
        let mut reader = read()?;
        operations = 0;
        while reader.next_op().is_some() {
            operations += 1;
        }
        Ok(())
    })?;
    let mut stages = vec![
        Stage { name: "plain parse".into(), seconds: plain },
        Stage { name: "reading: events paired to operations".into(), seconds: reading },
    ];
    for policy in Policy::ALL {
        let whole = least(rounds, || {
            Replay::new(&profile, &[policy]).run(&mut read()?)?;
            Ok(())
        })?;
        stages.push(Stage { name: format!("reading and replay, {policy}"), seconds: whole });
    }
    let whole = least(rounds, || {
        Replay::new(&profile, &Policy::ALL).run(&mut read()?)?;
        Ok(())
    })?;
    stages.push(Stage { name: "reading and replay, all policies".into(), seconds: whole });

    let header = [
        ("stage", 0),
        ("events/s", 0),
        ("operations/s", 0),
        ("plain parses", 0),
        ("of it, reading %", 0),
    ];
    let row = |stage: &Stage| {
        let per_s = |count: f64| display::grouped((count / stage.seconds) as u64);
        let plain_parses = format!("{:.1}", stage.seconds / plain);
        let share = format!("{:.0}", 100.0 * (reading / stage.seconds).min(1.0));
        vec![stage.name.clone(), per_s(lines), per_s(operations as f64), plain_parses, share]
    };
    let rows = stages.iter().map(row).collect();
    println!(
        "{}: {lines} lines, {operations} operations, {:.1} MB",
        path,
        bytes.len() as f64 / 1e6
    );
    println!("{}", display::table(&header, &[1, 2, 3, 4], rows, 120));
    Ok(())
}
