//! The text of an event, as the kernel would print it: by the fields and the `print fmt` of its format file.
//!
//! Linux, Documentation/trace/events.rst (section 3, event formats). Read are the expressions that the DMA events have:
//! fields, sums of two, strings, arrays, tables of words and flags, choices. Of any other the first field is printed as
//! a number. Not supported: fields relative to their own place (`__rel_loc`), which these events have not.

use std::io::Write;

/// A field of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    offset: usize,
    size: usize,
    signed: bool,
    place: Place,
}

/// Where a field's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the record.
    Here,
    /// Where the record says: 16 bits of an offset, 16 of a length.
    Elsewhere,
}

/// An argument of `print fmt`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(usize),
    Sum(usize, usize),
    /// The smaller one of a field and a number.
    AtMost(usize, u64),
    Text(usize),
    /// A word for the bits of a field.
    Words(usize, u64, Vec<(u64, String)>),
    Flags(usize, Vec<(u64, String)>),
    /// Numbers of so many bytes.
    Array(usize, usize),
    Choice(usize, Box<Value>, Box<Value>),
    Literal(String),
}

/// How an argument is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Decimal,
    /// With so many digits at least.
    Hexadecimal(usize),
    /// An address of the kernel's, which is not given away.
    Pointer,
    Text,
}

/// A part of `print fmt`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Argument(Form, Value),
}

/// What an event's records are printed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Printer {
    /// The event's number, which its records begin with.
    pub(super) id: u16,
    /// Its name.
    pub(super) name: String,
    fields: Vec<Field>,
    parts: Vec<Part>,
}

