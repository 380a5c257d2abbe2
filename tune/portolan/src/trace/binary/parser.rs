//! Reads the expressions of an event's text, once for each event.
//!
//! Implements the C that `print fmt` of Linux's events is made of after the preprocessor: operators,
//! casts, `?:`, fields of `REC`, the helpers `__get_*` and `__print_*` (stage3_trace_output.h in
//! include/trace/stages), and the blocks that `min()` becomes. Not supported: assignments and calls of
//! the kernel's functions.

use super::expression::{Expression, NumberNames, Operator};
use super::format::Format;
use super::value::Record;

/// Depth beyond which an expression is not read: both reading and computing are recursive.
const DEEPEST: u32 = 64;
/// Parts of one event's expressions beyond which its text is not read.
const MOST_PARTS: u32 = 1 << 14;

/// The longest name of a number, and the longest text between two.
const LONGEST_NAME: usize = 256;
const LONGEST_BETWEEN: usize = 8;
/// Characters among which the end of a cast is looked for.
const LONGEST_CAST: usize = 64;

/// Operators, the longer ones first, and their precedence: a larger one binds tighter.
const OPERATORS: [(&str, Operator, u32); 18] = [
    ("||", Operator::Or, 1),
    ("&&", Operator::And, 2),
    ("==", Operator::Equal, 6),
    ("!=", Operator::Unequal, 6),
    ("<<", Operator::ShiftLeft, 8),
    (">>", Operator::ShiftRight, 8),
    ("<=", Operator::LessOrEqual, 7),
    (">=", Operator::MoreOrEqual, 7),
    ("|", Operator::BitOr, 3),
    ("^", Operator::BitXor, 4),
    ("&", Operator::BitAnd, 5),
    ("<", Operator::Less, 7),
    (">", Operator::More, 7),
    ("+", Operator::Plus, 9),
    ("-", Operator::Minus, 9),
    ("*", Operator::Times, 10),
    ("/", Operator::Over, 10),
    ("%", Operator::Rest, 10),
];

/// Types by name, with their bits and sign.
const TYPES: [(&str, u32, bool); 23] = [
    ("u64", 64, false),
    ("s64", 64, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u8", 8, false),
    ("s8", 8, true),
    ("__u64", 64, false),
    ("__u32", 32, false),
    ("__u16", 16, false),
    ("__u8", 8, false),
    ("size_t", 64, false),
    ("ssize_t", 64, true),
    ("gfp_t", 32, false),
    ("dma_addr_t", 64, false),
    ("phys_addr_t", 64, false),
    ("long", 64, true),
    ("unsigned", 32, false),
    ("int", 32, true),
    ("short", 16, true),
    ("char", 8, true),
    ("bool", 8, false),
];

/// Bits and sign of the type that `words` name; `None` if it is no number.
fn type_of(words: &str) -> Option<(u32, bool)> {
    if words.contains('*') {
        return Some((64, false));
    }
    let has = |word: &str| words.split_whitespace().any(|other| other == word);
    let (_, bits, signed) = TYPES.iter().find(|(name, ..)| {
        // `unsigned long` is a long.
        has(name) && (*name != "unsigned" || !["long", "short", "char"].iter().any(|n| has(n)))
    })?;
    Some((*bits, *signed && !has("unsigned")))
}

/// A text that is being read.
pub(super) struct Parser<'t> {
    rest: &'t str,
    format: &'t Format,
    locals: Vec<&'t str>,
    depth: u32,
    parts: u32,
}

impl<'t> Parser<'t> {
    pub(super) fn new(rest: &'t str, format: &'t Format) -> Self {
        Self { rest, format, locals: Vec::new(), depth: 0, parts: 0 }
    }

    pub(super) fn at_end(&mut self) -> bool {
        self.skip();
        self.rest.is_empty()
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes `what` if it comes next.
    pub(super) fn take(&mut self, what: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(what) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Takes `what`, which has to come next, and returns it.
    fn need<'w>(&mut self, what: &'w str) -> Option<&'w str> {
        self.take(what).then_some(what)
    }

