//! A line of a trace: task, CPU, time and event; the same for all text forms.
//!
//! * ftrace: `task-pid [cpu] flags time: event: fields`, with or without flags and thread group;
//!   with the option `latency-format` CPU and flags are one word, and times microseconds: `0d.h1. 12us!: event:`.
//! * `trace-cmd report`: as ftrace; with `-l` `0d.h1. 1.000000: event:`.
//! * `perf script`: `task pid [cpu] time: system:event: fields`.
//!
//! Of the text before the CPU only the number is looked at, so tasks may have any name: 0 is the idle task.
//! Not supported: ftrace's options `verbose`, `raw`, `hex` and `bin`, and `nocontext-info`, which leaves out CPU and
//! time.

use serde::{Deserialize, Serialize};

use super::event::is_of_dma;
use super::numbers::{decimal, fixed};
use super::op::Running;

/// A line, parsed.
pub(crate) enum TraceLine<'l> {
    Blank,
    /// A header or a line of a stack, and the number of overwritten events if it has one.
    Comment {
        overwritten: u64,
    },
    /// A report of lost events, and their number if it has one.
    Lost(Option<u64>),
    Event(Stamped<'l>),
    Bad(&'static str),
}

/// The unit of time stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Seconds with a fraction, of any of the kernel's clocks that count nanoseconds.
    #[default]
    Seconds,
    /// Whole microseconds since the beginning of the trace.
    Microseconds,
    /// Numbers of an unknown unit: the clocks `x86-tsc`, `counter` and `uptime`.
    Ticks,
}

/// An event with its time and place.
pub(crate) struct Stamped<'l> {
    pub(crate) cpu: u16,
    pub(crate) running: Running,
    /// Nanoseconds, or the clock's own unit.
    pub(crate) time_ns: u64,
    pub(crate) clock: Clock,
    pub(crate) name: &'l [u8],
    pub(crate) fields: &'l [u8],
}

/// Parses one line.
pub(crate) fn parse(line: &[u8]) -> TraceLine<'_> {
    let trimmed = line.trim_ascii();
    match trimmed.first() {
        None => return TraceLine::Blank,
        Some(b'#') => {
            return TraceLine::Comment { overwritten: overwritten(trimmed) };
        }
        Some(_) => {}
    }
    let mut from = 0;
    while let Some(open) = memchr::memchr(b'[', &trimmed[from..]) {
        let after = &trimmed[from + open + 1..];
        if let Some(stamped) = bracketed(after) {
            let running = running(&trimmed[..from + open]);
            return TraceLine::Event(Stamped { running, ..stamped });
        }
        from += open + 1;
    }
    if let Some(lost) = lost(trimmed) {
        return TraceLine::Lost(lost);
    }
    if is_known(trimmed) {
        return TraceLine::Comment { overwritten: 0 };
    }
    match latency_format(trimmed) {
        Some(stamped) => TraceLine::Event(stamped),
        None => TraceLine::Bad("not a trace line"),
    }
}

/// Tells if a line is a header of trace-cmd's, or of a stack.
fn is_known(line: &[u8]) -> bool {
    let headers: [&[u8]; 3] = [b"cpus=", b"version = ", b"=> "];
    let empty = line.starts_with(b"CPU ") && line.ends_with(b" is empty");
    empty || headers.iter().any(|begin| line.starts_with(begin)) || is_frame(line)
}

/// `ffffffff9e1b2c3d dma_map_page_attrs+0x123 ([kernel.kallsyms])`.
fn is_frame(line: &[u8]) -> bool {
    let end = memchr::memchr(b' ', line).unwrap_or(0);
    let address = &line[..end];
    let is_address = (4..=16).contains(&end) && address.iter().all(u8::is_ascii_hexdigit);
    is_address && line.ends_with(b")") && memchr::memmem::find(line, b" (").is_some()
}

/// The running task, by the number before the CPU: `fio-536`, `fio 536`, `<idle>-0`, `swapper 0/0`, `fio-536 (  530)`.
fn running(before: &[u8]) -> Running {
    let mut before = before.trim_ascii_end();
    if before.ends_with(b")") {
        // The number of the task's group.
        let open = memchr::memrchr(b'(', before).unwrap_or(before.len());
        before = before[..open].trim_ascii_end();
    }
    let digits = before.iter().rev().take_while(|b| b.is_ascii_digit());
    let digits = &before[before.len() - digits.count()..];
    match decimal(digits).map(u32::try_from) {
        Some(Ok(0)) => Running::Idle,
        Some(Ok(task)) => Running::Task(task),
        Some(Err(_)) | None => Running::Task(0),
    }
}

/// Text behind the bracket of the CPU: `000] flags 1.000001: name: fields`.
fn bracketed(after: &[u8]) -> Option<Stamped<'_>> {
    let close = after.iter().take(6).position(|&b| b == b']')?;
    let cpu = u16::try_from(decimal(&after[..close])?).ok()?;
    let mut rest = after[close + 1..].trim_ascii_start();
    for _ in 0..2 {
        let end = memchr::memchr(b' ', rest)?;
        let token = &rest[..end];
        let tail = rest[end..].trim_ascii_start();
        if let Some((time_ns, clock)) = token.strip_suffix(b":").and_then(time) {
            return named(tail, cpu, time_ns, clock);
        }
        rest = tail;
    }
    None
}

/// `1.000001`, or `430150656786`.
fn time(text: &[u8]) -> Option<(u64, Clock)> {
    match fixed(text, 9) {
        Some(ns) => Some((ns, Clock::Seconds)),
        None => Some((decimal(text)?, Clock::Ticks)),
    }
}

