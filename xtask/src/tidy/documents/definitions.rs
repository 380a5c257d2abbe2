//! Names that the workspace's Rust files define, read token by token.
//!
//! A type has each word that stands directly in its declaration or in a block `impl` of it. That
//! takes in too much, such as the types of fields, and leaves nothing out. Types with one name count as one.

use std::collections::{BTreeMap, BTreeSet};

/// Keywords before the name that they define.
const DEFINING: &[&str] =
    &["fn", "const", "static", "type", "mod", "struct", "enum", "trait", "union", "macro_rules"];
/// Keywords whose block has items of the name.
const WITH_ITEMS: &[&str] = &["struct", "enum", "trait", "union"];
/// Most aliases and traits that lead from a type to an item.
const MOST_STEPS: usize = 4;

/// Names with the places of their definitions.
#[derive(Debug, Default)]
pub(super) struct Definitions<'a> {
    /// Every word of code, with those in macros.
    words: BTreeSet<&'a str>,
    defined: BTreeSet<&'a str>,
    functions: BTreeMap<&'a str, BTreeSet<&'a str>>,
    items: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// Traits of a type, and the types behind an alias.
    behind: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// Types that a macro writes: their items are words of the file.
    written: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Definitions<'a> {
    /// Reads `sources`, as path and text.
    pub(super) fn of(sources: &'a [(String, String)]) -> Self {
        let mut found = Self::default();
        for (path, text) in sources {
            Reader::new(&mut found, path, tokens(text)).read();
        }
        found
    }

    /// Tells if code has the word: as a type, a variant, or anything else.
    pub(super) fn is_word(&self, name: &str) -> bool {
        self.words.contains(name)
    }

    pub(super) fn any_word(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.words.iter().any(|word| fits(word))
    }

    pub(super) fn is_defined(&self, name: &str) -> bool {
        self.defined.contains(name)
    }

    pub(super) fn is_type(&self, name: &str) -> bool {
        self.items.contains_key(name) || self.behind.contains_key(name)
    }

    pub(super) fn is_function_of(&self, path: &str, name: &str) -> bool {
        self.functions.get(path).is_some_and(|all| all.contains(name))
    }

    /// Tells if a type, its traits or the type that it is an alias of has an item.
    pub(super) fn has_item(&self, of: &str, item: &str) -> bool {
        let mut names = BTreeSet::from([of]);
        for _ in 0..MOST_STEPS {
            let has = |name: &&str| {
                let lists = [self.items.get(name), self.written.get(name)];
                lists.into_iter().flatten().any(|list| list.contains(item))
            };
            if names.iter().any(has) {
                return true;
            }
            let more = names.iter().filter_map(|name| self.behind.get(name));
            let more: Vec<&str> = more.flatten().copied().collect();
            names.extend(more);
        }
        false
    }
}

/// Tokens of code: words or single characters.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let length = match byte {
            _ if rest.starts_with(b"//") => rest.iter().take_while(|b| **b != b'\n').count(),
            _ if rest.starts_with(b"/*") => after(rest, b"*/"),
            b'r' if rest.starts_with(b"r\"") => 1 + after(&rest[1..], b"\""),
            b'r' if rest.starts_with(b"r#\"") => after(rest, b"\"#"),
            b'"' => string(rest),
            b'\'' => character(rest),
            _ if is_word(byte) => {
                let length = rest.iter().take_while(|byte| is_word(byte)).count();
                found.push(&text[at..at + length]);
                length
            }
            _ if byte.is_ascii_whitespace() || !byte.is_ascii() => 1,
            _ => {
                found.push(&text[at..=at]);
                1
            }
        };
        at += length;
    }
    found
}

/// The length up to the end of `mark`, which does not begin at once.
fn after(rest: &[u8], mark: &[u8]) -> usize {
    let found = rest[1..].windows(mark.len()).position(|part| part == mark);
    found.map_or(rest.len(), |at| 1 + at + mark.len())
}

/// The length of a string with its quotes.
fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a character with its quotes, or of a lifetime.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return 2 + after(&rest[2..], b"'");
    }
    let word =
        rest.iter().skip(1).take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
    match (word.count(), rest.iter().skip(2).take(4).position(|byte| *byte == b'\'')) {
        // One character, of up to four bytes.
        (_, Some(at)) if at == 0 || !rest[1].is_ascii() => at + 3,
        (length, _) => 1 + length,
    }
}

