//! The compiler's intermediate code as functions of bit-vectors.
//!
//! Implements, of LLVM's Language Reference Manual, what the compiler makes of functions of numbers
//! without loops and memory: `and`, `or`, `xor`, `add`, `sub`, `mul`, shifts, `icmp`, `select`,
//! `zext`, `sext`, `trunc`, `phi`, `br`, `switch`, `ret`, `llvm.bitreverse`, `llvm.cttz`, and aliases of such
//! functions. A value that is `undef` becomes any value at all. Everything else is an error.
//!
//! Not supported: `poison`, which a shift by too much or an addition with a flag makes of a wrong
//! program: a compiler that wrote such a flag has shown that it is not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Error of a function's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeError {
    /// The function, by its name in the text.
    pub function: String,
    /// The line that cannot be read.
    pub line: String,
}

impl std::fmt::Display for CodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: cannot read: {}", self.function, self.line)
    }
}

impl std::error::Error for CodeError {}

/// Functions of a text, by their names there.
pub struct Code<'t> {
    functions: BTreeMap<&'t str, Vec<&'t str>>,
    aliases: BTreeMap<&'t str, &'t str>,
}

/// Words that say nothing of the value.
const FLAGS: [&str; 8] =
    ["nuw", "nsw", "disjoint", "exact", "samesign", "nneg", "noundef", "signext"];

impl<'t> Code<'t> {
    /// Finds the functions in a text.
    pub fn read(text: &'t str) -> Self {
        let mut code = Self { functions: BTreeMap::new(), aliases: BTreeMap::new() };
        let mut open: Option<(&str, Vec<&str>)> = None;
        let mut rest = text;
        while let Some((line, after)) = next_line(rest) {
            rest = after;
            if line.starts_with("define ") {
                open = named(line).map(|name| (name, vec![line]));
            } else if let (true, Some((name, lines))) = (line == "}", &mut open) {
                code.functions.insert(name, std::mem::take(lines));
                open = None;
            } else if let Some((_, lines)) = &mut open {
                lines.push(line);
            } else if line.starts_with('@') && line.contains(" alias ") {
                let of = line.rsplit('@').next();
                if let (Some(name), Some(of)) = (named(line), of) {
                    code.aliases.insert(name, of.trim());
                }
            }
        }
        code
    }

    /// The name in the text of the function of a module: both have their lengths before them there.
    pub fn find(&self, module: &str, function: &str) -> Option<&'t str> {
        let part = format!("{}{module}{}{function}", module.len(), function.len());
        // A longer name that begins alike has another length before it.
        let all = self.functions.keys().chain(self.aliases.keys());
        all.copied().find(|name| name.contains(&part))
    }

    /// Definition of a function, under the name `as_name`.
    pub fn define(&self, name: &str, as_name: &str) -> Result<String, CodeError> {
        let mut name = name;
        while let Some(of) = self.aliases.get(name) {
            name = of;
        }
        let error = |line: &str| CodeError { function: name.to_owned(), line: line.to_owned() };
        let lines = self.functions.get(name).ok_or_else(|| error("no such function"))?;
        let [first, lines @ ..] = lines.as_slice() else {
            return Err(error("no text"));
        };
        let body = Body::read(lines).map_err(error)?;
        let mut bindings = Bindings::new(as_name);
        for block in body.ordered().map_err(error)? {
            bindings.block(&body, block).map_err(error)?;
        }
        let width = width_before(first, '@').ok_or_else(|| error(first))?;
        let Bindings { before, lets, returned, .. } = bindings;
        let sum = match returned.as_slice() {
            [] => return Err(error("no value is returned")),
            [rest @ .., (_, last)] => rest
                .iter()
                .rev()
                .fold(last.clone(), |other, (when, value)| format!("(ite {when} {value} {other})")),
        };
        let parameters = parameters(first).ok_or_else(|| error(first))?;
        let parameters: String =
            parameters.iter().map(|(name, bits)| format!("({name} {})", sort(*bits))).collect();
        let opened: String = lets.iter().map(|one| format!("(let ({one})\n")).collect();
        let closed = ")".repeat(lets.len());
        Ok(format!(
            "{before}(define-fun {as_name} ({parameters}) {}\n{opened}{sum}{closed})\n",
            sort(width)
        ))
    }
}

