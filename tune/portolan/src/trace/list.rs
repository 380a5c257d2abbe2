//! Lists of numbers in an event, as each tool writes them.
//!
//! ftrace: `{0x1000,0x2000}`. libtraceevent, where it understands the event's format: `4096 8192`;
//! where it does not, the bytes of the array: `ARRAY[00, 10, 00, ...]`, and ftrace with the option
//! `fields`: `00,10,00,...`. Bytes are taken as little-endian: text does not say in which order
//! the recorded machine stores them.

use super::numbers::{decimal, hexadecimal};

/// A list, borrowed from its event.
#[derive(Clone, Copy)]
pub(crate) struct List<'l>(ListSyntax<'l>);

#[derive(Clone, Copy)]
enum ListSyntax<'l> {
    /// `0x1,0x2`.
    Hexadecimal(&'l [u8]),
    /// `1 2`.
    Decimal(&'l [u8]),
    /// `00, 10, ...`, so many bytes to a number.
    PrintedBytes(&'l [u8], usize),
}

impl<'l> List<'l> {
    /// Takes the list that `text` begins with; the numbers of a printed array have `width` bytes each.
    ///
    /// # Errors
    /// The fault of the list.
    pub(super) fn parse(text: &'l [u8], width: usize) -> Result<Self, &'static str> {
        let between = |open: &[u8], close: u8| -> Option<Result<&'l [u8], &'static str>> {
            let rest = text.strip_prefix(open)?;
            let end = memchr::memchr(close, rest);
            Some(end.map(|end| &rest[..end]).ok_or("a list without its end"))
        };
        if let Some(inside) = between(b"{", b'}') {
            return Self::checked(ListSyntax::Hexadecimal(inside?));
        }
        if let Some(inside) = between(b"ARRAY[", b']') {
            return Self::checked(ListSyntax::PrintedBytes(inside?, width));
        }
        Self::checked(match bytes_with_commas(text) {
            Some(bytes) => ListSyntax::PrintedBytes(bytes, width),
            None => ListSyntax::Decimal(decimals(text)),
        })
    }

    /// `form`, if each of its numbers can be read.
    fn checked(form: ListSyntax<'l>) -> Result<Self, &'static str> {
        let readable = match form {
            ListSyntax::Hexadecimal(text) => {
                text.is_empty() || text.split(|b| *b == b',').all(|n| hexadecimal(n).is_some())
            }
            ListSyntax::Decimal(text) => words(text).all(|n| decimal(n).is_some()),
            ListSyntax::PrintedBytes(text, width) => {
                let bytes = printed(text);
                bytes.clone().all(|byte| hexadecimal(byte).is_some_and(|n| n < 256))
                    && bytes.count().is_multiple_of(width)
            }
        };
        if readable { Ok(Self(form)) } else { Err("a list with something that is no number") }
    }

    /// The numbers, which were checked when the list was made.
    pub(crate) fn iter(self) -> ListNumbers<'l> {
        ListNumbers(self.0)
    }
}

/// The numbers of a list.
#[derive(Clone)]
pub(crate) struct ListNumbers<'l>(ListSyntax<'l>);

impl Iterator for ListNumbers<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match &mut self.0 {
            ListSyntax::Hexadecimal(rest) => {
                if rest.is_empty() {
                    return None;
                }
                let end = memchr::memchr(b',', rest).unwrap_or(rest.len());
                let number = hexadecimal(&rest[..end]);
                *rest = rest.get(end + 1..).unwrap_or(b"");
                number
            }
            ListSyntax::Decimal(rest) => {
                let trimmed = rest.trim_ascii_start();
                let end = memchr::memchr(b' ', trimmed).unwrap_or(trimmed.len());
                *rest = &trimmed[end..];
                decimal(&trimmed[..end])
            }
            ListSyntax::PrintedBytes(rest, width) => {
                let mut number = None;
                for place in 0..*width {
                    let end = memchr::memchr(b',', rest).unwrap_or(rest.len());
                    let byte = hexadecimal(rest[..end].trim_ascii())?;
                    number = Some(number.unwrap_or(0) | byte << (8 * place));
                    *rest = rest.get(end + 1..).unwrap_or(b"");
                }
                number
            }
        }
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b' ').filter(|word| !word.is_empty())
}

/// The bytes of a printed array, each as text.
fn printed(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let bytes = text.split(|b| *b == b',').map(<[u8]>::trim_ascii);
    bytes.filter(|byte| !byte.is_empty())
}

/// Decimal numbers at the beginning of `text`, up to the first word that is not one.
fn decimals(text: &[u8]) -> &[u8] {
    let other = |word: &[u8]| !word.iter().all(u8::is_ascii_digit);
    let mut end = 0;
    for word in text.split(|b| *b == b' ') {
        if other(word) {
            break;
        }
        end += word.len() + 1;
    }
    text.get(..end.saturating_sub(1)).unwrap_or(text)
}

/// The bytes that `text` begins with, as `00,10`.
fn bytes_with_commas(text: &[u8]) -> Option<&[u8]> {
    let end = memchr::memchr(b' ', text).unwrap_or(text.len());
    let word = &text[..end];
    memchr::memchr(b',', word).map(|_| word)
}
