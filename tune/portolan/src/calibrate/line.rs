//! A line of a `function_graph` trace: a function entered, left or both, an event, or a mark.
//!
//! Two forms, told apart by line: that of `/sys/kernel/tracing/trace` (Documentation/trace/ftrace.rst of Linux,
//! "function graph tracer"), with or without `funcgraph-abstime`, `-proc`, `-tail`, `-args`, `-retval` and
//! `latency-format`; and that of `trace-cmd report` (`funcgraph_entry:`, `funcgraph_exit:`). CPU and duration have
//! to be there: `nofuncgraph-cpu` and `nofuncgraph-duration` leave nothing to read.

use crate::trace::{TraceLine, decimal, fixed, parse_line};

/// Event of a line on its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'l> {
    /// A function begins; so many columns in.
    Enter { depth: usize, call: Call<'l> },
    /// A function begins and ends.
    Leaf { depth: usize, ns: u64, call: Call<'l> },
    /// A function ends.
    Exit { depth: usize, ns: u64 },
    /// An event within.
    Event { name: &'l [u8], fields: &'l [u8] },
    /// An interrupt begins or ends.
    Interrupt,
    /// The CPU runs another task from here on.
    Switch,
    /// Lines are missing here.
    Lost(u64),
    /// A header or a rule.
    Nothing,
}

/// A function, and its arguments if the trace has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call<'l> {
    pub(super) name: &'l [u8],
    pub(super) arguments: &'l [u8],
}

/// A line, and its CPU if it has one.
pub(super) type Parsed<'l> = Result<(Option<u16>, Token<'l>), &'static str>;

/// Bytes of the longest name that the kernel has (`KSYM_NAME_LEN`).
pub(super) const LONGEST_NAME: usize = 512;
pub(super) const TOO_LONG: &str = "a name that is longer than the kernel's";

/// Error of a row that cannot be related to others of its CPU.
pub(super) const NO_CPU: &str = "no CPU (set the option funcgraph-cpu)";

/// Parses one line.
pub(super) fn parse(line: &[u8]) -> Parsed<'_> {
    let trimmed = line.trim_ascii();
    if trimmed.is_empty() || trimmed[0] == b'#' || trimmed.iter().all(|b| *b == b'-') {
        return Ok((None, Token::Nothing));
    }
    if let Some(parsed) = of_tracefs(line) {
        return parsed;
    }
    match parse_line(line) {
        TraceLine::Event(stamped) => {
            let token = match stamped.name {
                b"funcgraph_entry" | b"funcgraph_exit" => columns(stamped.fields)?,
                name => Token::Event { name, fields: stamped.fields },
            };
            Ok((Some(stamped.cpu), token))
        }
        TraceLine::Lost(lost) => Ok((cpu_of_lost(trimmed), Token::Lost(lost.unwrap_or(1)))),
        TraceLine::Blank | TraceLine::Comment { .. } => Ok((None, Token::Nothing)),
        TraceLine::Bad(_) if is_without_cpu(trimmed) => Err(NO_CPU),
        TraceLine::Bad(why) => Err(why),
    }
}

/// Tells if a row of `trace-cmd report` has lost its task and CPU.
fn is_without_cpu(line: &[u8]) -> bool {
    let (time, rest) = match memchr::memchr(b':', line) {
        Some(colon) => (&line[..colon], line[colon + 1..].trim_ascii_start()),
        None => return false,
    };
    fixed(time.trim_ascii(), 9).is_some() && rest.starts_with(b"funcgraph_")
}

/// `CPU:1 [LOST 12 EVENTS]`.
fn cpu_of_lost(line: &[u8]) -> Option<u16> {
    let digits = line.strip_prefix(b"CPU:")?;
    let end = digits.iter().position(|b| !b.is_ascii_digit());
    u16::try_from(decimal(&digits[..end?])?).ok()
}

/// ` [time |] cpu) [task |] [flags |] duration | function`.
fn of_tracefs(line: &[u8]) -> Option<Parsed<'_>> {
    let mut rest = line;
    if let Some(bar) = memchr::memchr(b'|', rest)
        && fixed(rest[..bar].trim_ascii(), 9).is_some()
    {
        rest = &rest[bar + 1..];
    }
    let start = rest.trim_ascii_start();
    let digits = start.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        let is_row = start.starts_with(b"|") || duration(rest).is_some();
        return is_row.then_some(Err(NO_CPU));
    }
    let after = start[digits..].strip_prefix(b")")?;
    let cpu = match decimal(&start[..digits]).map(u16::try_from) {
        Some(Ok(cpu)) => cpu,
        _ => return Some(Err("a CPU of that number")),
    };
    if memchr::memmem::find(after, b" => ").is_some() && !after.contains(&b'|') {
        return Some(Ok((Some(cpu), Token::Switch)));
    }
    Some(columns(after).map(|token| (Some(cpu), token)))
}