/// The first line of a text and what is behind it; the cases of a `switch` belong to its line.
fn next_line(text: &str) -> Option<(&str, &str)> {
    let (line, _) = text.split_once('\n')?;
    let cases = match line.trim_start().starts_with("switch ") {
        true => text.find(']').unwrap_or(0),
        false => 0,
    };
    let end = text.get(cases..)?.find('\n')? + cases;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

/// Block of a function: its label and its lines.
struct Block<'t> {
    label: &'t str,
    lines: Vec<&'t str>,
}

struct Body<'t> {
    blocks: Vec<Block<'t>>,
}

impl<'t> Body<'t> {
    fn read(lines: &[&'t str]) -> Result<Self, &'t str> {
        let mut blocks: Vec<Block<'t>> = Vec::new();
        for line in lines {
            let line = line.split(" ;").next().unwrap_or(line).trim_end();
            let line = line.split(", !").next().unwrap_or(line);
            match line.strip_suffix(':') {
                Some(label) if !line.starts_with(' ') => {
                    blocks.push(Block { label: label.trim_matches('"'), lines: Vec::new() });
                }
                _ if line.trim().is_empty() => {}
                _ => blocks.last_mut().ok_or(line)?.lines.push(line.trim()),
            }
        }
        Ok(Self { blocks })
    }

    /// Blocks, each after all that lead to it.
    fn ordered(&self) -> Result<Vec<&Block<'t>>, &'t str> {
        let mut left: Vec<&Block<'t>> = self.blocks.iter().collect();
        let mut order: Vec<&Block<'t>> = Vec::new();
        while !left.is_empty() {
            let free = |block: &&Block<'t>| {
                !left.iter().any(|other| targets(other).contains(&block.label))
            };
            let place = left.iter().position(free).ok_or("a loop")?;
            order.push(left.remove(place));
        }
        Ok(order)
    }
}

/// Labels that a block's last line leads to.
fn targets<'t>(block: &Block<'t>) -> Vec<&'t str> {
    let last = block.lines.last().copied().unwrap_or("");
    let labels = last.split("label %").skip(1);
    let end = |text: &'t str| text.split([',', ' ', '\n']).next().unwrap_or(text).trim_matches('"');
    labels.map(end).collect()
}

/// Names and values of a function, as it is read.
struct Bindings {
    name: String,
    /// Constants that any value may be of.
    before: String,
    lets: Vec<String>,
    /// Conditions and values of the ends.
    returned: Vec<(String, String)>,
}

impl Bindings {
    fn new(name: &str) -> Self {
        let (before, name) = (String::new(), name.to_owned());
        Self { name, before, lets: Vec::new(), returned: Vec::new() }
    }

    fn block<'t>(&mut self, body: &Body<'t>, block: &Block<'t>) -> Result<(), &'t str> {
        let ways = body.blocks.iter().flat_map(|from| {
            let to = targets(from).into_iter().filter(|label| *label == block.label);
            to.map(|label| edge(from.label, label)).collect::<Vec<_>>()
        });
        let mut ways: Vec<String> = ways.collect();
        ways.dedup();
        let when = match ways.as_slice() {
            [] => "true".to_owned(),
            [only] => only.clone(),
            many => format!("(or {})", many.join(" ")),
        };
        self.lets.push(format!("({} {when})", at(block.label)));
        for line in &block.lines {
            let lets = self.line(block.label, line).ok_or(*line)?;
            self.lets.extend(lets);
        }
        Ok(())
    }

