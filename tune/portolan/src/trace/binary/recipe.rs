//! The text of an event: `print fmt`, as the kernel itself would print it.
//!
//! Implements `vsnprintf` of Linux (Documentation/core-api/printk-formats.rst) for numbers and strings.
//! Pointers print as plain numbers, or not at all. Not supported: the forms of `%p` for addresses of networks,
//! functions and identifiers.

use super::expression::Expression;
use super::format::Format;
use super::parser::Parser;
use super::value::{
    Disclosure, HIDDEN, Record, cut, push_hexadecimal, push_text, write_hexadecimal,
};

/// Width or precision beyond which a conversion is not believed.
const WIDEST: usize = 64;
/// Length beyond which the rest of an event's text is left out.
const LONGEST: usize = 1 << 18;

/// A conversion such as `%016llx`.
#[derive(Debug)]
struct Conversion {
    kind: ConversionKind,
    bits: u32,
    zeros: bool,
    left: bool,
    prefix: bool,
    width: Width,
    precision: Option<Width>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConversionKind {
    Signed,
    Unsigned,
    Hexadecimal { upper: bool },
    Octal,
    Letter,
    Text,
    Pointer,
}

/// A width, in the text or an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Fixed(usize),
    Argument,
}

impl Width {
    /// Takes a width from the beginning of `text`; none is a width of nothing.
    fn parse(text: &mut &str) -> Self {
        if let Some(after) = text.strip_prefix('*') {
            *text = after;
            return Self::Argument;
        }
        let end = text.find(|c: char| !c.is_ascii_digit());
        let (digits, after) = text.split_at(end.unwrap_or(text.len()));
        *text = after;
        Self::Fixed(digits.parse().unwrap_or(0).min(WIDEST))
    }
}

#[derive(Debug)]
enum FormatPiece {
    Plain(Box<str>),
    Converted {
        how: Conversion,
        width: Option<Expression>,
        precision: Option<Expression>,
        what: Expression,
    },
}

/// Recipe for printing an event.
#[derive(Debug)]
pub(super) struct Recipe(Vec<FormatPiece>);

impl Recipe {
    /// Reads `print fmt` of `format`; `None` if it is beyond this reader.
    pub(super) fn parse(format: &Format) -> Option<Self> {
        let mut parser = Parser::new(&format.recipe, format);
        let text = parser.string()?;
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find('%') {
            let (plain, after) = rest.split_at(at);
            pieces.push(FormatPiece::Plain(plain.into()));
            if let Some(after) = after.strip_prefix("%%") {
                pieces.push(FormatPiece::Plain("%".into()));
                rest = after;
                continue;
            }
            let (how, after) = Conversion::parse(&after[1..])?;
            rest = after;
            let mut argument = || {
                if parser.take(",") { parser.expression() } else { None }
            };
            let width = match how.width {
                Width::Argument => Some(argument()?),
                Width::Fixed(_) => None,
            };
            let precision = match how.precision {
                Some(Width::Argument) => Some(argument()?),
                _ => None,
            };
            let what = argument()?;
            pieces.push(FormatPiece::Converted { how, width, precision, what });
        }
        pieces.push(FormatPiece::Plain(rest.into()));
        parser.at_end().then_some(Self(pieces))
    }

    /// Writes the text of the event.
    pub(super) fn print(&self, record: Record<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        for piece in &self.0 {
            if out.len() - start > LONGEST {
                return;
            }
            match piece {
                FormatPiece::Plain(text) => push_text(out, text.as_bytes()),
                FormatPiece::Converted { how, width, precision, what } => {
                    let given = |from: &Option<Expression>| {
                        let number = record.number(from.as_ref()?)?;
                        Some(usize::try_from(number).ok()?.min(WIDEST))
                    };
                    how.print(record, what, given(width), given(precision), out);
                }
            }
        }
    }
}

