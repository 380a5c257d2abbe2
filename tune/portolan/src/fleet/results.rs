//! Reads the output of `--ndjson`, of this or other machines, so that it can be added up.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};

use super::entry::{Entry, Failed};

/// Longest line that is taken; a replay's has some ten thousand bytes.
const MAX_LINE: u64 = 64 << 20;

/// Reads the traces in the file at `path` (`-` is standard input), and those that could not be replayed; other lines
/// are reported as failed, by their numbers.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> Result<(Vec<Entry>, Vec<Failed>)> {
    let name = path.display();
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).with_context(|| format!("results {name}"))?)
    };
    from(input, &name.to_string()).with_context(|| format!("results {name}"))
}

fn from(input: impl Read, name: &str) -> Result<(Vec<Entry>, Vec<Failed>)> {
    let (mut entries, mut failed) = (Vec::new(), Vec::new());
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        if input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let whole = line.ends_with(b"\n") || (line.len() as u64) < MAX_LINE;
        match (serde_json::from_slice(&line), serde_json::from_slice(&line)) {
            (Ok(one), _) => failed.push(one),
            (_, Ok(one)) => entries.push(one),
            (_, Err(why)) => {
                let why = format!("it is no line of `portolan replay --ndjson`: {why}");
                failed.push(Failed::new(&format!("{name} line {number}"), why));
            }
        }
        if !whole {
            break;
        }
    }
    Ok((entries, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_traces_or_what_failed_or_are_told() {
        let line = concat!(
            r#"{"trace":{"source":"a","events":1},"machine":"m","policies":[],"#,
            r#""load":"no maps","by_device":[],"more":1}"#
        );
        let bad = r#"{"trace":{"source":"b"},"error":"the trace is empty"}"#;
        let text = format!("{line}\n\n{bad}\nfoo\n{{\"trace\":{{}}}}\n{line}");
        let (entries, failed) = from(text.as_bytes(), "x.ndjson").unwrap();
        let sources: Vec<_> = entries.iter().map(|e| e.trace.source.as_str()).collect();
        assert_eq!(sources, ["a", "a"]);
        let of = |failed: &Failed| failed.trace.source.clone();
        let failed: Vec<_> = failed.iter().map(of).collect();
        assert_eq!(failed, ["b", "x.ndjson line 4", "x.ndjson line 5"]);
    }
}
