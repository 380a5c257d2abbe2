//! Latencies without nesting: maps that bpftrace prints, histograms of bcc's `funclatency`, and rows
//! `function,units,ns`.
//!
//! A map is called `@ns`, `@us` or `@ms`, its key is the function, or the function and units:
//! `@us[iommu_map, 4096]:`, then a row a bucket (`[4, 8)  12 |@@ |`). A row's units are bytes for maps,
//! unmaps and copies, commands for submissions; nothing where they are not known. bcc prints the function before the
//! histogram, in a line (`Function = iommu_map`, option `-F`) or as the function that it traces, and the unit above
//! its buckets (`4096 -> 8191 : 12 |@@ |`).

use super::function::{Family, Inside, known};
use super::leaves::Pages;
use super::line::{LONGEST_NAME, TOO_LONG};
use super::samples::{CallSample, CommandScope, Hooks, Resolution, Samples};
use crate::trace::decimal;

/// Calls that represent a whole histogram; only the shares of its buckets count.
const MOST_OF_A_HISTOGRAM: f64 = 16_384.0;
/// Limit of histograms that are read whole. In later ones fewer calls stand for all, because all would take too long.
const WHOLE_HISTOGRAMS: usize = 64;
/// Buckets of the longest histogram: bpftrace's linear ones have up to 1,000.
const MOST_BUCKETS: usize = 1024;

/// Function and size of a call: the key of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    function: String,
    units: Option<u64>,
}

impl Key {
    fn of(function: &str, units: &str) -> Result<Self, &'static str> {
        if function.len() > LONGEST_NAME {
            return Err(TOO_LONG);
        }
        let function = function.to_owned();
        let units = match units {
            "" => None,
            digits => Some(decimal(digits.as_bytes()).ok_or("units that are no number")?),
        };
        Ok(Self { function, units })
    }
}

/// A line, parsed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FlatLine {
    /// A call.
    Call { key: Key, ns: u64 },
    /// A histogram begins, its times in so many nanoseconds.
    Histogram { key: Key, scale: u64 },
    /// bcc names the function of the following histograms.
    Function(Traced),
    /// bcc's histogram of that function begins.
    Buckets { scale: u64 },
    /// Calls of the histogram, in its unit.
    Bucket { low: u64, high: u64, count: u64 },
    /// A header or another map, without a latency.
    Nothing,
}

/// Functions of bcc's histograms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Traced {
    /// The trace does not say.
    #[default]
    Unsaid,
    One(String),
    /// Several functions in one histogram, without a price.
    Several,
}

/// Parses a line; `None` if it is of no known form.
pub(super) fn parse(line: &[u8]) -> Option<Result<FlatLine, &'static str>> {
    let text = std::str::from_utf8(line).ok()?.trim();
    match text.as_bytes().first()? {
        b'@' => Some(histogram(text)),
        b'[' | b'(' => bucket(text),
        b'0'..=b'9' if text.contains(" -> ") => bcc_bucket(text),
        _ if text.starts_with("Attach") || text.starts_with("function,") => {
            Some(Ok(FlatLine::Nothing))
        }
        _ => bcc(text).or_else(|| call(text)),
    }
}

/// Parses the lines of `funclatency` other than buckets.
fn bcc(text: &str) -> Option<Result<FlatLine, &'static str>> {
    let name = |text: &str| {
        let plain = text.trim().trim_start_matches("b'").trim_matches(['\'', '"']);
        if plain.is_empty() || plain.len() > LONGEST_NAME {
            Err(TOO_LONG)
        } else {
            Ok(FlatLine::Function(Traced::One(plain.to_owned())))
        }
    };
    if let Some(function) = text.strip_prefix("Function = ") {
        // A number of a process may follow.
        return Some(name(function.split(" [").next().unwrap_or(function)));
    }
    if let Some(traced) = text.strip_prefix("Tracing ") {
        let (traced, _) = traced.split_once("...")?;
        return Some(match traced.split_once(" functions for ") {
            Some(("1", function)) => name(function),
            Some(_) => Ok(FlatLine::Function(Traced::Several)),
            None => name(traced),
        });
    }
    if let Some((unit, _)) = text.split_once(':')
        && text.ends_with("distribution")
    {
        let scale = match unit.trim() {
            "nsecs" => 1,
            "usecs" => 1_000,
            "msecs" => 1_000_000,
            _ => return Some(Err("a histogram of something else than times")),
        };
        return Some(Ok(FlatLine::Buckets { scale }));
    }
    let rest = text == "^C" || text.starts_with("avg = ") || text.starts_with("Detaching");
    rest.then_some(Ok(FlatLine::Nothing))
}

