//! Value of an expression in one record: a number, or text.

use std::io::Write;

use super::expression::{Expression, NumberNames, Operator};
use super::format::{EventField, FieldShape, number};

/// Elements of one list that are printed; the kernel's own lists have at most 128.
const MOST_ELEMENTS: usize = 4096;

/// Text in place of a hidden pointer.
pub(super) const HIDDEN: &[u8] = b"hidden";

/// Parts of a record that its text may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disclosure {
    /// Everything is printed.
    Whole,
    /// Kernel pointers are hidden and strings are single words, so that the text can be published.
    Masked,
}

impl Disclosure {
    /// Writes the string that `bytes` hold, up to its end.
    pub(super) fn push_string(self, out: &mut Vec<u8>, bytes: &[u8]) {
        match self {
            Self::Whole => push_text(out, bytes),
            Self::Masked => {
                let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
                // A name stays one word, even if a driver puts other characters in it.
                let plain = bytes[..end].iter();
                out.extend(plain.map(|b| if b.is_ascii_graphic() { *b } else { b'_' }));
            }
        }
    }
}

/// The bytes of one event, and the meaning of its fields.
#[derive(Clone, Copy)]
pub(super) struct Record<'r> {
    pub(super) fields: &'r [EventField],
    pub(super) bytes: &'r [u8],
    pub(super) disclosure: Disclosure,
    locals: &'r [Option<i128>],
}

/// An expression without a value that can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unprintable;

impl<'r> Record<'r> {
    /// An event without fields. An expression that is a number in it is constant.
    pub(super) const EMPTY: Self = Self::new(&[], &[], Disclosure::Whole);

    pub(super) const fn new(
        fields: &'r [EventField],
        bytes: &'r [u8],
        disclosure: Disclosure,
    ) -> Self {
        Self { fields, bytes, disclosure, locals: &[] }
    }

    fn field(self, index: usize) -> Option<(&'r EventField, &'r [u8])> {
        let field = self.fields.get(index)?;
        Some((field, field.bytes(self.bytes)?))
    }

    /// The number that an expression is worth.
    pub(super) fn number(self, of: &Expression) -> Option<i128> {
        match of {
            Expression::Number(number) => Some(*number),
            Expression::Field(index) => self.fields.get(*index)?.number(self.bytes),
            Expression::Local(index) => *self.locals.get(*index)?,
            Expression::Element(array, index) => {
                let Expression::Field(field) = **array else {
                    return None;
                };
                let (field, bytes) = self.field(field)?;
                let at = usize::try_from(self.number(index)?).ok()?;
                number(bytes.chunks_exact(field.element).nth(at)?, false)
            }
            Expression::Not(of) => Some((self.number(of)? == 0).into()),
            Expression::Negated(of) => self.number(of)?.checked_neg(),
            Expression::Complement(of) => Some(!self.number(of)?),
            Expression::Binary(operator, sides) => {
                let [left, right] = &**sides;
                operator.apply(self.number(left)?, self.number(right)?)
            }
            Expression::Choice(parts) => {
                let [condition, yes, no] = &**parts;
                self.number(if self.number(condition)? != 0 { yes } else { no })
            }
            Expression::Cast { bits, signed, of } => Some(cut(self.number(of)?, *bits, *signed)),
            Expression::Length(index) => Some(self.field(*index)?.1.len() as i128),
            Expression::Block(values, last) => self.block(values, last),
            Expression::Text(_)
            | Expression::Symbol(..)
            | Expression::Flags { .. }
            | Expression::List { .. }
            | Expression::Unknown => None,
        }
    }

    fn block(self, values: &[Expression], last: &Expression) -> Option<i128> {
        let mut locals = Vec::with_capacity(values.len());
        for value in values {
            let inside = Record { locals: &locals, ..self };
            let found = inside.number(value);
            locals.push(found);
        }
        let inside = Record { locals: &locals, ..self };
        inside.number(last)
    }

    /// Writes the value of an expression as text; `?` if it has none.
    pub(super) fn print(self, of: &Expression, out: &mut Vec<u8>) {
        if self.try_print(of, out).is_err() {
            out.push(b'?');
        }
    }

    fn try_print(self, of: &Expression, out: &mut Vec<u8>) -> Result<(), Unprintable> {
        match of {
            Expression::Text(text) => out.extend_from_slice(text.as_bytes()),
            Expression::Field(index) => match self.field(*index).ok_or(Unprintable)? {
                (field, bytes) if matches!(field.shape, FieldShape::Number { .. }) => {
                    write_number(
                        out,
                        field.number(self.bytes).ok_or(Unprintable)?,
                        bytes.len() as u32 * 8,
                    );
                }
                (_, bytes) => self.disclosure.push_string(out, bytes),
            },
            Expression::Cast { of, .. } => self.try_print(of, out)?,
            Expression::Choice(parts) => {
                let [condition, yes, no] = &**parts;
                let chosen = if self.number(condition).ok_or(Unprintable)? != 0 { yes } else { no };
                self.try_print(chosen, out)?;
            }
            Expression::Symbol(value, names) => {
                let value = self.number(value).ok_or(Unprintable)? as u64;
                match names.0.iter().find(|(number, _)| *number == value) {
                    Some((_, name)) => out.extend_from_slice(name.as_bytes()),
                    None => write_hexadecimal(out, value),
                }
            }
            Expression::Flags { value, between, names } => {
                print_flags(self.number(value).ok_or(Unprintable)? as u64, between, names, out)
            }
            Expression::List { array, count, each } => {
                self.print_list(array, count.as_deref(), each, out)?;
            }
            other => write_number(out, self.number(other).ok_or(Unprintable)?, 64),
        }
        Ok(())
    }

