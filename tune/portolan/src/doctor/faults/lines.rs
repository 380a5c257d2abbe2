//! Lines of a kernel's log, as the kernel's ring, `dmesg`, `journalctl` and consoles print them.
//!
//! A line's message is searched for, not split from a prefix of a known form: so prefixes in any language and levels
//! do no harm. Colours are left out. Lines are cut at 16 KiB, and only one is in memory.

use std::io::{self, BufRead};

use serde_json::Value;

use crate::doctor::log::plain;

/// Bytes of a line that are looked at.
const LONGEST: usize = 16 << 10;
/// Characters of a time stamp in words.
const LONGEST_STAMP: usize = 32;
const SECOND: u64 = 1_000_000;

/// Time of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Microseconds since the kernel's start, if the line has them.
    pub(super) since_start: Option<u64>,
    /// The time of day, if the line has it.
    pub(super) words: Option<String>,
}

impl Stamp {
    /// The time as text: of the kernel if known.
    pub(super) fn text(&self) -> Option<String> {
        let micros = |micros: u64| format!("{}.{:06} s", micros / SECOND, micros % SECOND);
        self.since_start.map(micros).or_else(|| self.words.clone())
    }
}

/// Calls `visit` with the number and the bytes of each line; returns the number of lines.
///
/// # Errors
/// If reading fails.
pub(super) fn each(input: &mut dyn BufRead, mut visit: impl FnMut(u64, &[u8])) -> io::Result<u64> {
    let (mut kept, mut number) = (Vec::new(), 0);
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = memchr::memchr(b'\n', buffer);
        let (line, used) = match end {
            _ if buffer.is_empty() => (None, 0),
            Some(end) => (buffer.get(..end), end + 1),
            None => {
                keep(&mut kept, buffer);
                let used = buffer.len();
                input.consume(used);
                continue;
            }
        };
        if let (Some(line), true) = (line, kept.is_empty()) {
            number += 1;
            visit(number, &plain(line.get(..LONGEST).unwrap_or(line)));
        } else if line.is_some() || !kept.is_empty() {
            keep(&mut kept, line.unwrap_or_default());
            number += 1;
            visit(number, &plain(&kept));
            kept.clear();
        }
        if used == 0 {
            return Ok(number);
        }
        input.consume(used);
    }
}

fn keep(kept: &mut Vec<u8>, more: &[u8]) {
    let room = LONGEST.saturating_sub(kept.len());
    kept.extend_from_slice(more.get(..room).unwrap_or(more));
}

/// Text of a line, and its time if an object of `journalctl -o json` has it.
pub(super) fn text_of(line: &[u8]) -> (String, Option<Stamp>) {
    if line.first() == Some(&b'{')
        && let Ok(Value::Object(entry)) = serde_json::from_slice(line)
    {
        let message = match entry.get("MESSAGE") {
            Some(Value::String(text)) => text.clone().into_bytes(),
            // The journal's form of text that is no UTF-8.
            Some(Value::Array(bytes)) => {
                bytes.iter().map(|byte| byte.as_u64().unwrap_or(0) as u8).collect()
            }
            _ => Vec::new(),
        };
        let message = String::from_utf8_lossy(&plain(&message)).into_owned();
        let micros = entry.get("_SOURCE_MONOTONIC_TIMESTAMP").and_then(Value::as_str);
        let since_start = micros.and_then(|micros| micros.parse().ok());
        return (message, Some(Stamp { since_start, words: None }));
    }
    (String::from_utf8_lossy(line).into_owned(), None)
}

/// Time in the part of a line before its message.
pub(super) fn stamp(head: &str) -> Stamp {
    Stamp { since_start: since_start(head), words: time_of_day(head) }
}

/// `[   12.345678]`, `6,339,5140900,-;` of the ring, or `12.345678:` of some consoles.
fn since_start(head: &str) -> Option<u64> {
    if let Some((record, _)) = head.split_once(';')
        && let Some(micros) = record.split(',').nth(2).and_then(|micros| micros.parse().ok())
    {
        return Some(micros);
    }
    let bracketed = head.rsplit('[').find_map(|part| seconds(part.split(']').next()?.trim()));
    bracketed.or_else(|| head.split_whitespace().find_map(|word| seconds(word.strip_suffix(':')?)))
}

/// Microseconds of a decimal number of seconds.
fn seconds(word: &str) -> Option<u64> {
    let (whole, part) = word.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 6 {
        return None;
    }
    let micros: u64 = format!("{part:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(SECOND)?.checked_add(micros)
}

/// The words up to a clock's `hours:minutes:seconds`.
fn time_of_day(head: &str) -> Option<String> {
    let is_clock = |word: &str| {
        let word = word.rsplit('T').next().unwrap_or(word);
        let mut parts = word.split(':');
        let two = |part: Option<&str>| {
            part.is_some_and(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()))
        };
        two(parts.next())
            && two(parts.next())
            && parts.next().is_some_and(|part| part.starts_with(|c: char| c.is_ascii_digit()))
    };
    let head = head.trim_start_matches(['[', '<', '>', '(', ')']);
    let words: Vec<&str> = head.split_whitespace().take(5).collect();
    let at = words.iter().position(|word| is_clock(word))?;
    let text = words.get(..=at)?.join(" ");
    let text = text.rsplit(['[', '|']).next().unwrap_or_default().trim().to_owned();
    (text.chars().count() <= LONGEST_STAMP).then_some(text)
}