/// `4096 -> 8191 : 12 |@@ |`: both ends are in it.
fn bcc_bucket(text: &str) -> Option<Result<FlatLine, &'static str>> {
    let (range, rest) = text.split_once(':')?;
    let (low, high) = range.split_once("->")?;
    let (count, _) = rest.split_once('|')?;
    let number = |text: &str| decimal(text.trim().as_bytes());
    let row = match (number(low), number(high), number(count)) {
        (Some(low), Some(high), Some(count)) if high < u64::MAX => {
            Ok(FlatLine::Bucket { low, high: high + 1, count })
        }
        _ => Err("a bucket without bounds or calls"),
    };
    Some(row)
}

/// `@us[kprobe:iommu_map, 4096]:`.
fn histogram(text: &str) -> Result<FlatLine, &'static str> {
    let Some(head) = text.strip_suffix(':') else {
        return Ok(FlatLine::Nothing);
    };
    let (name, key) = match head.split_once('[') {
        Some((name, key)) => (name, key.strip_suffix(']').ok_or("a key that is cut")?),
        None => (head, ""),
    };
    let scale = match name {
        "@ns" => 1,
        "@us" => 1_000,
        "@ms" => 1_000_000,
        _ => return Err("a map that says no unit: call it @ns, @us or @ms"),
    };
    let mut parts = key.split(',').map(str::trim);
    let function = parts
        .next()
        .and_then(|name| name.rsplit(':').next())
        .filter(|name| !name.is_empty())
        .ok_or("a map without functions: use @us[func] or @us[func, bytes]")?;
    let key = Key::of(function, parts.next().unwrap_or(""))?;
    Ok(FlatLine::Histogram { key, scale })
}

/// `[4K, 8K)   12 |@@@ |`, `[1]  3 |@ |`.
fn bucket(text: &str) -> Option<Result<FlatLine, &'static str>> {
    let (range, rest) = text.split_once([')', ']'])?;
    let (count, _) = rest.trim().split_once('|')?;
    let count = decimal(count.trim().as_bytes()).ok_or("a number of calls that is none");
    let (low, high) = match range.split_once(',') {
        None => (range, range),
        Some((low, high)) => (low, high),
    };
    let low = low.trim_start_matches(['[', '(']).trim();
    let bounds = match (number(low), number(high.trim_start_matches('[').trim())) {
        (Some(low), Some(high)) => Ok((low, high)),
        (Some(low), None) if high.trim() == "..." => Ok((low, low.saturating_mul(2))),
        _ => Err("a bucket without bounds"),
    };
    Some(count.and_then(|count| {
        let (low, high) = bounds?;
        Ok(FlatLine::Bucket { low, high, count })
    }))
}

/// A number with bpftrace's suffixes of binary thousands.
fn number(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    decimal(digits.as_bytes())?.checked_mul(1 << shift)
}

/// `iommu_map,4096,1830`.
fn call(text: &str) -> Option<Result<FlatLine, &'static str>> {
    let mut fields = text.split(',').map(str::trim);
    let (function, units, ns) = (fields.next()?, fields.next()?, fields.next()?);
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
    if function.is_empty() || !function.bytes().all(is_name) || fields.next().is_some() {
        return None;
    }
    let ns = decimal(ns.as_bytes()).ok_or("nanoseconds that are no number");
    let key = Key::of(function, units);
    Some(key.and_then(|key| Ok(FlatLine::Call { key, ns: ns? })))
}

