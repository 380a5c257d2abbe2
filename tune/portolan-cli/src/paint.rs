//! Colour, on a terminal only. It says nothing that a word or a mark does not say: [`Paint::page`] finds
//! those in the text (a table's head, `*` after a winner's name, `holds`, `FAILS`) and colours them, so a
//! report is written and measured without it.
//!
//! `NO_COLOR` (any value but the empty one) and `TERM=dumb` switch it off; `CLICOLOR_FORCE` (any value but
//! the empty one and 0) switches it on where there is no terminal, `| less -R` for one. `NO_COLOR` is the
//! stronger of the two.

use std::ffi::OsString;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};

/// Use of colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Plain text, without escape sequences.
    Off,
    /// Text with escape sequences.
    On,
}

const HEAD: Style = Style::new().bold();
const BEST: Style = AnsiColor::Green.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// Words at the beginning of a line, and their styles.
const VERDICTS: [(&str, Style); 5] =
    [("holds", GOOD), ("passed", GOOD), ("FAILS", BAD), ("FAILED", BAD), ("wrong:", BAD)];

impl Paint {
    /// Choice for text that is written to `stream`.
    pub fn of(stream: &impl IsTerminal) -> Self {
        Self::decide(stream.is_terminal(), |name| std::env::var_os(name))
    }

    /// Decides for an environment, like the function above.
    pub fn decide(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_none_or(|value| value == "dumb");
        if set("NO_COLOR").is_some() {
            Self::Off
        } else if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") || is_terminal && !dumb {
            Self::On
        } else {
            Self::Off
        }
    }

    /// `text` in `style`.
    fn styled(self, text: &str, style: Style) -> String {
        match self {
            Self::Off => text.to_owned(),
            Self::On => format!("{style}{text}{style:#}"),
        }
    }

    /// The word that begins a warning.
    pub(crate) fn warning(self) -> String {
        self.styled("warning:", WARNING)
    }

    /// A report with its tables' heads, winners and verdicts coloured.
    pub fn page(self, text: &str) -> String {
        if self == Self::Off {
            return text.to_owned();
        }
        let lines: Vec<&str> = text.split('\n').collect();
        let mut out = Vec::with_capacity(lines.len());
        let mut in_table = false;
        for (number, line) in lines.iter().enumerate() {
            in_table = is_rule(line) || (in_table && !line.is_empty());
            out.push(match () {
                () if is_head(&lines[number..]) => self.styled(line, HEAD),
                () if in_table && is_winner(line) => self.styled(line, BEST),
                () => self.verdict(line),
            });
        }
        out.join("\n")
    }

    fn verdict(self, line: &str) -> String {
        let found = VERDICTS.iter().find_map(|(word, style)| {
            let rest = line.strip_prefix(word)?;
            let ends = !rest.starts_with(|next: char| next.is_alphanumeric());
            ends.then(|| self.styled(word, *style) + rest)
        });
        found.unwrap_or_else(|| line.to_owned())
    }
}

/// The line below a table's head.
fn is_rule(line: &str) -> bool {
    line.starts_with("--") && line.chars().all(|one| one == '-' || one == ' ')
}

/// Tells if the first of `lines` belongs to a head, which has at most four lines above its rule.
fn is_head(lines: &[&str]) -> bool {
    let above =
        lines.iter().take(5).position(|line| is_rule(line)).and_then(|rule| lines.get(..rule));
    above.is_some_and(|head| !head.is_empty() && head.iter().all(|line| !line.is_empty()))
}

/// Tells if a row has the winner's mark after its name.
fn is_winner(line: &str) -> bool {
    !line.starts_with('*') && (line.contains(" * ") || line.ends_with(" *"))
}
