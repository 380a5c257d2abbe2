//! One line: who, where, when, which event; the same for all text forms.
//!
//! ftrace: `task-pid [cpu] flags time: event: fields`; `trace-cmd report` the same with or without
//! the flags; `perf script`: `task pid [cpu] time: system:event: fields`. Of what stands before the
//! CPU only the number is looked at, so tasks may be called anything: 0 is the idle task.

use super::op::Running;

/// What a line is.
pub(crate) enum Line<'l> {
    Blank,
    /// A header line; events that the ring buffer overwrote, if it says so.
    Comment {
        overwritten: u64,
    },
    /// A report of lost events.
    Lost(u64),
    Event(Stamped<'l>),
    Bad(&'static str),
}

/// An event with its time and place.
pub(crate) struct Stamped<'l> {
    pub(crate) cpu: u16,
    pub(crate) running: Running,
    pub(crate) time_ns: u64,
    pub(crate) name: &'l [u8],
    pub(crate) fields: &'l [u8],
}

/// Parses one line.
pub(crate) fn parse(line: &[u8]) -> Line<'_> {
    let trimmed = line.trim_ascii();
    match trimmed.first() {
        None => return Line::Blank,
        Some(b'#') => {
            return Line::Comment {
                overwritten: overwritten(trimmed),
            };
        }
        Some(_) => {}
    }
    let mut from = 0;
    while let Some(open) = memchr::memchr(b'[', &trimmed[from..]) {
        let after = &trimmed[from + open + 1..];
        if let Some(stamped) = stamped(after) {
            let running = running(&trimmed[..from + open]);
            return Line::Event(Stamped { running, ..stamped });
        }
        from += open + 1;
    }
    if let Some(events) = lost(trimmed) {
        return Line::Lost(events);
    }
    if trimmed.starts_with(b"cpus=") || trimmed.starts_with(b"version = ") {
        return Line::Comment { overwritten: 0 };
    }
    Line::Bad("not a trace line")
}

/// What ran, by what stands before the CPU: `<idle>-0`, `swapper 0`, `swapper 0/0`.
fn running(before: &[u8]) -> Running {
    let before = before.trim_ascii_end();
    match [&b"-0"[..], b" 0", b" 0/0"]
        .iter()
        .any(|end| before.ends_with(end))
    {
        true => Running::Idle,
        false => Running::Task,
    }
}

/// What follows the bracket of the CPU: `000] flags 1.000001: name: fields`.
fn stamped(after: &[u8]) -> Option<Stamped<'_>> {
    let close = after.iter().take(6).position(|&b| b == b']')?;
    let cpu = u16::try_from(decimal(&after[..close])?).ok()?;
    let mut rest = after[close + 1..].trim_ascii_start();
    for _ in 0..2 {
        let end = memchr::memchr(b' ', rest)?;
        let token = &rest[..end];
        let tail = rest[end..].trim_ascii_start();
        if let Some(time_ns) = token.strip_suffix(b":").and_then(|text| fixed(text, 9)) {
            let end = name_end(tail)?;
            let full = &tail[..end];
            let name = full
                .iter()
                .rposition(|&b| b == b':')
                .map_or(full, |at| &full[at + 1..]);
            let fields = tail[end + 1..].trim_ascii_start();
            return Some(Stamped {
                cpu,
                running: Running::Task,
                time_ns,
                name,
                fields,
            });
        }
        rest = tail;
    }
    None
}

/// Where the name ends: at the last colon before the first space.
fn name_end(tail: &[u8]) -> Option<usize> {
    let word = memchr::memchr2(b' ', b'\t', tail).unwrap_or(tail.len());
    let end = tail[..word].iter().rposition(|&b| b == b':')?;
    (end > 0 && end + 1 == word).then_some(end)
}

/// A number with up to `places` digits behind its point, times ten to the power of `places`, checked.
pub(crate) fn fixed(text: &[u8], places: u32) -> Option<u64> {
    let dot = text.iter().position(|&b| b == b'.')?;
    let (whole, fraction) = (&text[..dot], &text[dot + 1..]);
    let missing = places.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    let fraction = decimal(fraction)?.checked_mul(10u64.checked_pow(missing)?)?;
    let whole = decimal(whole)?.checked_mul(10u64.checked_pow(places)?)?;
    whole.checked_add(fraction)
}

/// A decimal number, checked.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, &b| {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            None
        } else {
            sum.checked_mul(10)?.checked_add(u64::from(digit))
        }
    })
}

/// A hexadecimal number with or without `0x`, checked.
pub(crate) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, &b| {
        let digit = match b {
            b'0'..=b'9' => b - b'0',
            b'a'..=b'f' => b - b'a' + 10,
            b'A'..=b'F' => b - b'A' + 10,
            _ => return None,
        };
        Some(sum << 4 | u64::from(digit))
    })
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

/// The number in a report of lost events, whichever tool wrote it.
fn lost(line: &[u8]) -> Option<u64> {
    let upper = line.to_ascii_uppercase();
    let says = |word: &[u8]| memchr::memmem::find(&upper, word).is_some();
    if !says(b"EVENTS") || !(says(b"LOST") || says(b"DROPPED")) {
        return None;
    }
    let mut numbers = upper.split(|b| !b.is_ascii_digit()).filter_map(decimal);
    // The CPU, where it is named, comes first.
    Some(numbers.next_back().unwrap_or(1))
}