impl Printer {
    /// Reads a format file; `None` where it has no name, number or fields.
    pub(super) fn parse(format: &str) -> Option<Self> {
        let line = |start: &str| format.lines().find_map(|line| line.strip_prefix(start));
        let fields: Vec<Field> = format.lines().filter_map(field).collect();
        let mut printer = Self {
            id: line("ID:")?.trim().parse().ok()?,
            name: line("name:")?.trim().to_owned(),
            fields,
            parts: Vec::new(),
        };
        let (text, arguments) = quoted(line("print fmt:")?)?;
        let arguments: Vec<&str> = split(arguments, b',').skip(1).collect();
        printer.parts = printer.parts(text, &arguments);
        Some(printer)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// Cuts `text` at its conversions.
    fn parts(&self, text: &str, arguments: &[&str]) -> Vec<Part> {
        let mut parts = Vec::new();
        let (mut literal, mut rest) = (String::new(), text);
        let mut arguments = arguments.iter();
        while let Some(at) = rest.find('%') {
            literal += &rest[..at];
            let spec = &rest[at + 1..];
            let Some(end) = spec.find(|c: char| c.is_ascii_alphabetic() && !"hlzLt".contains(c))
            else {
                break;
            };
            rest = &spec[end + 1..];
            let digits = spec[..end].trim_matches(|c: char| !c.is_ascii_digit());
            let width = digits.parse().unwrap_or(0);
            let form = match spec.as_bytes()[end] {
                b'x' | b'X' => Form::Hexadecimal(width),
                b's' | b'c' => Form::Text,
                b'p' => Form::Pointer,
                _ => Form::Decimal,
            };
            if spec.starts_with('#') {
                literal += "0x";
            }
            let value = arguments.next().map(|text| self.value(text));
            let value = value.unwrap_or_else(|| Value::Literal("?".to_owned()));
            parts.push(Part::Literal(std::mem::take(&mut literal)));
            parts.push(Part::Argument(form, value));
        }
        parts.push(Part::Literal(literal + rest));
        parts
    }

    fn value(&self, text: &str) -> Value {
        let text = bare(text);
        self.known(text)
            .or_else(|| Some(Value::Number(self.first_field(text)?)))
            .unwrap_or_else(|| Value::Literal("?".to_owned()))
    }

    /// The first field that is named in `text`.
    fn first_field(&self, text: &str) -> Option<usize> {
        let mut places = text.match_indices("REC->");
        places.find_map(|(at, _)| self.index(word(&text[at + 5..])))
    }

    fn known(&self, text: &str) -> Option<Value> {
        if let Some(literal) = text.strip_prefix('"') {
            return Some(Value::Literal(literal.split('"').next()?.to_owned()));
        }
        if text.starts_with("({") {
            let field = self.first_field(text)?;
            let mut numbers = text.split("= (").skip(1);
            let most = numbers.find_map(|after| after.split(')').next()?.parse().ok())?;
            return Some(Value::AtMost(field, most));
        }
        if let Some((condition, choices)) = cut(text, b'?') {
            let (yes, no) = cut(choices, b':')?;
            let (yes, no) = (self.value(yes), self.value(no));
            let field = self.first_field(condition)?;
            return Some(Value::Choice(field, Box::new(yes), Box::new(no)));
        }
        if let Some((first, second)) = cut(text, b'+') {
            return Some(Value::Sum(
                self.first_field(first)?,
                self.first_field(second)?,
            ));
        }
        let (function, inside) = text.split_once('(')?;
        let inside = inside.strip_suffix(')')?;
        let arguments: Vec<&str> = split(inside, b',').collect();
        let first = arguments.first()?.trim();
        match function.trim() {
            "__get_str" => Some(Value::Text(self.index(first)?)),
            "__print_symbolic" => {
                let mask = cut(bare(first), b'&').and_then(|(_, mask)| constant(bare(mask)));
                let bits = mask.unwrap_or(u64::MAX);
                Some(Value::Words(
                    self.first_field(first)?,
                    bits,
                    table(&arguments),
                ))
            }
            "__print_flags" => Some(Value::Flags(self.first_field(first)?, table(&arguments))),
            "__print_array" => {
                let named = first.split_once('(')?.1.strip_suffix(')')?;
                let bytes = match bare(arguments.get(2)?).strip_prefix("sizeof(") {
                    Some(of) if of.contains("64") || of.contains("long") => 8,
                    Some(of) if of.contains("16") || of.contains("short") => 2,
                    Some(of) if of.contains("8") || of.contains("char") => 1,
                    Some(_) => 4,
                    None => bare(arguments[2]).parse().ok()?,
                };
                Some(Value::Array(self.index(named.trim())?, bytes))
            }
            _ => None,
        }
    }

    /// Appends the text of `record`.
    pub(super) fn print(&self, record: &[u8], out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Part::Argument(form, value) => self.print_value(*form, value, record, out),
            }
        }
    }

    fn print_value(&self, form: Form, value: &Value, record: &[u8], out: &mut Vec<u8>) {
        match value {
            Value::Literal(text) => out.extend_from_slice(text.as_bytes()),
            Value::Number(field) if form == Form::Decimal && self.fields[*field].signed => {
                // Writing to memory does not fail.
                let _ = write!(out, "{}", signed(self.bytes(*field, record)));
            }
            Value::Number(field) => number(form, self.number(*field, record), out),
            Value::Sum(one, other) => {
                let sum = self
                    .number(*one, record)
                    .wrapping_add(self.number(*other, record));
                number(form, sum, out);
            }
            Value::AtMost(field, most) => {
                number(form, self.number(*field, record).min(*most), out);
            }
            Value::Text(field) => {
                let bytes = self.bytes(*field, record);
                let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
                // A name stays one word of one line, whatever a driver calls its device.
                let plain = bytes[..end].iter();
                out.extend(plain.map(|b| if b.is_ascii_graphic() { *b } else { b'_' }));
            }
            Value::Words(field, bits, words) => {
                let found = self.number(*field, record) & bits;
                match words.iter().find(|(value, _)| *value == found) {
                    Some((_, word)) => out.extend_from_slice(word.as_bytes()),
                    None => number(Form::Hexadecimal(0), found, out),
                }
            }
            Value::Flags(field, words) => flags(self.number(*field, record), words, out),
            Value::Array(field, bytes) => {
                out.push(b'{');
                let items = self.bytes(*field, record).chunks_exact((*bytes).max(1));
                for (at, item) in items.enumerate() {
                    out.extend_from_slice(if at > 0 { b",0x" } else { b"0x" });
                    number(Form::Hexadecimal(0), unsigned(item), out);
                }
                out.push(b'}');
            }
            Value::Choice(field, yes, no) => {
                let chosen = match self.number(*field, record) {
                    0 => no,
                    _ => yes,
                };
                self.print_value(form, chosen, record, out);
            }
        }
    }

    fn bytes<'r>(&self, field: usize, record: &'r [u8]) -> &'r [u8] {
        let Some(field) = self.fields.get(field) else {
            return b"";
        };
        let here = record.get(field.offset..field.offset + field.size);
        match (field.place, here) {
            (_, None) => b"",
            (Place::Here, Some(bytes)) => bytes,
            (Place::Elsewhere, Some(bytes)) => {
                let place = unsigned(bytes) as usize;
                let (offset, length) = (place & 0xffff, place >> 16);
                record.get(offset..offset + length).unwrap_or(b"")
            }
        }
    }

    fn number(&self, field: usize, record: &[u8]) -> u64 {
        unsigned(self.bytes(field, record))
    }
}