    fn word(&mut self) -> Option<&'t str> {
        self.skip();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !plain(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            return None;
        }
        self.rest = rest;
        Some(word)
    }

    /// Parses a string literal, or several in a row.
    pub(super) fn string(&mut self) -> Option<String> {
        let mut out = String::new();
        let mut any = false;
        while self.take("\"") {
            any = true;
            let mut chars = self.rest.char_indices();
            loop {
                match chars.next()?.1 {
                    '"' => break,
                    '\\' => match chars.next()?.1 {
                        'n' | 't' => out.push(' '),
                        other => out.push(other),
                    },
                    other => out.push(other),
                }
            }
            self.rest = chars.as_str();
        }
        any.then_some(out)
    }

    /// Reads an expression, `?:` included.
    pub(super) fn expression(&mut self) -> Option<Expression> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let condition = self.binary(1)?;
        let whole = if self.take("?") {
            let yes = self.expression()?;
            self.need(":")?;
            Expression::Choice(Box::new([condition, yes, self.expression()?]))
        } else {
            condition
        };
        self.depth -= 1;
        Some(whole)
    }

    fn binary(&mut self, least: u32) -> Option<Expression> {
        let mut left = self.unary()?;
        let mut chain = 0;
        loop {
            self.skip();
            let mut all = OPERATORS.iter();
            let found = all.find(|(text, ..)| self.rest.starts_with(text));
            let Some(&(text, operator, binding)) = found.filter(|(.., binding)| *binding >= least)
            else {
                return Some(left);
            };
            self.rest = &self.rest[text.len()..];
            let right = self.binary(binding + 1)?;
            left = Expression::Binary(operator, Box::new([left, right]));
            match Record::EMPTY.number(&left) {
                // Known already: flags are made of many.
                Some(number) => left = Expression::Number(number),
                None => chain += 1,
            }
            if chain > DEEPEST {
                return None;
            }
        }
    }

    fn unary(&mut self) -> Option<Expression> {
        self.depth += 1;
        self.parts += 1;
        if self.depth > DEEPEST || self.parts > MOST_PARTS {
            return None;
        }
        let found = if self.take("!") {
            Expression::Not(Box::new(self.unary()?))
        } else if self.take("-") {
            Expression::Negated(Box::new(self.unary()?))
        } else if self.take("~") {
            Expression::Complement(Box::new(self.unary()?))
        } else if self.take("&") || self.take("*") {
            self.unary()?;
            Expression::Unknown
        } else if let Some((bits, signed)) = self.cast() {
            let of = Box::new(self.unary()?);
            Expression::Cast { bits, signed, of }
        } else {
            let mut found = self.primary()?;
            while self.take("[") {
                let index = self.expression()?;
                self.need("]")?;
                found = Expression::Element(Box::new(found), Box::new(index));
            }
            found
        };
        self.depth -= 1;
        Some(found)
    }

    /// Takes `(unsigned long)` before an operand.
    fn cast(&mut self) -> Option<(u32, bool)> {
        self.skip();
        let near = self.rest.bytes().take(LONGEST_CAST);
        let end = near.enumerate().find(|(_, byte)| *byte == b')')?.0;
        let words = self.rest[..end].strip_prefix('(')?;
        let after = &self.rest[end + 1..];
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ' ' || c == '*';
        let operand = |c: char| c.is_ascii_alphanumeric() || "_(\"~!-".contains(c);
        if !words.chars().all(plain) || !after.trim_start().starts_with(operand) {
            return None;
        }
        let found = type_of(words)?;
        self.rest = after;
        Some(found)
    }

    fn primary(&mut self) -> Option<Expression> {
        self.skip();
        match self.rest.as_bytes().first()? {
            b'"' => Some(Expression::Text(self.string()?.into())),
            b'0'..=b'9' => self.number(),
            b'\'' => {
                let (letter, rest) = self.rest[1..].split_once('\'')?;
                self.rest = rest;
                Some(Expression::Number(i128::from(*letter.as_bytes().first()?)))
            }
            b'(' => {
                self.need("(")?;
                if self.take("{") {
                    return self.block();
                }
                let inside = self.expression()?;
                self.need(")")?;
                Some(inside)
            }
            _ => {
                let word = self.word()?;
                self.named(word)
            }
        }
    }

    fn number(&mut self) -> Option<Expression> {
        let word = self.word()?;
        let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
        let hexadecimal = digits.strip_prefix("0x").or(digits.strip_prefix("0X"));
        let value = match hexadecimal {
            Some(digits) => u64::from_str_radix(digits, 16),
            None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
            None => digits.parse(),
        };
        Some(Expression::Number(value.ok()?.into()))
    }

    /// Reads an expression that begins with `word`: a field, a local, a helper, or something unknown.
    fn named(&mut self, word: &'t str) -> Option<Expression> {
        if word == "REC" {
            self.need("->")?;
            return self.field().map(Expression::Field);
        }
        if let Some(local) = self.locals.iter().rposition(|local| *local == word) {
            return Some(Expression::Local(local));
        }
        if !self.take("(") {
            return Some(Expression::Unknown);
        }
        if word == "sizeof" {
            return self.size_of();
        }
        let Some(helper) = word.strip_prefix("__") else {
            self.arguments()?;
            return Some(Expression::Unknown);
        };
        let found = match helper {
            "get_str" | "get_rel_str" | "get_dynamic_array" | "get_rel_dynamic_array" => {
                Expression::Field(self.field()?)
            }
            "get_dynamic_array_len" | "get_rel_dynamic_array_len" => {
                Expression::Length(self.field()?)
            }
            "print_symbolic" | "print_symbolic_u64" => {
                let value = Box::new(self.expression()?);
                Expression::Symbol(value, self.names()?)
            }
            "print_flags" | "print_flags_u64" => {
                let value = Box::new(self.expression()?);
                self.need(",")?;
                let between = self.string()?;
                if between.len() > LONGEST_BETWEEN {
                    return None;
                }
                Expression::Flags { value, between: between.into(), names: self.names()? }
            }
            "print_array" => self.list()?,
            "print_dynamic_array" => {
                let array = Box::new(Expression::Field(self.field()?));
                self.need(",")?;
                let each = Box::new(self.expression()?);
                Expression::List { array, count: None, each }
            }
            _ => {
                self.arguments()?;
                return Some(Expression::Unknown);
            }
        };
        self.need(")")?;
        Some(found)
    }

    /// Index of the field whose name comes next.
    fn field(&mut self) -> Option<usize> {
        let name = self.word()?;
        let mut fields = self.format.fields.iter();
        fields.position(|field| &*field.name == name)
    }

    fn list(&mut self) -> Option<Expression> {
        let array = Box::new(self.expression()?);
        self.need(",")?;
        let count = Some(Box::new(self.expression()?));
        self.need(",")?;
        let each = Box::new(self.expression()?);
        Some(Expression::List { array, count, each })
    }

    /// Reads the rest of `sizeof(`: a type or a field.
    fn size_of(&mut self) -> Option<Expression> {
        let (words, after) = self.rest.split_once(')')?;
        self.rest = after;
        let bytes = match words.trim().strip_prefix("REC->") {
            Some(name) => self.format.field(name)?.size as i128,
            None => i128::from(type_of(words)?.0 / 8),
        };
        Some(Expression::Number(bytes))
    }

    /// Takes the rest of a call that is not known; the number of its arguments.
    fn arguments(&mut self) -> Option<usize> {
        let mut count = 0;
        while !self.take(")") {
            self.expression()?;
            self.take(",");
            count += 1;
        }
        Some(count)
    }

    /// `, { 1, "ONE" }, { 2, "TWO" }`.
    fn names(&mut self) -> Option<NumberNames> {
        let mut names = Vec::new();
        while self.take(",") {
            self.need("{")?;
            let value = self.expression()?;
            self.need(",")?;
            let Some(name) = self.string() else {
                // `{ 0, NULL }` ends the tables of newer kernels.
                self.expression()?;
                self.need("}")?;
                continue;
            };
            self.need("}")?;
            if name.len() > LONGEST_NAME {
                return None;
            }
            // Names of an enumeration that the kernel did not replace have no number.
            if let Some(value) = Record::EMPTY.number(&value) {
                names.push((value as u64, name.into()));
            }
        }
        Some(NumberNames(names))
    }

    /// Reads the rest of `({ int a = 1; int b = 2; a < b ? a : b; })`.
    fn block(&mut self) -> Option<Expression> {
        let outer = self.locals.len();
        if outer > 0 {
            // Locals are numbered from the block's beginning.
            return None;
        }
        let (mut values, mut last) = (Vec::new(), Expression::Unknown);
        while !self.take("}") {
            let end = self.rest.find([';', '='])?;
            let before = &self.rest[..end];
            let declares = self.rest[end..].starts_with('=')
                && !self.rest[end..].starts_with("==")
                && !before.contains(['(', '<', '>', '!']);
            if declares {
                let name = before.trim_end().rsplit([' ', '*']).next()?;
                self.rest = &self.rest[end + 1..];
                values.push(self.expression()?);
                self.locals.push(name);
            } else {
                last = self.expression()?;
            }
            self.need(";")?;
        }
        self.need(")")?;
        self.locals.truncate(outer);
        Some(Expression::Block(values, Box::new(last)))
    }
}