    /// Definitions that an instruction makes.
    fn line(&mut self, label: &str, line: &str) -> Option<Vec<String>> {
        let text = line.replace(',', " , ").replace('[', " [ ").replace(']', " ] ");
        let words: Vec<&str> =
            text.split_whitespace().filter(|word| !FLAGS.contains(word)).collect();
        let here = at(label);
        Some(match words.as_slice() {
            ["ret", of, value] => {
                let value = self.value(value, bits(of)?)?;
                self.returned.push((here, value));
                Vec::new()
            }
            ["br", "label", to] => vec![format!("({} {here})", edge(label, to))],
            ["br", "i1", when, ",", "label", yes, ",", "label", no] => {
                let when = self.value(when, 1)?;
                let go = |to: &str, bit: u8| {
                    format!("({} (and {here} (= {when} #b{bit})))", edge(label, to))
                };
                vec![go(yes, 1), go(no, 0)]
            }
            ["switch", of, value, ",", "label", other, "[", cases @ .., "]"] => {
                self.switch(label, bits(of)?, value, other, cases)?
            }
            [name, "=", rest @ ..] => {
                let value = self.operation(label, rest)?;
                vec![format!("({} {value})", symbol(name))]
            }
            _ => return None,
        })
    }

    fn switch(
        &mut self,
        label: &str,
        bits: u32,
        value: &str,
        other: &str,
        cases: &[&str],
    ) -> Option<Vec<String>> {
        let (here, value) = (at(label), self.value(value, bits)?);
        let mut ways: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut all = Vec::new();
        // A case is a width, a number, a comma, the word "label", and the label.
        for case in cases.chunks(5) {
            let [_, number, ",", "label", to] = case else {
                return None;
            };
            let same = format!("(= {value} {})", self.value(number, bits)?);
            all.push(same.clone());
            ways.entry(edge(label, to)).or_default().push(same);
        }
        ways.entry(edge(label, other)).or_default().push(format!("(not (or {}))", all.join(" ")));
        let each = ways.into_iter();
        Some(
            each.map(|(way, when)| format!("({way} (and {here} (or {})))", when.join(" ")))
                .collect(),
        )
    }

    fn operation(&mut self, label: &str, words: &[&str]) -> Option<String> {
        let two = |name: &str, left: &str, right: &str| format!("({name} {left} {right})");
        Some(match words {
            ["icmp", how, of, left, ",", right] => {
                let bits = bits(of)?;
                let (left, right) = (self.value(left, bits)?, self.value(right, bits)?);
                let test = match *how {
                    "eq" => two("=", &left, &right),
                    "ne" => two("distinct", &left, &right),
                    "ult" | "ule" | "ugt" | "uge" | "slt" | "sle" | "sgt" | "sge" => {
                        two(&format!("bv{how}"), &left, &right)
                    }
                    _ => return None,
                };
                format!("(ite {test} #b1 #b0)")
            }
            ["select", "i1", when, ",", of, yes, ",", also, no] if of == also => {
                let (when, bits) = (self.value(when, 1)?, bits(of)?);
                let (yes, no) = (self.value(yes, bits)?, self.value(no, bits)?);
                format!("(ite (= {when} #b1) {yes} {no})")
            }
            [how @ ("zext" | "sext" | "trunc"), of, value, "to", to] => {
                let (from, to) = (bits(of)?, bits(to)?);
                let value = self.value(value, from)?;
                match *how {
                    "zext" => format!("((_ zero_extend {}) {value})", to.checked_sub(from)?),
                    "sext" => format!("((_ sign_extend {}) {value})", to.checked_sub(from)?),
                    _ => format!("((_ extract {} 0) {value})", to.checked_sub(1)?),
                }
            }
            ["phi", of, ways @ ..] => self.phi(label, bits(of)?, ways)?,
            ["tail", "call", of, call, value] if call.starts_with("@llvm.bitreverse.") => {
                let bits = bits(of)?;
                let value = self.value(value.strip_suffix(')')?, bits)?;
                let each = (0..bits).map(|bit| format!(" ((_ extract {bit} {bit}) {value})"));
                format!("(concat{})", each.collect::<String>())
            }
            ["tail", "call", .., of, call, value, ",", "i1", _]
                if call.starts_with("@llvm.cttz.") =>
            {
                let bits = bits(of)?;
                let value = self.value(value, bits)?;
                (0..bits).rev().fold(format!("(_ bv{bits} {bits})"), |zeros, bit| {
                    let is_set = format!("(= ((_ extract {bit} {bit}) {value}) #b1)");
                    format!("(ite {is_set} (_ bv{bit} {bits}) {zeros})")
                })
            }
            [name, of, left, ",", right] => {
                let operation = OPERATIONS.iter().find(|(known, _)| known == name)?.1;
                let bits = bits(of)?;
                two(operation, &self.value(left, bits)?, &self.value(right, bits)?)
            }
            _ => return None,
        })
    }