/// `\tfield:u64 dma_addr;\toffset:24;\tsize:8;\tsigned:0;`.
fn field(line: &str) -> Option<Field> {
    let rest = line.trim().strip_prefix("field:")?;
    let (declaration, rest) = rest.split_once(';')?;
    let number = |key: &str| -> Option<usize> {
        let (_, after) = rest.split_once(key)?;
        let number: u32 = after.split(';').next()?.trim().parse().ok()?;
        (number <= 1 << 16).then_some(number as usize)
    };
    let name = declaration.split_whitespace().next_back()?;
    Some(Field {
        name: name.split('[').next()?.to_owned(),
        offset: number("offset:")?,
        size: number("size:")?,
        signed: rest.contains("signed:1"),
        place: match declaration.starts_with("__data_loc") {
            true => Place::Elsewhere,
            false => Place::Here,
        },
    })
}

/// A number of up to eight bytes in the machine's order.
fn unsigned(bytes: &[u8]) -> u64 {
    match *bytes {
        [one] => u64::from(one),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// The same with a sign.
fn signed(bytes: &[u8]) -> i64 {
    match *bytes {
        [a, b, c, d] => i64::from(i32::from_ne_bytes([a, b, c, d])),
        _ => unsigned(bytes).cast_signed(),
    }
}

fn number(form: Form, value: u64, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = match form {
        Form::Hexadecimal(width) => write!(out, "{value:0width$x}"),
        Form::Pointer => write!(out, "hidden"),
        Form::Decimal | Form::Text => write!(out, "{value}"),
    };
}

fn flags(mut value: u64, words: &[(u64, String)], out: &mut Vec<u8>) {
    let mut separator = "";
    for (flag, word) in words.iter().filter(|(flag, _)| *flag != 0) {
        if value & flag == *flag {
            value &= !flag;
            let _ = write!(out, "{separator}{word}");
            separator = "|";
        }
    }
    if value != 0 {
        let _ = write!(out, "{separator}{value:#x}");
    }
}

/// `{ 1, "TO_DEVICE" }`, `{ (1UL << 2), "WRITE_COMBINE" }`: those whose number is one of these two.
fn table(arguments: &[&str]) -> Vec<(u64, String)> {
    let rows = arguments.iter().filter_map(|argument| {
        let row = argument.trim().strip_prefix('{')?.strip_suffix('}')?;
        let (value, word) = row.rsplit_once(',')?;
        let word = word.trim().strip_prefix('"')?.strip_suffix('"')?;
        Some((constant(bare(value))?, word.to_owned()))
    });
    rows.collect()
}

fn constant(text: &str) -> Option<u64> {
    if let Some((number, shift)) = text.split_once("<<") {
        let shift: u32 = constant(bare(shift))?.try_into().ok()?;
        return constant(bare(number))?.checked_shl(shift);
    }
    let digits = text.trim().trim_end_matches(['U', 'L']);
    match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// The name that `text` begins with.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// `text` without casts and parentheses around all of it.
fn bare(text: &str) -> &str {
    let mut text = text.trim();
    while text.starts_with('(') && !text.starts_with("({") {
        let Some(close) = closing(text) else {
            return text;
        };
        text = match text[close + 1..].trim() {
            "" => text[1..close].trim(),
            // A cast: a type, and what it is of.
            rest if !rest.starts_with(['?', '+', '<', '|', '&', '-', '*', '/']) => rest,
            _ => return text,
        };
    }
    text
}

/// Where the parenthesis that `text` begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(at),
            b')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// The text in the quotes that `text` begins with, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    text.trim_start().strip_prefix('"')?.split_once('"')
}

/// The pieces of `text` between those `at` that are in no parentheses, braces or quotes.
fn split(text: &str, at: u8) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let whole = rest?;
        let (piece, after) = match cut(whole, at) {
            Some((piece, after)) => (piece, Some(after)),
            None => (whole, None),
        };
        rest = after;
        Some(piece)
    })
}

/// `text` before and after the first `at` that is in no parentheses, braces or quotes.
fn cut(text: &str, at: u8) -> Option<(&str, &str)> {
    let (mut depth, mut is_text) = (0i32, false);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'(' | b'{' => depth += 1,
            b')' | b'}' => depth -= 1,
            _ if byte == at && depth == 0 => return Some((&text[..place], &text[place + 1..])),
            _ => {}
        }
    }
    None
}
