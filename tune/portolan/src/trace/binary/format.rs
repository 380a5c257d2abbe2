//! The kernel's description of one event: `format` in its folder of tracefs.
//!
//! Implements the form of Linux' `format` files (kernel/trace/trace_events.c, `f_show`): a
//! name, a number, fields with offset, size and sign, and the text's recipe, which [`super::recipe`]
//! reads. Not supported: bit fields.

use std::ops::Range;

/// Fields of one event beyond which a description is not believed.
const MOST_FIELDS: usize = 256;

/// Form in which a field holds its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldShape {
    /// A number.
    Number { signed: bool },
    /// Text of a fixed length.
    Text,
    /// Numbers in a row.
    Array,
    /// Offset and length of a value that follows the fields.
    Located {
        /// The offset counts from the end of the field, not from the beginning of the record.
        relative: bool,
    },
}

/// A field of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventField {
    pub(super) name: Box<str>,
    pub(super) offset: usize,
    pub(super) size: usize,
    /// Bytes of an element, if there are several.
    pub(super) element: usize,
    pub(super) shape: FieldShape,
    /// True if it holds a kernel address.
    pub(super) is_pointer: bool,
}

/// An event's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) name: Box<str>,
    pub(super) id: u16,
    pub(super) fields: Vec<EventField>,
    /// Text behind `print fmt:`.
    pub(super) recipe: Box<str>,
}

impl Format {
    /// Reads a description; `None` if it is not one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (mut name, mut id, mut recipe) = (None, None, "");
        let mut fields = Vec::new();
        for line in text.lines() {
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("name:") {
                name = Some(rest.trim());
            } else if let Some(rest) = line.strip_prefix("ID:") {
                id = rest.trim().parse().ok();
            } else if let Some(rest) = line.strip_prefix("print fmt:") {
                recipe = rest.trim();
            } else if line.starts_with("field") && fields.len() < MOST_FIELDS {
                fields.extend(EventField::parse(line));
            }
        }
        Some(Self {
            name: name.filter(|name| is_word(name))?.into(),
            id: id?,
            fields,
            recipe: recipe.into(),
        })
    }

    /// The number in a description, without reading the rest.
    pub(super) fn id_of(text: &str) -> Option<u16> {
        let line = text.lines().find_map(|line| line.strip_prefix("ID:"))?;
        line.trim().parse().ok()
    }

    pub(super) fn field(&self, name: &str) -> Option<&EventField> {
        self.fields.iter().find(|field| &*field.name == name)
    }
}

/// Names go into lines that are read again: nothing in them may end a word.
fn is_word(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-' || b == b'.';
    !name.is_empty() && name.bytes().all(plain)
}

impl EventField {
    /// Reads `field:__data_loc char[] device; offset:8; size:4; signed:0;`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split(';').map(str::trim);
        let (_, declared) = parts.next()?.split_once(':')?;
        let (mut offset, mut size, mut signed) = (None, None, false);
        for (key, value) in parts.filter_map(|part| part.split_once(':')) {
            match key {
                "offset" => offset = value.parse().ok(),
                "size" => size = value.parse().ok(),
                "signed" => signed = value == "1",
                _ => {}
            }
        }
        let (size, declared): (usize, _) = (size?, declared.trim());
        let at = declared.rfind([' ', '*']).map_or(0, |space| space + 1);
        let (kind, name) = declared.split_at(at);
        let (name, length) = match name.split_once('[') {
            Some((name, length)) => (name, length.trim_end_matches(']').parse::<usize>().ok()),
            None => (name, None),
        };
        let located = kind.starts_with("__data_loc") || kind.starts_with("__rel_loc");
        let is_text = kind.split([' ', '[']).any(|word| word == "char");
        let (element, shape) = match length {
            _ if located => {
                let relative = kind.starts_with("__rel_loc");
                (element_size(kind), FieldShape::Located { relative })
            }
            Some(_) if is_text && !kind.contains("unsigned") => (1, FieldShape::Text),
            Some(length) if length > 0 => (size / length, FieldShape::Array),
            _ if size <= 8 => (size, FieldShape::Number { signed }),
            _ => (1, FieldShape::Array),
        };
        Some(Self {
            name: name.into(),
            offset: offset?,
            size,
            element: element.max(1),
            shape,
            is_pointer: kind.contains('*'),
        })
    }

    /// The value's bytes in `record`.
    pub(super) fn bytes<'r>(&self, record: &'r [u8]) -> Option<&'r [u8]> {
        let end = self.offset.checked_add(self.size)?;
        let own = record.get(self.offset..end)?;
        let FieldShape::Located { relative } = self.shape else {
            return Some(own);
        };
        let place = u32::from_le_bytes(own.try_into().ok()?);
        let start = (place & 0xffff) as usize + if relative { end } else { 0 };
        let range: Range<usize> = start..start + (place >> 16) as usize;
        record.get(range)
    }

    /// The value, if it is a number.
    pub(super) fn number(&self, record: &[u8]) -> Option<i128> {
        match self.shape {
            FieldShape::Number { signed } => number(self.bytes(record)?, signed),
            _ => None,
        }
    }
}

/// A number of up to eight bytes.
pub(super) fn number(bytes: &[u8], signed: bool) -> Option<i128> {
    if bytes.is_empty() || bytes.len() > 8 {
        return None;
    }
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(whole);
    let unused = 64 - 8 * bytes.len() as u32;
    Some(if signed { i128::from(((value << unused) as i64) >> unused) } else { i128::from(value) })
}

/// Bytes of an element of `__data_loc u64[] `.
fn element_size(kind: &str) -> usize {
    let words = || kind.split([' ', '[', ']']).filter(|word| !word.is_empty());
    let has = |sizes: &[&str]| words().any(|word| sizes.contains(&word));
    if has(&["u64", "s64", "__u64", "long", "size_t", "dma_addr_t", "phys_addr_t"]) {
        8
    } else if has(&["char", "u8", "s8", "__u8", "bool"]) {
        1
    } else if has(&["short", "u16", "s16", "__u16"]) {
        2
    } else {
        4
    }
}