    fn phi(&mut self, label: &str, bits: u32, ways: &[&str]) -> Option<String> {
        let mut values = Vec::new();
        // A way is a value and the label that it comes from, in brackets, and a comma if one follows.
        for way in ways.split(|word| *word == "]") {
            match way {
                [] => {}
                ["[", value, ",", from] | [",", "[", value, ",", from] => {
                    values.push((edge_from(from, label), self.value(value, bits)?));
                }
                _ => return None,
            }
        }
        let (_, last) = values.pop()?;
        Some(
            values
                .iter()
                .rev()
                .fold(last, |other, (when, value)| format!("(ite {when} {value} {other})")),
        )
    }

    fn value(&mut self, word: &str, bits: u32) -> Option<String> {
        match word {
            "true" => return Some("#b1".to_owned()),
            "false" => return Some("#b0".to_owned()),
            "undef" => {
                let number = self.before.matches("declare-const").count();
                let name = format!("|{}!{number}|", self.name);
                let _ = writeln!(self.before, "(declare-const {name} {})", sort(bits));
                return Some(name);
            }
            _ => {}
        }
        if word.starts_with('%') {
            return Some(symbol(word));
        }
        let number: i128 = word.parse().ok()?;
        let mask = u128::MAX >> 128_u32.checked_sub(bits)?;
        Some(format!("(_ bv{} {bits})", number as u128 & mask))
    }
}

const OPERATIONS: [(&str, &str); 9] = [
    ("and", "bvand"),
    ("or", "bvor"),
    ("xor", "bvxor"),
    ("add", "bvadd"),
    ("sub", "bvsub"),
    ("mul", "bvmul"),
    ("shl", "bvshl"),
    ("lshr", "bvlshr"),
    ("ashr", "bvashr"),
];

fn symbol(name: &str) -> String {
    format!("|{}|", name.replace('"', ""))
}

/// The condition under which a block is reached.
fn at(label: &str) -> String {
    format!("|at {label}|")
}

fn edge(from: &str, to: &str) -> String {
    format!("|{from} to {}|", to.trim_start_matches('%').trim_matches('"'))
}

fn edge_from(from: &str, to: &str) -> String {
    edge(from.trim_start_matches('%').trim_matches('"'), to)
}

fn sort(bits: u32) -> String {
    format!("(_ BitVec {bits})")
}

/// Width of a type: `i64`.
fn bits(of: &str) -> Option<u32> {
    of.strip_prefix('i')?.parse().ok().filter(|bits| (1..=64).contains(bits))
}

/// The name after the first `@`.
fn named(line: &str) -> Option<&str> {
    let rest = line.split_once('@')?.1;
    rest.split(['(', ' ', '=']).next().filter(|name| !name.is_empty())
}

/// Width of the type that stands before a sign.
fn width_before(line: &str, sign: char) -> Option<u32> {
    bits(line.split(sign).next()?.split_whitespace().last()?)
}

/// Names and widths of a function's parameters.
fn parameters(line: &str) -> Option<Vec<(String, u32)>> {
    let list = line.split_once('@')?.1.split_once('(')?.1;
    // Attributes of a parameter may have brackets: the list ends where its own is closed.
    let mut depth = 1;
    let end = list.find(|sign| {
        depth += match sign {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    })?;
    let list = list.get(..end)?;
    let mut parameters = Vec::new();
    let words: Vec<&str> = list.split([' ', ',']).collect();
    let mut width = None;
    for word in words {
        if let Some(bits) = bits(word) {
            width = width.or(Some(bits));
        } else if word.starts_with('%') {
            parameters.push((symbol(word), width.take()?));
        }
    }
    Some(parameters)
}
