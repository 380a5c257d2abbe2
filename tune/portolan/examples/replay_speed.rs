//! Speed of a replay on this machine: parsing alone, and each policy on operations already read.
//!
//! `cargo run --release -p portolan-tune --example replay_speed -- TRACE [ROUNDS]`. A trace is
//! unpacked into memory first. Times are of the wall clock, so they differ from run to run.

use std::io::{Cursor, Read};
use std::time::Instant;

use anyhow::{Context, Result};
use portolan_sim::profile::Profile;
use portolan_tune::replay::{self, Policy, Replay};
use portolan_tune::trace::{Reader, open_bytes};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().context("which trace?")?;
    let rounds: u32 = args.next().map_or(Ok(5), |n| n.parse())?;
    let mut text = Vec::new();
    open_bytes(Box::new(std::fs::File::open(&path)?))?.read_to_end(&mut text)?;
    let profile = Profile::by_name(replay::DEFAULT_MACHINE)?;
    let read = |text: &[u8]| Reader::new(Box::new(Cursor::new(text.to_vec())));

    let mut parse = f64::INFINITY;
    let mut operations = 0u64;
    for _ in 0..rounds {
        let mut reader = read(&text)?;
        let start = Instant::now();
        operations = 0;
        while reader.next_op().is_some() {
            operations += 1;
        }
        parse = parse.min(start.elapsed().as_secs_f64());
    }
    let megabytes = text.len() as f64 / 1e6;
    println!("parsing: {:.0} MB/s, {operations} operations", megabytes / parse);

    for policy in Policy::ALL {
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            let mut reader = read(&text)?;
            let start = Instant::now();
            Replay::new(&profile, &[policy]).run(&mut reader)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        let own = (best - parse).max(1e-9);
        println!(
            "{policy}: {:.2} million operations/s, {:.2} with parsing",
            operations as f64 / own / 1e6,
            operations as f64 / best / 1e6
        );
    }
    Ok(())
}