/// Text behind the time: `name: fields`.
fn named(tail: &[u8], cpu: u16, time_ns: u64, clock: Clock) -> Option<Stamped<'_>> {
    let stacks: [&[u8]; 2] = [b"<stack trace", b"<user stack trace"];
    let (name, fields) = if stacks.iter().any(|stack| tail.starts_with(stack)) {
        (&b"kernel_stack"[..], &b""[..])
    } else {
        let end = name_end(tail)?;
        let full = &tail[..end];
        let system = full.iter().rposition(|&b| b == b':');
        let name = system.map_or(full, |at| &full[at + 1..]);
        (name, tail[end + 1..].trim_ascii_start())
    };
    Some(Stamped { cpu, running: Running::Task(0), time_ns, clock, name, fields })
}

/// `fio-77 0d.h1. 12us!: name: fields`, or with `1.000001:` as time.
fn latency_format(line: &[u8]) -> Option<Stamped<'_>> {
    let mut from = 0;
    let mut before: (usize, &[u8]) = (0, b"");
    loop {
        let start = from + line[from..].iter().position(|&b| b != b' ')?;
        let length = memchr::memchr(b' ', &line[start..])?;
        let word = &line[start..start + length];
        from = start + length;
        let tail = line[from..].trim_ascii_start();
        if let (Some(cpu), Some((time_ns, clock))) =
            (cpu_with_flags(before.1), short_time(word, tail))
        {
            let tail = tail.strip_prefix(b": ").unwrap_or(tail);
            let stamped = named(tail.trim_ascii_start(), cpu, time_ns, clock)?;
            let running = running(&line[..before.0]);
            return Some(Stamped { running, ..stamped });
        }
        before = (start, word);
    }
}

/// `0d.h1.`: the number of the CPU, and flags.
fn cpu_with_flags(word: &[u8]) -> Option<u16> {
    let digits = word.iter().position(|b| !b.is_ascii_digit())?;
    let flags = &word[digits..];
    let is_flag = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'#');
    let plain = (3..=8).contains(&flags.len()) && flags.iter().all(is_flag);
    plain.then(|| decimal(&word[..digits]))?.and_then(|cpu| u16::try_from(cpu).ok())
}

/// `12us:`, `12us!:`, `12us` where a colon follows, and the forms of [`time`].
fn short_time(word: &[u8], tail: &[u8]) -> Option<(u64, Clock)> {
    let text = match word.strip_suffix(b":") {
        Some(text) => text,
        None if tail.starts_with(b": ") => word,
        None => return None,
    };
    let digits = text.iter().position(|b| !b.is_ascii_digit());
    match digits.map(|at| text.split_at(at)) {
        Some((number, [b'u', b's', mark @ ..])) if mark.len() <= 1 => {
            Some((decimal(number)?.checked_mul(1000)?, Clock::Microseconds))
        }
        _ => time(text),
    }
}

/// Tells if a line is an event without CPU and time: `dma_map_page: ...`, as `nocontext-info` prints it.
pub(super) fn is_without_context(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let line = line.strip_prefix(b"| ").unwrap_or(line);
    let name = name_end(line).map(|end| &line[..end]);
    name.is_some_and(|name| is_of_dma(name) || name == b"qi_submit")
}

/// Tells if a line is one of ftrace's `function_graph`.
pub(super) fn is_of_function_graph(line: &[u8]) -> bool {
    let has = |what: &[u8]| memchr::memmem::find(line, what).is_some();
    has(b"|") && (has(b"() {") || has(b"();")) || has(b"funcgraph_entry:")
}

/// End of the name: the last colon before the first space.
fn name_end(tail: &[u8]) -> Option<usize> {
    let word = memchr::memchr2(b' ', b'\t', tail).unwrap_or(tail.len());
    let end = tail[..word].iter().rposition(|&b| b == b':')?;
    (end > 0 && end + 1 == word).then_some(end)
}

/// `entries-in-buffer/entries-written: kept/written`.
fn overwritten(comment: &[u8]) -> u64 {
    let counts = || {
        let at = memchr::memmem::find(comment, b"entries-written: ")?;
        let tail = &comment[at + b"entries-written: ".len()..];
        let end = memchr::memchr(b' ', tail).unwrap_or(tail.len());
        let slash = tail[..end].iter().position(|&b| b == b'/')?;
        let (kept, written) = (decimal(&tail[..slash])?, decimal(&tail[slash + 1..end])?);
        Some(written.saturating_sub(kept))
    };
    counts().unwrap_or(0)
}

/// A report of lost events, whichever tool wrote it, and the number if it has one: `CPU:2 [LOST 9 EVENTS]`,
/// `CPU:7 [204600 EVENTS DROPPED]`, `CPU:0 [EVENTS DROPPED]`, `PERF_RECORD_LOST lost 123`.
fn lost(line: &[u8]) -> Option<Option<u64>> {
    if let Some(at) = memchr::memmem::find(line, b"PERF_RECORD_LOST") {
        let said = memchr::memmem::find(&line[at..], b" lost ");
        let number = said.and_then(|said| first_number(&line[at + said + 6..]));
        return Some(number);
    }
    let upper = line.to_ascii_uppercase();
    let find = |word: &[u8]| memchr::memmem::find(&upper, word);
    let events = find(b"EVENTS")?;
    let at = find(b"LOST").or_else(|| find(b"DROPPED"))?;
    // The number stands between the words or before both.
    let before = upper[..events].trim_ascii_end();
    let digits = before.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let number = decimal(&before[before.len() - digits..]);
    Some(number.or_else(|| first_number(&upper[events.max(at)..])))
}

/// The first number in `text`.
fn first_number(text: &[u8]) -> Option<u64> {
    let numbers = text.split(|b| !b.is_ascii_digit());
    numbers.filter(|digits| !digits.is_empty()).find_map(decimal)
}
