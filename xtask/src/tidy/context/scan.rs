//! Declarations of a file, read line by line: public functions, types, traits, modules, and those of them
//! whose documentation has a line on the context of calling.
//!
//! It reads source that rustfmt has formatted. It does not know block comments and strings of
//! several lines; where braces do not balance because of one, [`Declared::balance`] tells.

use super::MARK;
use crate::tidy::rules::code_of;

/// Declarations of a file.
#[derive(Debug, Default)]
pub(in crate::tidy) struct Declared {
    /// The header of the file has the line.
    pub(super) said: bool,
    /// The whole file is for tests.
    pub(super) test: bool,
    pub(super) functions: Vec<Function>,
    pub(in crate::tidy) types: Vec<Type>,
    /// Names of the traits.
    pub(in crate::tidy) traits: Vec<String>,
    /// Modules in files of their own that are for tests.
    pub(super) test_modules: Vec<String>,
    pub(super) balance: Balance,
}

/// A function that is public as written, or of a trait that is.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) line: usize,
    pub(super) name: String,
    /// The function, or a block that it is in, has the line.
    pub(super) said: bool,
    /// The type whose `impl` block it is in.
    pub(super) of: Option<String>,
}

#[derive(Debug)]
pub(in crate::tidy) struct Type {
    pub(in crate::tidy) name: String,
    pub(super) said: bool,
}

/// Tells if each block that begins also ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Balance {
    #[default]
    Kept,
    Lost,
}

/// Reads a file.
pub(super) fn scan(text: &str) -> Declared {
    let mut scanner = Scanner::default();
    for (number, line) in (1..).zip(text.lines()) {
        scanner.line(number, line);
    }
    if !scanner.blocks.is_empty() {
        scanner.declared.balance = Balance::Lost;
    }
    scanner.declared
}

#[derive(Debug)]
enum BlockKind {
    Impl(String),
    PublicTrait,
    Module,
    Other,
}

/// A block in braces that is open.
#[derive(Debug)]
struct Block {
    kind: BlockKind,
    said: bool,
    test: bool,
}

#[derive(Default)]
struct Scanner {
    declared: Declared,
    blocks: Vec<Block>,
    /// The documentation, since the last item, has the line.
    said: bool,
    /// An attribute, since the last item, makes the next one for tests.
    test: bool,
    /// Text of an item so far, up to its block or semicolon, and the number of its first line.
    head: String,
    begins: usize,
    /// Parentheses and brackets that are open in the head.
    parentheses: usize,
    /// Text of an attribute so far.
    attribute: Option<String>,
}

impl Scanner {
    fn line(&mut self, number: usize, line: &str) {
        let trimmed = line.trim_start();
        if trimmed.starts_with("///") {
            self.said |= trimmed.contains(MARK);
            return;
        }
        if trimmed.starts_with("//!") {
            if trimmed.contains(MARK) {
                let inner = self.blocks.last_mut().map(|block| &mut block.said);
                *inner.unwrap_or(&mut self.declared.said) = true;
            }
            return;
        }
        for c in code_of(line).trim_start().chars().chain([' ']) {
            self.character(number, c);
        }
    }

    fn character(&mut self, number: usize, c: char) {
        if let Some(attribute) = &mut self.attribute {
            attribute.push(c);
            let count = |bracket| attribute.chars().filter(|c| *c == bracket).count();
            if c == ']' && count('[') == count(']') {
                self.attribute_ends();
            }
            return;
        }
        let blank = self.head.is_empty();
        match c {
            '#' if blank => self.attribute = Some(c.to_string()),
            '{' => self.block_begins(),
            '}' => self.block_ends(),
            ';' if self.parentheses == 0 => {
                self.item();
            }
            c if blank && c.is_whitespace() => {}
            c => {
                match c {
                    '(' | '[' => self.parentheses += 1,
                    ')' | ']' => self.parentheses = self.parentheses.saturating_sub(1),
                    _ => {}
                }
                if blank {
                    self.begins = number;
                }
                self.head.push(c);
            }
        }
    }

    fn attribute_ends(&mut self) {
        match self.attribute.take().as_deref() {
            Some("#[cfg(test)]") => self.test = true,
            Some("#![cfg(test)]") => self.declared.test = true,
            _ => {}
        }
    }

