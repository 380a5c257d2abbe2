//! Prices of the user's own machine, from a latency trace of the kernel's functions.
//!
//! Read are ftrace's `function_graph`, `trace-cmd report` of it, and latencies by function as bpftrace
//! and bcc print them (`docs/calibrate.md` has the commands). The result is a profile: another one's, with the prices
//! that the trace tells, each with the quality of its fit; and a list of those that it does not tell. Memory is
//! bounded for any trace.

mod flat;
mod function;
mod hooks;
mod judge;
mod leaves;
mod line;
mod prices;
mod robust;
mod samples;
mod sizes;
mod stack;
#[cfg(test)]
mod tests;
mod text;

use std::cell::Cell;
use std::io::{Cursor, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use portolan_sim::decode::TableFormat;
use portolan_sim::profile::{Profile, Rewrite};
use serde::Serialize;

use crate::facts::{Facts, HEAD, LATENCY};
use crate::trace::{Lines, OpenError, open_file};
use flat::{FlatLine, Rows};
use function::Family;
pub use hooks::Tracing;
pub use judge::Judged;
use leaves::Pages;
use line::Token;
use prices::Told;
pub use prices::{NewPrice, Untold};
use robust::median;
pub use robust::{Estimate, FittedLine, Slope};
pub use samples::LeftOut;
use samples::{Care, Part, Samples};
pub use sizes::Size;
use stack::Stacks;
pub use text::text;
pub(crate) use text::{answer, sources};

const HOW_TO: &str = "docs/calibrate.md says how to record one";
/// Seed of the random numbers unless another is named.
pub(crate) const SEED: u64 = 1;
/// Bad lines that are kept.
const KEPT: usize = 5;

/// A trace that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CalibrationTrace {
    /// Its file.
    pub name: String,
    /// Lines.
    pub lines: u64,
    /// Lines with the latency of a call.
    pub latencies: u64,
    /// Lines that the kernel reports as missing.
    pub lost: u64,
    /// Lines that cannot be read.
    pub bad: u64,
    /// The first of them, with the reason.
    pub bad_lines: Vec<String>,
    /// Reason of an early end, if it ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
}

/// A function of the traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TracedFunctionReport {
    /// Its name.
    pub name: String,
    /// Calls.
    pub calls: u64,
    /// Nanoseconds of the median call, with all that is in it.
    pub median_ns: f64,
    /// Nanoseconds of all calls.
    pub total_ns: u64,
    /// Name of the family that its calls are fitted as; nothing if no price follows from it.
    pub priced_as: Option<&'static str>,
}

/// Result of a calibration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// The profile's name.
    pub machine: String,
    /// The profile that it began as.
    pub from: String,
    /// Traces that were read.
    pub sources: Vec<CalibrationTrace>,
    /// Seed of the random numbers, which choose the calls held out and the resamples.
    pub seed: u64,
    /// Time of tracing in each call, where that is known.
    pub tracing: Option<Tracing>,
    /// Functions, those with the longest time first.
    pub functions: Vec<TracedFunctionReport>,
    /// Calls that were not fitted on, and why.
    pub left_out: LeftOut,
    /// Fits.
    pub fits: Vec<Judged>,
    /// Prices that are other ones now.
    pub prices: Vec<NewPrice>,
    /// Prices that stay.
    pub untold: Vec<Untold>,
    /// Warnings to the reader, as sentences.
    pub warnings: Vec<String>,
    /// The file with the profile, if one was asked for.
    pub written: Option<String>,
    /// The profile.
    #[serde(skip)]
    pub profile: String,
}

/// Latencies read from all traces of a machine.
#[derive(Debug)]
pub struct MachineTraces {
    samples: Samples,
    seed: u64,
    pages: Pages,
    care: Care,
    sources: Vec<CalibrationTrace>,
    facts: Option<Facts>,
}

impl MachineTraces {
    /// Makes an empty collection for page tables of `format`; `seed` chooses the calls that are held out.
    ///
    /// # Errors
    /// If no machine has such tables.
    pub fn new(format: TableFormat, seed: u64) -> Result<Self> {
        Ok(Self {
            samples: Samples::new(seed),
            seed,
            pages: Pages::of(format)?,
            care: Care::default(),
            sources: Vec::new(),
            facts: None,
        })
    }

