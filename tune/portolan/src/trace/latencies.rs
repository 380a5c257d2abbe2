//! The part of a recording that has the times of the kernel's functions.
//!
//! `portolan record --latency` writes it between the machine's facts and the events; each line is behind [`LATENCY`].
//! It is taken out before anything else is read, since a replay needs prices before the first event.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use crate::facts::{HEAD, LATENCY};

/// Bytes of lines that are kept; those beyond say nothing new.
const MOST: usize = 64 << 20;
/// Longest line that is looked at.
const LONGEST: u64 = 1 << 20;

/// Rest of `input`, and the lines of latencies that it began with after the machine's facts.
pub(super) fn split(mut input: Box<dyn Read>) -> io::Result<(Box<dyn Read>, Vec<u8>)> {
    let mut before = Vec::new();
    let head = input.by_ref().take(HEAD.len() as u64);
    read_all(head, &mut before)?;
    let mut latencies = Vec::new();
    if before != HEAD.as_bytes() {
        return Ok((Box::new(Cursor::new(before).chain(input)), latencies));
    }
    let mut input = BufReader::new(input);
    input.by_ref().take(LONGEST).read_until(b'\n', &mut before)?;
    let mut line = Vec::new();
    loop {
        line.clear();
        input.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
        match line.strip_prefix(LATENCY.as_bytes()) {
            Some(text) if latencies.len() + text.len() <= MOST => latencies.extend_from_slice(text),
            Some(_) => {}
            None => break,
        }
    }
    before.append(&mut line);
    Ok((Box::new(Cursor::new(before).chain(input)), latencies))
}

/// Reads to the end; keeps the bytes before an error, which the next read returns again.
fn read_all(mut input: impl Read, into: &mut Vec<u8>) -> io::Result<()> {
    match input.read_to_end(into) {
        Err(error) if into.is_empty() => Err(error),
        _ => Ok(()),
    }
}