    fn block_begins(&mut self) {
        let said = self.said;
        let test = self.test || self.blocks.last().is_some_and(|block| block.test);
        let kind = self.item();
        self.blocks.push(Block {
            // The line of a function, or of a macro, does not count for the items in it.
            said: said && !matches!(kind, BlockKind::Other),
            kind,
            test,
        });
    }

    fn block_ends(&mut self) {
        self.next_item();
        if self.blocks.pop().is_none() {
            self.declared.balance = Balance::Lost;
        }
    }

    fn next_item(&mut self) {
        self.head.clear();
        self.parentheses = 0;
        (self.said, self.test) = (false, false);
    }

    /// Notes the item whose head has been read; returns the kind of its block.
    fn item(&mut self) -> BlockKind {
        let test = self.test || self.blocks.last().is_some_and(|block| block.test);
        let head = self.head.clone();
        let kind = if let Some((before, name)) = named(&head, "fn") {
            if !test && self.is_public_here(before) {
                self.function(name);
            }
            BlockKind::Other
        } else if let Some((before, name)) = named(&head, "trait") {
            if !test {
                self.declared.traits.push(name.to_owned());
            }
            if is_public(before) { BlockKind::PublicTrait } else { BlockKind::Other }
        } else if let Some((_, name)) = named(&head, "mod") {
            // Its file, if it has one, is read for itself.
            if test {
                self.declared.test_modules.push(name.to_owned());
            }
            BlockKind::Module
        } else if let Some(of) = implemented(&head) {
            BlockKind::Impl(of)
        } else {
            let mut kinds = ["struct", "enum", "union"].iter();
            if let Some((_, name)) = kinds.find_map(|kind| named(&head, kind)).filter(|_| !test) {
                let (name, said) = (name.to_owned(), self.said);
                self.declared.types.push(Type { name, said });
            }
            BlockKind::Other
        };
        self.next_item();
        kind
    }

    /// Tells if a function with `before` in front of `fn` is public.
    fn is_public_here(&self, before: &str) -> bool {
        let within = self.blocks.last().map(|block| &block.kind);
        matches!(within, Some(BlockKind::PublicTrait)) || is_public(before)
    }

    fn function(&mut self, name: &str) {
        let of = match self.blocks.last().map(|block| &block.kind) {
            Some(BlockKind::Impl(of)) => Some(of.clone()),
            _ => None,
        };
        self.declared.functions.push(Function {
            line: self.begins,
            name: name.to_owned(),
            said: self.said || self.blocks.iter().any(|block| block.said),
            of,
        });
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Text before a keyword, and text behind it.
fn around<'a>(head: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    head.match_indices(keyword).find_map(|(at, _)| {
        let (before, behind) = (&head[..at], &head[at + keyword.len()..]);
        (!before.ends_with(is_of_name)).then_some((before, behind))
    })
}

/// Text before a keyword, and the name behind it.
fn named<'a>(head: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    let (before, behind) = around(head, keyword)?;
    Some((before, first_name(behind.strip_prefix(' ')?)))
}

fn first_name(text: &str) -> &str {
    let end = text.find(|c| !is_of_name(c));
    &text[..end.unwrap_or(text.len())]
}

/// Tells if the text before `fn` or `trait` makes it public for all.
fn is_public(before: &str) -> bool {
    let qualifiers = ["const", "async", "unsafe", "extern"];
    let mut words = before.split_whitespace().rev();
    words.find(|word| !qualifiers.contains(word)) == Some("pub")
}

/// The type that an `impl` block is for; an `impl` of a trait does not count, because the trait states the context.
fn implemented(head: &str) -> Option<String> {
    let rest = without_generics(around(head, "impl")?.1);
    let path = rest.split(" where ").next()?.trim();
    let name = path.split("::").last()?;
    Some(first_name(name).to_owned())
}

/// A text without the parts in angle brackets.
fn without_generics(text: &str) -> String {
    let (mut depth, mut kept, mut last) = (0usize, String::new(), ' ');
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            '>' if last == '-' => {}
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 => kept.push(c),
            _ => {}
        }
        last = c;
    }
    kept
}