    /// Reads a file, or standard input for `-`.
    ///
    /// # Errors
    /// If it cannot be read, or has neither latencies nor a machine's facts.
    pub fn read_file(&mut self, path: &Path) -> Result<()> {
        let name = if path == Path::new("-") {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        let (input, _) = open_file(path).with_context(|| format!("trace {name}"))?;
        self.read(&name, input)
    }

    /// Reads a trace, unpacked.
    ///
    /// # Errors
    /// As [`Self::read_file`].
    pub fn read(&mut self, name: &str, input: Box<dyn Read>) -> Result<()> {
        let without_cpu = Cell::new(false);
        let is_one = |line: &[u8]| {
            use Token::{Enter, Exit, Leaf};
            let of_a_call = match parse(line) {
                Err(line::NO_CPU) => {
                    without_cpu.set(true);
                    false
                }
                Ok(Said::Token(_, token)) => {
                    matches!(token, Enter { .. } | Leaf { .. } | Exit { .. })
                }
                said => said.is_ok(),
            };
            of_a_call || line.starts_with(HEAD.as_bytes())
        };
        let lines = Lines::new(input, is_one, |_| OpenError::NotATrace);
        let mut lines = match lines {
            Ok(lines) => lines,
            Err(OpenError::Binary) => bail!("trace {name} is binary data, not text; {HOW_TO}"),
            Err(OpenError::Empty) => bail!("trace {name} is empty; {HOW_TO}"),
            Err(OpenError::NotATrace) if without_cpu.get() => {
                bail!("trace {name}: its rows have {}; {HOW_TO}", line::NO_CPU)
            }
            Err(OpenError::NotATrace) => {
                bail!("trace {name}: no line of it has the latency of a function; {HOW_TO}")
            }
            Err(other) => return Err(other).with_context(|| format!("trace {name}")),
        };
        if let Some(facts) = lines.first_with(HEAD).and_then(Facts::parse) {
            let facts = facts.with_context(|| {
                format!(
                    "trace {name}: the line with the machine's facts is cut; take it out; {HOW_TO}"
                )
            })?;
            self.facts = Some(facts);
        }
        let kept = match lines.first_with(HEAD) {
            Some(_) => Kept::Marked,
            None => Kept::All,
        };
        let source = self.gather(name, &mut lines, kept);
        self.sources.push(source);
        Ok(())
    }

    fn gather(&mut self, name: &str, lines: &mut Lines, kept: Kept) -> CalibrationTrace {
        let mut source = CalibrationTrace { name: name.to_owned(), ..CalibrationTrace::default() };
        let (mut stacks, mut rows) = (Stacks::new(self.pages, self.care), Rows::new(self.pages));
        while let Some(line) = lines.next_line() {
            let marked = line.bytes.strip_prefix(LATENCY.as_bytes());
            let Some(bytes) = marked.or((kept == Kept::All).then_some(line.bytes)) else {
                continue;
            };
            source.lines += 1;
            let found = if line.too_long {
                Err("longer than 1 MiB")
            } else {
                take(bytes, &mut stacks, &mut rows, &mut self.samples, &mut source)
            };
            if let Err(why) = found {
                source.bad += 1;
                if source.bad_lines.len() < KEPT {
                    let text = String::from_utf8_lossy(bytes);
                    let text: String = text.chars().take(60).collect();
                    let said = format!("line {}: {why}: {}", line.number, text.escape_debug());
                    source.bad_lines.push(said);
                }
            }
        }
        stacks.finish(&mut self.samples);
        rows.finish(&mut self.samples);
        source.cut = lines.error();
        source
    }

    /// The facts of the machine, if one of the traces has them.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// Fits prices to the calls that were read. The result is the profile `text` of `base` with these prices, under
    /// the name `name`.
    ///
    /// # Errors
    /// If nothing that was read has a price, or if the result is no valid profile.
    pub fn calibrate(self, base: &Profile, text: &str, name: &str) -> Result<Calibration> {
        self.check()?;
        if Pages::of(base.format())? != self.pages {
            let base = base.name();
            bail!(
                "the tables of {base} have other page sizes than calls were counted by: say --from {base}"
            );
        }
        let care = self.care;
        let functions = functions(&self.samples);
        let tracing = Tracing::of(&functions, &self.samples).filter(|_| care.takes(Part::Tracing));
        let overhead = tracing.as_ref().map(|tracing| tracing.overhead(care)).unwrap_or_default();
        let stores = self.samples.stores.iter();
        let fits = stores
            .map(|(&(family, scope), store)| {
                let judged = Judged::of(family, scope, store, overhead, care, self.seed, base);
                ((family, scope), judged)
            })
            .collect();
        let told = Told::of(base, &fits);
        let mut report = Calibration {
            machine: name.to_owned(),
            from: base.name().to_owned(),
            seed: self.seed,
            functions,
            left_out: self.samples.left_out,
            fits: fits.into_values().collect(),
            prices: told.prices,
            untold: told.untold.into_values().collect(),
            warnings: Vec::new(),
            written: None,
            profile: String::new(),
            tracing,
            sources: self.sources,
        };
        report.profile = write(&report, base, text)?;
        report.warnings = text::warnings(&report);
        Ok(report)
    }

    /// Fails if there is nothing to fit.
    fn check(&self) -> Result<()> {
        if !self.samples.stores.is_empty() {
            return Ok(());
        }
        let seen: Vec<&str> = self.samples.functions.keys().map(String::as_str).collect();
        let wanted = Family::ALL.map(Family::functions).join(", ");
        let left = self.samples.left_out;
        match seen.as_slice() {
            [] => {
                let bad = self.sources.iter().flat_map(|source| &source.bad_lines);
                let first = bad.map(|line| format!(" ({line})")).next().unwrap_or_default();
                bail!("the traces have no call from its beginning to its end{first}; {HOW_TO}")
            }
            _ if left != LeftOut::default() => {
                bail!("none of the calls can be fitted on ({}); {HOW_TO}", text::left_out(&left))
            }
            seen => bail!(
                "none of the functions in the traces has a price; there are {}; wanted is one of {wanted}; {HOW_TO}",
                seen[..seen.len().min(8)].join(", ")
            ),
        }
    }
}

/// The functions that are recorded for prices first of all.
#[cfg(test)]
pub(crate) fn wanted_functions() -> impl Iterator<Item = &'static str> {
    Family::ALL.into_iter().flat_map(|family| family.functions().split(", "))
}