/// Puts rows in their places.
#[derive(Debug)]
pub(super) struct Rows {
    pages: Pages,
    histogram: Option<Histogram>,
    /// Functions of bcc's next histogram.
    traced: Traced,
    /// Histograms that were read.
    read: usize,
}

/// A histogram that is being read.
#[derive(Debug)]
struct Histogram {
    key: Key,
    scale: u64,
    /// Nanoseconds of a bucket's middle, and its calls.
    buckets: Vec<(f64, u64)>,
}

impl Rows {
    pub(super) fn new(pages: Pages) -> Self {
        Self { pages, histogram: None, traced: Traced::Unsaid, read: 0 }
    }

    /// Takes a row.
    pub(super) fn feed(
        &mut self,
        row: FlatLine,
        samples: &mut Samples,
    ) -> Result<(), &'static str> {
        if let FlatLine::Bucket { low, high, count } = row {
            let histogram = self.histogram.as_mut().ok_or("a bucket without its map")?;
            if histogram.buckets.len() >= MOST_BUCKETS {
                return Err("a histogram of too many buckets");
            }
            // The middle of a power of two; of a single number, that number.
            let (low, high) = (low as f64, high as f64);
            let middle = if low > 0.0 { (low * high).sqrt() } else { high / 2.0 };
            let ns = middle * histogram.scale as f64;
            histogram.buckets.push((ns, count));
            return Ok(());
        }
        self.finish(samples);
        match row {
            FlatLine::Call { key, ns } => self.add(&key, ns as f64, Resolution::Exact, samples),
            FlatLine::Histogram { key, scale } => {
                let buckets = Vec::new();
                self.histogram = Some(Histogram { key, scale, buckets });
            }
            FlatLine::Function(traced) => self.traced = traced,
            FlatLine::Buckets { scale } => {
                let function = match &self.traced {
                    Traced::One(function) => function,
                    Traced::Several => {
                        return Err("a histogram of several functions: say -F to funclatency");
                    }
                    Traced::Unsaid => return Err("a histogram without its function"),
                };
                self.histogram =
                    Some(Histogram { key: Key::of(function, "")?, scale, buckets: Vec::new() });
            }
            FlatLine::Bucket { .. } | FlatLine::Nothing => {}
        }
        Ok(())
    }

    /// The histogram that was read last is whole.
    pub(super) fn finish(&mut self, samples: &mut Samples) {
        let Some(histogram) = self.histogram.take() else {
            return;
        };
        let counts = histogram.buckets.iter().map(|bucket| bucket.1 as f64);
        let all: f64 = counts.sum();
        let most = MOST_OF_A_HISTOGRAM / (1 + self.read / WHOLE_HISTOGRAMS) as f64;
        self.read += 1;
        let share = (most / all).min(1.0);
        for (ns, count) in &histogram.buckets {
            let calls = (*count as f64 * share).round() as u64;
            for _ in 0..calls {
                self.add(&histogram.key, *ns, Resolution::Bucket, samples);
            }
        }
    }

    fn add(&self, key: &Key, ns: f64, resolution: Resolution, samples: &mut Samples) {
        let name = key.function.as_bytes();
        samples.note(name, ns as u64, 0);
        let Some(known) = known(name) else {
            return;
        };
        let told = key.units.filter(|units| *units > 0);
        let units = told.and_then(|told| match known.family {
            Family::Map => self.pages.of_map(told),
            Family::Unmap => self.pages.of_unmap(told),
            _ => Some(told),
        });
        if known.inside == Inside::Others {
            samples.left_out.mixed += 1;
        } else if told.is_some() && units.is_none() {
            samples.left_out.other += 1;
        } else {
            let sample = CallSample {
                ns,
                hooks: Hooks::OWN,
                units: units.map(|units| units as f64),
                resolution,
            };
            samples.add(known.family, CommandScope::Pages, sample);
        }
    }
}
