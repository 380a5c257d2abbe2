//! A longer trace from a short one, for measuring: its lines again and again, each time later.
//!
//! `cargo run --release -p portolan-tune --example longer_trace -- TRACE EVENTS > LONGER`. Understood is ftrace's
//! text, compressed or not; lines without a time are left out after the first round.

use std::fs::File;
use std::io::{BufWriter, Read, Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result};
use portolan_tune::trace::open_bytes;

/// Splits a line into the text before its time, the time in microseconds, and the text behind it.
fn timed(line: &str) -> Option<(&str, u64, &str)> {
    let colon = line.find(": ")?;
    let begin = line[..colon].rfind(' ')? + 1;
    let (seconds, micros) = line[begin..colon].split_once('.')?;
    let micros: u64 = micros.parse().ok().filter(|_| micros.len() == 6)?;
    let at = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?;
    Some((&line[..begin], at.checked_add(micros)?, &line[colon..]))
}

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    let path = PathBuf::from(args.next().context("which trace?")?);
    let events = args.next().context("how many events?")?;
    let events: u64 = events.to_string_lossy().parse()?;
    let mut text = String::new();
    open_bytes(Box::new(File::open(&path)?))?.read_to_string(&mut text)?;
    let times = || text.lines().filter_map(timed).map(|(_, at, _)| at);
    let (first, last) = (times().min().context("no events")?, times().max().unwrap_or(0));
    let (mut out, mut left) = (BufWriter::new(stdout().lock()), events);
    for round in 0u64.. {
        let later = round * (last - first + 1000);
        for line in text.lines() {
            match timed(line) {
                Some((before, at, after)) if left > 0 => {
                    let at = at + later;
                    writeln!(out, "{before}{}.{:06}{after}", at / 1_000_000, at % 1_000_000)?;
                    left -= 1;
                }
                None if round == 0 => writeln!(out, "{line}")?,
                _ => {}
            }
        }
        if left == 0 {
            break;
        }
    }
    Ok(out.flush()?)
}
