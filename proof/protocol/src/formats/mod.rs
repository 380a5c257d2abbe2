//! Entries of all table formats, for all 64-bit inputs.
//!
//! [`code`] makes formulas of the compiler's intermediate code of `portolan-formats`, which is the
//! library's source; [`naive`] has formulas from the specifications; [`claims`] says how they agree.

pub mod claims;
pub mod code;
pub mod naive;

use std::fmt::Write as _;

use portolan_formats::{Call, Subject};

use crate::smt::{Answer, ProveError, Script};
use claims::{Question, questions};
use code::{Code, CodeError};
use naive::Naive;

/// Error of a proof of formats.
#[derive(Debug)]
pub enum FormatError {
    /// A function cannot be read.
    Code(CodeError),
    /// Z3 does not answer.
    Prove(ProveError),
}

impl std::fmt::Display for FormatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(error) => write!(f, "{error}"),
            Self::Prove(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for FormatError {}

impl From<CodeError> for FormatError {
    fn from(error: CodeError) -> Self {
        Self::Code(error)
    }
}

impl From<ProveError> for FormatError {
    fn from(error: ProveError) -> Self {
        Self::Prove(error)
    }
}

/// Outcome of the questions about one format.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of claims that are proved.
    pub proved: usize,
    /// Claims that are refuted, with the level of the entry.
    pub refuted: Vec<String>,
    /// Claims without an answer, and those whose premises no entry has.
    pub open: Vec<String>,
}

/// Has Z3 answer all questions about a format.
pub fn prove(code: &Code<'_>, subject: &Subject) -> Result<Outcome, FormatError> {
    let mut script = Script::plain(&definitions(code, subject)?);
    let all = questions(subject);
    all.iter().for_each(|one| script.ask_both(&one.premises, &one.conclusion));
    let answers = script.answers()?;
    let mut outcome = Outcome::default();
    for (question, pair) in all.iter().zip(answers.chunks(2)) {
        let Question { says, level, .. } = question;
        let name = format!("{says}, level {level}");
        match pair {
            [Answer::Refuted, Answer::Proved] => outcome.proved += 1,
            [Answer::Refuted, Answer::Refuted] => outcome.refuted.push(name),
            _ => outcome.open.push(name),
        }
    }
    Ok(outcome)
}

/// Functions of the code, and those of the specification for each level.
fn definitions(code: &Code<'_>, subject: &Subject) -> Result<String, FormatError> {
    let mut text = String::new();
    for name in ["a", "pa", "raw", "i"] {
        let _ = writeln!(text, "(declare-const {name} (_ BitVec 64))");
    }
    for (function, _) in subject.functions {
        let missing = || CodeError {
            function: format!("{}::{function}", subject.name),
            line: "no such function".to_owned(),
        };
        let name = code.find(subject.name, function).ok_or_else(missing)?;
        text.push_str(&code.define(name, function)?);
    }
    for level in 0..=claims::top(subject) {
        let naive = Naive::of(subject, level);
        let mut define = |name: &str, sort: &str, is: &str| {
            let _ = writeln!(text, "(define-fun {name}{level} ((e (_ BitVec 64))) {sort} {is})");
        };
        define("present", "Bool", &naive.present);
        define("page", "Bool", &naive.leaf);
        define("strange", "Bool", &naive.foreign);
        let (leaf, table) = (&naive.reserved_leaf, &naive.reserved_table);
        define("refused", "Bool", &format!("(ite {} {leaf} {table})", naive.leaf));
        define("leads", "(_ BitVec 64)", &naive.address);
        define("allows", "(_ BitVec 64)", &flags(&naive.access));
        define("through", "(_ BitVec 64)", &flags(&naive.through));
        define("written", "(_ BitVec 64)", &naive.written);
        define("marks", "Bool", &naive.marks);
    }
    Ok(text)
}

/// Number of the flags: read, write, execute, device.
fn flags(of: &[String]) -> String {
    let each = of
        .iter()
        .enumerate()
        .map(|(place, is)| format!("(ite {is} (_ bv{} 64) (_ bv0 64))", 1 << place));
    format!("(bvor {})", each.collect::<Vec<_>>().join(" "))
}

/// Inputs on which the formulas are compared with the code.
const SAMPLES: usize = 48;

/// Compares the formulas with the functions as they run; returns the number of comparisons, or the
/// function that differs.
pub fn compare(code: &Code<'_>, subject: &Subject) -> Result<Result<usize, String>, FormatError> {
    let mut script = Script::plain(&definitions(code, subject)?);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (name, call) in subject.functions {
        let same = (0..SAMPLES).map(|sample| {
            let (first, second) = (random.input(sample), random.input(sample + 1));
            let (level, part) = (random.next() % 5, random.next() % 16);
            let (inputs, value) = match call {
                Call::One(run) => (vec![first], run(first)),
                Call::Two(run) if *name == "parted" => (vec![first, part], run(first, part)),
                Call::Two(run) => (vec![first, level], run(first, level)),
                Call::Three(run) => (vec![first, second, level], run(first, second, level)),
            };
            let inputs: String = inputs.iter().map(|one| format!(" (_ bv{one} 64)")).collect();
            format!("(= ({name}{inputs}) (_ bv{value} 64))")
        });
        script.ask_both("true", &format!("(and {})", same.collect::<Vec<_>>().join(" ")));
    }
    let answers = script.answers()?;
    let differs = answers.chunks(2).position(|pair| pair != [Answer::Refuted, Answer::Proved]);
    Ok(match differs {
        Some(place) => Err(subject.functions[place].0.to_owned()),
        None => Ok(SAMPLES * subject.functions.len()),
    })
}

/// Numbers that are always the same (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Dense and sparse numbers, and those of one bit.
    fn input(&mut self, sample: usize) -> u64 {
        let (one, two) = (self.next(), self.next());
        match sample % 4 {
            0 => one,
            1 => one & two,
            2 => one | two,
            _ => 1 << (one % 64),
        }
    }
}