impl Conversion {
    /// Reads the conversion behind the per cent sign; returns it and the rest.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let flags = text.find(|c| !"-+ #0".contains(c))?;
        let (flags, mut rest) = text.split_at(flags);
        let width = Width::parse(&mut rest);
        let precision = rest.strip_prefix('.').map(|after| {
            rest = after;
            Width::parse(&mut rest)
        });
        let length = rest.find(|c| !"hlLqjzt".contains(c))?;
        let (length, rest) = rest.split_at(length);
        let mut letters = rest.chars();
        let kind = match letters.next()? {
            'd' | 'i' => ConversionKind::Signed,
            'u' => ConversionKind::Unsigned,
            'x' => ConversionKind::Hexadecimal { upper: false },
            'X' => ConversionKind::Hexadecimal { upper: true },
            'o' => ConversionKind::Octal,
            'c' => ConversionKind::Letter,
            's' => ConversionKind::Text,
            'p' => ConversionKind::Pointer,
            _ => return None,
        };
        let mut rest = letters.as_str();
        if kind == ConversionKind::Pointer {
            // The target of the pointer is not in the record; nor are further letters text.
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        }
        let bits = match length {
            "hh" => 8,
            "h" => 16,
            "" if kind != ConversionKind::Pointer => 32,
            _ => 64,
        };
        let conversion = Self {
            kind,
            bits,
            zeros: flags.contains('0') && !flags.contains('-'),
            left: flags.contains('-'),
            prefix: flags.contains('#'),
            width,
            precision,
        };
        Some((conversion, rest))
    }

    fn print(
        &self,
        record: Record<'_>,
        what: &Expression,
        width: Option<usize>,
        precision: Option<usize>,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let width = match self.width {
            Width::Fixed(width) => width,
            Width::Argument => width.unwrap_or(0),
        };
        match self.kind {
            ConversionKind::Text => {
                record.print(what, out);
                let most = match self.precision {
                    Some(Width::Fixed(most)) => Some(most),
                    Some(Width::Argument) => precision,
                    None => None,
                };
                if let Some(most) = most {
                    out.truncate(start.saturating_add(most));
                }
            }
            ConversionKind::Pointer if record.disclosure == Disclosure::Masked => {
                out.extend_from_slice(HIDDEN);
            }
            _ => match record.number(what) {
                Some(value) => self.number(value, out),
                None => out.push(b'?'),
            },
        }
        let missing = width.saturating_sub(out.len() - start);
        if missing == 0 {
            return;
        }
        if self.left {
            out.resize(out.len() + missing, b' ');
            return;
        }
        let numeric = !matches!(self.kind, ConversionKind::Text | ConversionKind::Letter);
        let (fill, skip) = match self.zeros && numeric {
            true if out[start..].starts_with(b"0x") => (b'0', 2),
            true if out[start..].starts_with(b"-") => (b'0', 1),
            true => (b'0', 0),
            false => (b' ', 0),
        };
        let at = start + skip;
        out.splice(at..at, std::iter::repeat_n(fill, missing));
    }

    fn number(&self, value: i128, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let plain = cut(value, self.bits, false) as u64;
        // Writes to memory do not fail.
        let _ = match self.kind {
            ConversionKind::Signed => write!(out, "{}", cut(value, self.bits, true)),
            ConversionKind::Octal => write!(out, "{plain:o}"),
            ConversionKind::Hexadecimal { upper: true } => write!(out, "{plain:X}"),
            ConversionKind::Hexadecimal { upper: false } if self.prefix => {
                write_hexadecimal(out, plain);
                Ok(())
            }
            ConversionKind::Hexadecimal { upper: false } => {
                push_hexadecimal(out, plain, 1);
                Ok(())
            }
            ConversionKind::Pointer => {
                push_hexadecimal(out, plain, 16);
                Ok(())
            }
            ConversionKind::Letter => {
                push_text(out, &[plain as u8]);
                Ok(())
            }
            ConversionKind::Unsigned | ConversionKind::Text => write!(out, "{plain}"),
        };
    }
}