    fn print_list(
        self,
        array: &Expression,
        count: Option<&Expression>,
        each: &Expression,
        out: &mut Vec<u8>,
    ) -> Result<(), Unprintable> {
        let Expression::Field(index) = array else {
            return Err(Unprintable);
        };
        let (_, bytes) = self.field(*index).ok_or(Unprintable)?;
        let each =
            usize::try_from(self.number(each).ok_or(Unprintable)?).map_err(|_| Unprintable)?;
        if ![1, 2, 4, 8].contains(&each) {
            return Err(Unprintable);
        }
        let count = match count {
            Some(count) => {
                usize::try_from(self.number(count).ok_or(Unprintable)?).map_err(|_| Unprintable)?
            }
            None => MOST_ELEMENTS,
        };
        out.push(b'{');
        let elements = bytes.chunks_exact(each).take(count.min(MOST_ELEMENTS));
        for (index, element) in elements.enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write_hexadecimal(out, number(element, false).ok_or(Unprintable)? as u64);
        }
        out.push(b'}');
        Ok(())
    }
}

impl Operator {
    fn apply(self, left: i128, right: i128) -> Option<i128> {
        let shift = || u32::try_from(right).ok().filter(|bits| *bits < 64);
        Some(match self {
            Self::Or => (left != 0 || right != 0).into(),
            Self::And => (left != 0 && right != 0).into(),
            Self::BitOr => left | right,
            Self::BitXor => left ^ right,
            Self::BitAnd => left & right,
            Self::Equal => (left == right).into(),
            Self::Unequal => (left != right).into(),
            Self::Less => (left < right).into(),
            Self::More => (left > right).into(),
            Self::LessOrEqual => (left <= right).into(),
            Self::MoreOrEqual => (left >= right).into(),
            Self::ShiftLeft => i128::from((left as u64) << shift()?),
            Self::ShiftRight => left >> shift()?,
            Self::Plus => left.checked_add(right)?,
            Self::Minus => left.checked_sub(right)?,
            Self::Times => left.checked_mul(right)?,
            Self::Over => left.checked_div(right)?,
            Self::Rest => left.checked_rem(right)?,
        })
    }
}

/// Cuts `value` to a type of `bits`.
pub(super) fn cut(value: i128, bits: u32, signed: bool) -> i128 {
    let unused = 64 - bits.clamp(1, 64);
    let value = (value as u64) << unused;
    if signed { i128::from(value as i64 >> unused) } else { i128::from(value >> unused) }
}

/// Writes text up to its end, without characters that would end a line or a word of it.
pub(super) fn push_text(out: &mut Vec<u8>, bytes: &[u8]) {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    out.extend(bytes[..end].iter().map(|byte| match byte {
        b' '..=b'~' => *byte,
        _ => b'?',
    }));
}

fn print_flags(value: u64, between: &str, names: &NumberNames, out: &mut Vec<u8>) {
    let mut left = value;
    let start = out.len();
    for (flag, name) in &names.0 {
        if left & flag == *flag && *flag != 0 {
            left &= !flag;
            if out.len() > start {
                out.extend_from_slice(between.as_bytes());
            }
            out.extend_from_slice(name.as_bytes());
        }
    }
    if left != 0 {
        if out.len() > start {
            out.extend_from_slice(between.as_bytes());
        }
        write_hexadecimal(out, left);
    }
}

/// Writes a number with `0x`, as the kernel's lists and flags have it.
pub(super) fn write_hexadecimal(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(b"0x");
    push_hexadecimal(out, value, 1);
}

/// Writes at least `width` hexadecimal digits.
pub(super) fn push_hexadecimal(out: &mut Vec<u8>, value: u64, width: usize) {
    let digits = (64 - value.leading_zeros()).div_ceil(4) as usize;
    for place in (0..digits.max(width)).rev() {
        let digit = if place < 16 { value >> (4 * place) & 0xf } else { 0 };
        out.push(b"0123456789abcdef"[digit as usize]);
    }
}

fn write_number(out: &mut Vec<u8>, value: i128, bits: u32) {
    let value = cut(value, bits, value < 0);
    // Writes to memory do not fail.
    let _ = write!(out, "{value}");
}