/// `[task |] [flags |] duration | function`.
fn columns(text: &[u8]) -> Result<Token<'_>, &'static str> {
    let mut rest = text;
    for _ in 0..3 {
        let bar = memchr::memchr(b'|', rest).ok_or("no column of a duration")?;
        let (cell, body) = (rest[..bar].trim_ascii(), &rest[bar + 1..]);
        if cell == b"==========>" || cell == b"<==========" {
            return Ok(Token::Interrupt);
        }
        if cell.is_empty() {
            return function(body, None);
        }
        match duration(cell) {
            Some(Ok(ns)) => return function(body, Some(ns)),
            Some(Err(why)) => return Err(why),
            None => rest = body,
        }
    }
    Err("no duration")
}

/// Parses a duration such as `+ 75.913 us` into nanoseconds; `None` if it is not a duration.
fn duration(cell: &[u8]) -> Option<Result<u64, &'static str>> {
    let cell = cell.trim_ascii();
    let cell = match cell {
        [b'+' | b'!' | b'#' | b'*' | b'@' | b'$', rest @ ..] => rest,
        _ => cell,
    };
    let number = cell.trim_ascii().strip_suffix(b"us")?.trim_ascii();
    // Long ones come without a fraction.
    let ns = fixed(number, 3).or_else(|| decimal(number)?.checked_mul(1000));
    Some(ns.ok_or("a duration that is no time"))
}

/// `  iommu_map() {`, `  f();`, `  } /* f */`, `  /* map: IOMMU: … */`.
fn function(body: &[u8], ns: Option<u64>) -> Result<Token<'_>, &'static str> {
    let depth = body.iter().take_while(|b| **b == b' ').count();
    let text = body.trim_ascii();
    if let Some(comment) = text.strip_prefix(b"/*") {
        let comment = comment.strip_suffix(b"*/").unwrap_or(comment).trim_ascii();
        let Some(colon) = memchr::memchr(b':', comment) else {
            return Ok(Token::Nothing);
        };
        return Ok(Token::Event {
            name: &comment[..colon],
            fields: comment[colon + 1..].trim_ascii(),
        });
    }
    if text.starts_with(b"}") {
        let ns = ns.ok_or("an end without a duration (set the option funcgraph-duration)")?;
        return Ok(Token::Exit { depth, ns });
    }
    let open = memchr::memchr(b'(', text).ok_or("neither a function nor an event")?;
    let name = text[..open].split(|b| *b == b' ').next().unwrap_or(b"");
    if name.is_empty() {
        return Err("a function without a name");
    }
    if name.len() > LONGEST_NAME {
        return Err(TOO_LONG);
    }
    let close = memchr::memrchr(b')', text).filter(|close| *close > open);
    let call = Call { name, arguments: close.map_or(b"", |close| &text[open + 1..close]) };
    let code = match memchr::memmem::rfind(text, b"/*") {
        Some(comment) if comment > open => text[..comment].trim_ascii_end(),
        _ => text,
    };
    match (code.last(), ns) {
        (Some(b'{'), _) => Ok(Token::Enter { depth, call }),
        (Some(b';'), Some(ns)) => Ok(Token::Leaf { depth, ns, call }),
        (Some(b';'), None) => {
            Err("a function without a duration (set the option funcgraph-duration)")
        }
        _ => Err("a line that is cut"),
    }
}

impl<'l> Call<'l> {
    /// An argument by its name: `size=0x1000`, `n=2`.
    pub(super) fn argument(self, name: &str) -> Option<u64> {
        let mut all = self.arguments.split(|b| *b == b',');
        let value = all
            .find_map(|one| {
                let equals = memchr::memchr(b'=', one)?;
                (one[..equals].trim_ascii() == name.as_bytes())
                    .then(|| one[equals + 1..].trim_ascii())
            })?
            .split(|b| *b == b' ')
            .next()?;
        match value.strip_prefix(b"0x") {
            Some(digits) => crate::trace::hexadecimal(digits),
            None => decimal(value),
        }
    }
}