/// Lines of a trace that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// All latencies.
    All,
    /// Latencies that the recorder marked; other lines are events.
    Marked,
}

/// Profile that `base` becomes by `lines` of `function_graph`, which is called `name`; and the calibration behind it.
///
/// # Errors
/// As [`MachineTraces::calibrate`], or if `base` did not come with the program.
pub(crate) fn measured(base: &Profile, lines: &[u8], name: &str) -> Result<(Profile, Calibration)> {
    let text = Profile::text_of(base.name())
        .with_context(|| format!("{} is no profile of the program's", base.name()))?;
    let mut gathered = MachineTraces::new(base.format(), SEED)?;
    gathered.read("the recording", Box::new(Cursor::new(lines.to_vec())))?;
    let report = gathered.calibrate(base, text, name)?;
    let profile = Profile::from_toml(&report.profile)?;
    Ok((profile, report))
}

/// A parsed line: a latency, or a step of a CPU.
enum Said<'l> {
    Row(FlatLine),
    Token(Option<u16>, Token<'l>),
}

fn parse(line: &[u8]) -> Result<Said<'_>, &'static str> {
    match flat::parse(line) {
        Some(row) => row.map(Said::Row),
        None => line::parse(line).map(|(cpu, token)| Said::Token(cpu, token)),
    }
}

fn take(
    line: &[u8],
    stacks: &mut Stacks,
    rows: &mut Rows,
    samples: &mut Samples,
    source: &mut CalibrationTrace,
) -> Result<(), &'static str> {
    match parse(line)? {
        Said::Row(row) => {
            let is_latency = matches!(row, FlatLine::Call { .. } | FlatLine::Bucket { .. });
            rows.feed(row, samples)?;
            source.latencies += u64::from(is_latency);
        }
        Said::Token(cpu, token) => {
            match token {
                Token::Leaf { .. } | Token::Exit { .. } => source.latencies += 1,
                Token::Lost(lost) => source.lost = source.lost.saturating_add(lost),
                _ => {}
            }
            stacks.feed(cpu, token, samples);
        }
    }
    Ok(())
}

fn functions(samples: &Samples) -> Vec<TracedFunctionReport> {
    let all = samples.functions.iter().map(|(name, function)| {
        let ns = function.ns.kept().iter().map(|ns| *ns as f64);
        TracedFunctionReport {
            name: name.clone(),
            calls: function.ns.seen(),
            median_ns: median(&mut ns.collect::<Vec<_>>()),
            total_ns: function.total_ns,
            priced_as: function::known(name.as_bytes()).map(|known| known.family.name()),
        }
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.total_ns));
    all
}

/// The profile's text, which is read again before anybody gets it.
fn write(report: &Calibration, base: &Profile, text: &str) -> Result<String> {
    let names: Vec<&str> = report.sources.iter().map(|one| one.name.as_str()).collect();
    let stands_for = format!(
        "The machine of {}: {} prices by `portolan calibrate` (seed {}); all else is {}'s, which stands for: {}",
        names.join(", "),
        report.prices.len(),
        report.seed,
        base.name(),
        base.stands_for()
    );
    let prices = report.prices.iter();
    let prices: Vec<_> = prices.map(|new| (new.event, new.price.clone())).collect();
    let rewrite = Rewrite {
        name: &report.machine,
        title: &format!("{}, with prices of its own", base.title()),
        stands_for: &stands_for,
        cpus: base.cpus(),
        prices: &prices,
    };
    let written = rewrite.apply(text);
    let (text, _) = written.context("what was fitted is no machine's profile")?;
    Ok(text)
}