struct Reader<'r, 'a> {
    found: &'r mut Definitions<'a>,
    path: &'a str,
    tokens: Vec<&'a str>,
    /// The type that each open block belongs to.
    blocks: Vec<Option<&'a str>>,
    /// The type that the next block belongs to.
    next: Option<&'a str>,
    /// Number of blocks that are open around a macro's rules.
    rules: Option<usize>,
}

impl<'r, 'a> Reader<'r, 'a> {
    fn new(found: &'r mut Definitions<'a>, path: &'a str, tokens: Vec<&'a str>) -> Self {
        let (blocks, next, rules) = (Vec::new(), None, None);
        Self { found, path, tokens, blocks, next, rules }
    }

    fn read(&mut self) {
        let is_name = |token: &&&str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let words: BTreeSet<&str> = self.tokens.iter().filter(is_name).copied().collect();
        let mut of_macros = Vec::new();
        for at in 0..self.tokens.len() {
            let token = self.tokens[at];
            match token {
                "{" => self.blocks.push(self.next.take()),
                "}" => {
                    self.blocks.pop();
                    self.rules = self.rules.filter(|around| self.blocks.len() > *around);
                }
                ";" => self.next = None,
                "impl" if self.begins_item(at) => self.implementation(at + 1),
                _ if DEFINING.contains(&token) => {
                    self.definition(at);
                    if self.rules.is_some() && WITH_ITEMS.contains(&token) {
                        of_macros.extend(self.next);
                    }
                }
                _ => {}
            }
            if let (Some(Some(of)), true) = (self.blocks.last(), words.contains(token)) {
                self.found.items.entry(of).or_default().insert(token);
            }
        }
        for name in of_macros {
            self.found.written.entry(name).or_default().extend(&words);
        }
        self.found.words.extend(words);
    }

    /// Tells if the token begins an item, and is not a type's part.
    fn begins_item(&self, at: usize) -> bool {
        let before = at.checked_sub(1).map(|before| self.tokens[before]);
        before.is_none_or(|before| ["}", ";", "]", "{", "unsafe", ">"].contains(&before))
            && !(before == Some(">") && at > 1 && self.tokens[at - 2] == "-")
    }

    /// Notes the name behind a keyword.
    fn definition(&mut self, at: usize) {
        let (keyword, mut name_at) = (self.tokens[at], at + 1);
        while matches!(self.tokens.get(name_at), Some(&"!" | &"mut")) {
            name_at += 1;
        }
        let Some(&name) = self.tokens.get(name_at) else {
            return;
        };
        if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return;
        }
        self.found.defined.insert(name);
        match keyword {
            "fn" => {
                self.next = None;
                self.found.functions.entry(self.path).or_default().insert(name);
            }
            "mod" => self.next = None,
            "macro_rules" => self.rules = self.rules.or(Some(self.blocks.len())),
            "type" => {
                let rest = self.tokens[name_at..]
                    .iter()
                    .take_while(|token| **token != ";")
                    .skip_while(|token| **token != "=")
                    .copied();
                self.found.behind.entry(name).or_default().extend(rest);
            }
            _ if WITH_ITEMS.contains(&keyword) => {
                self.found.items.entry(name).or_default();
                self.next = Some(name);
            }
            _ => {}
        }
    }

    /// Notes the trait and the type of a block `impl`, from behind the keyword.
    fn implementation(&mut self, from: usize) {
        let (mut depth, mut of, mut of_trait) = (0_usize, None, None);
        for (at, &token) in self.tokens.iter().enumerate().skip(from) {
            match token {
                "{" | ";" | "where" => break,
                "<" => depth += 1,
                ">" if self.tokens[at - 1] != "-" => depth = depth.saturating_sub(1),
                "for" if depth == 0 => (of_trait, of) = (of, None),
                _ if depth == 0 && token.starts_with(|c: char| c.is_alphabetic()) => {
                    of = Some(token)
                }
                _ => {}
            }
        }
        self.next = of;
        if let Some(of) = of {
            self.found.items.entry(of).or_default();
            self.found.behind.entry(of).or_default().extend(of_trait);
        }
    }
}
