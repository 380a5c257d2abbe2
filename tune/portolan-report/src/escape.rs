//! Text of a caller's in a page.
//!
//! Names come from traces, which may have any origin: all of their contents stay text.

use std::fmt::{self, Display, Formatter, Write as _};

/// Text in an element, with the words between backticks as code.
pub(crate) struct Prose<'t>(pub(crate) &'t str);

impl Display for Prose<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.0.matches('`').count().is_multiple_of(2) {
            return Escaped(self.0).fmt(f);
        }
        for (nth, part) in self.0.split('`').enumerate() {
            let part = Escaped(part);
            match nth % 2 {
                0 => write!(f, "{part}")?,
                _ => write!(f, "<code>{part}</code>")?,
            }
        }
        Ok(())
    }
}

/// Text escaped for an element or for quotes.
pub(crate) struct Escaped<'t>(pub(crate) &'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                // Controls, and signs that turn the direction of writing behind them.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => {
                    f.write_char(char::REPLACEMENT_CHARACTER)?;
                }
                c if c.is_control() => f.write_char(char::REPLACEMENT_CHARACTER)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
