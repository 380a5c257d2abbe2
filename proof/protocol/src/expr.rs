//! Formulas of the protocol: their text, which is SMT-LIB's, and the tree that is evaluated.
//!
//! Operators: `and`, `or`, `not`, `=>`, `=`, `forall`, `exists`, relations and functions of the
//! protocol, and definitions, which stand for the formula that they name.
//!
//! Not supported: `let`, `ite`, arithmetic.

use std::collections::BTreeMap;
use std::fmt;

/// Kind of a thing that the protocol speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// Entry of the upper table, where a leaf table hangs.
    Slot,
    /// Page that is a leaf table, or may become one.
    Table,
    /// Number of an entry in a leaf table.
    Index,
    /// Page of a buffer.
    Frame,
    /// Debt: the invalidations that a number of unmaps owe together.
    Debt,
    /// Device, with all of its caches.
    Device,
    /// Free or allocated address.
    Address,
    /// Word of a front.
    Word,
    /// Code that takes an address out.
    Caller,
    /// Group of page requests, by its number.
    Group,
    /// Ticket of a group.
    Ticket,
}

impl Sort {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Slot,
        Self::Table,
        Self::Index,
        Self::Frame,
        Self::Debt,
        Self::Device,
        Self::Address,
        Self::Word,
        Self::Caller,
        Self::Group,
        Self::Ticket,
    ];

    /// Name in formulas.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slot => "Slot",
            Self::Table => "Table",
            Self::Index => "Index",
            Self::Frame => "Frame",
            Self::Debt => "Debt",
            Self::Device => "Device",
            Self::Address => "Address",
            Self::Word => "Word",
            Self::Caller => "Caller",
            Self::Group => "Group",
            Self::Ticket => "Ticket",
        }
    }

    /// Name of a number of them. A debt stands for a CPU that unmaps.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Slot => "slots",
            Self::Table => "tables",
            Self::Index => "entries of a table",
            Self::Frame => "frames",
            Self::Debt => "CPUs",
            Self::Device => "devices",
            Self::Address => "addresses",
            Self::Word => "words",
            Self::Caller => "callers",
            Self::Group => "groups",
            Self::Ticket => "tickets",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.name() == name)
    }
}

/// Variable with its sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name in formulas.
    pub name: String,
    /// Sort of its values.
    pub sort: Sort,
}

/// Thing that a formula speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// A variable.
    Variable(String),
    /// A function's value.
    Function(String, Box<Term>),
}

/// Statement about a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Formula {
    /// A relation, or a definition, of these things.
    Relation(String, Vec<Term>),
    /// Equality.
    Same(Term, Term),
    /// Negation.
    Not(Box<Formula>),
    /// Conjunction; of none, it is true.
    And(Vec<Formula>),
    /// Disjunction; of none, it is false.
    Or(Vec<Formula>),
    /// Implication.
    Implies(Box<Formula>, Box<Formula>),
    /// For all values of the variables.
    ForAll(Vec<Variable>, Box<Formula>),
    /// For at least one value of the variables.
    Exists(Vec<Variable>, Box<Formula>),
}

/// Error of a formula's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormulaError {
    /// The text.
    pub text: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for FormulaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.text)
    }
}

impl std::error::Error for FormulaError {}

/// Text in brackets.
#[derive(Clone, Debug)]
enum Tree {
    Word(String),
    List(Vec<Tree>),
}

impl Formula {
    /// Reads a formula.
    pub fn parse(text: &str) -> Result<Self, FormulaError> {
        let fail = |reason: String| FormulaError { text: text.to_owned(), reason };
        let mut words = words(text).into_iter().peekable();
        let tree = tree(&mut words).map_err(fail)?;
        match words.next() {
            Some(word) => Err(fail(format!("{word} after the end"))),
            None => formula(&tree).map_err(fail),
        }
    }

    /// The formula with these terms for its free variables. A bound variable of one of the terms'
    /// names gets a name of its own.
    pub fn with(&self, terms: &BTreeMap<String, Term>) -> Self {
        let one = |of: &Self| Box::new(of.with(terms));
        let all = |list: &[Self]| list.iter().map(|of| of.with(terms)).collect();
        match self {
            Self::Relation(name, of) => {
                Self::Relation(name.clone(), of.iter().map(|term| term.with(terms)).collect())
            }
            Self::Same(left, right) => Self::Same(left.with(terms), right.with(terms)),
            Self::Not(inner) => Self::Not(one(inner)),
            Self::And(list) => Self::And(all(list)),
            Self::Or(list) => Self::Or(all(list)),
            Self::Implies(left, right) => Self::Implies(one(left), one(right)),
            Self::ForAll(variables, inner) => {
                let (variables, inner) = apart(variables, inner, terms);
                Self::ForAll(variables, inner)
            }
            Self::Exists(variables, inner) => {
                let (variables, inner) = apart(variables, inner, terms);
                Self::Exists(variables, inner)
            }
        }
    }

    /// The formula with other names of relations, definitions and functions.
    pub fn renamed(&self, name: &dyn Fn(&str) -> String) -> Self {
        let one = |of: &Self| Box::new(of.renamed(name));
        let all = |list: &[Self]| list.iter().map(|of| of.renamed(name)).collect();
        match self {
            Self::Relation(of, terms) => {
                Self::Relation(name(of), terms.iter().map(|term| term.renamed(name)).collect())
            }
            Self::Same(left, right) => Self::Same(left.renamed(name), right.renamed(name)),
            Self::Not(inner) => Self::Not(one(inner)),
            Self::And(list) => Self::And(all(list)),
            Self::Or(list) => Self::Or(all(list)),
            Self::Implies(left, right) => Self::Implies(one(left), one(right)),
            Self::ForAll(variables, inner) => Self::ForAll(variables.clone(), one(inner)),
            Self::Exists(variables, inner) => Self::Exists(variables.clone(), one(inner)),
        }
    }
}

/// A quantifier's variables and formula, with names that no formula's text has.
fn apart(
    variables: &[Variable],
    inner: &Formula,
    terms: &BTreeMap<String, Term>,
) -> (Vec<Variable>, Box<Formula>) {
    let mut terms = terms.clone();
    let named = |one: &Variable| Variable { name: format!("{}'", one.name), sort: one.sort };
    let new: Vec<Variable> = variables.iter().map(named).collect();
    for (old, new) in variables.iter().zip(&new) {
        terms.insert(old.name.clone(), Term::Variable(new.name.clone()));
    }
    (new, Box::new(inner.with(&terms)))
}

impl Term {
    fn with(&self, terms: &BTreeMap<String, Self>) -> Self {
        match self {
            Self::Variable(name) => terms.get(name).unwrap_or(self).clone(),
            Self::Function(name, of) => Self::Function(name.clone(), Box::new(of.with(terms))),
        }
    }

    /// The term with other names of functions.
    pub fn renamed(&self, name: &dyn Fn(&str) -> String) -> Self {
        match self {
            Self::Variable(_) => self.clone(),
            Self::Function(of, inner) => Self::Function(name(of), Box::new(inner.renamed(name))),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::Function(name, of) => write!(f, "({name} {of})"),
        }
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, word: &str, of: &[Self]| {
            write!(f, "({word}")?;
            of.iter().try_for_each(|one| write!(f, " {one}"))?;
            f.write_str(")")
        };
        let bound = |f: &mut fmt::Formatter<'_>, word: &str, of: &[Variable], inner: &Self| {
            write!(f, "({word} (")?;
            of.iter().try_for_each(|one| write!(f, "({} {})", one.name, one.sort.name()))?;
            write!(f, ") {inner})")
        };
        match self {
            Self::Relation(name, terms) if terms.is_empty() => f.write_str(name),
            Self::Relation(name, terms) => {
                write!(f, "({name}")?;
                terms.iter().try_for_each(|term| write!(f, " {term}"))?;
                f.write_str(")")
            }
            Self::Same(left, right) => write!(f, "(= {left} {right})"),
            Self::Not(inner) => write!(f, "(not {inner})"),
            Self::And(of) if of.is_empty() => f.write_str("true"),
            Self::Or(of) if of.is_empty() => f.write_str("false"),
            Self::And(of) => list(f, "and", of),
            Self::Or(of) => list(f, "or", of),
            Self::Implies(left, right) => write!(f, "(=> {left} {right})"),
            Self::ForAll(of, inner) => bound(f, "forall", of, inner),
            Self::Exists(of, inner) => bound(f, "exists", of, inner),
        }
    }
}

fn words(text: &str) -> Vec<String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

fn tree(words: &mut impl Iterator<Item = String>) -> Result<Tree, String> {
    // The lists that are open, the outermost first.
    let mut open: Vec<Vec<Tree>> = Vec::new();
    loop {
        let done = match words.next().ok_or("a bracket is open at the end")?.as_str() {
            "(" => {
                open.push(Vec::new());
                continue;
            }
            ")" => Tree::List(open.pop().ok_or("a bracket is closed before it is open")?),
            word => Tree::Word(word.to_owned()),
        };
        match open.last_mut() {
            Some(list) => list.push(done),
            None => return Ok(done),
        }
    }
}

fn formula(tree: &Tree) -> Result<Formula, String> {
    let list = match tree {
        Tree::Word(word) if word == "true" => return Ok(Formula::And(Vec::new())),
        Tree::Word(word) if word == "false" => return Ok(Formula::Or(Vec::new())),
        Tree::Word(word) => return Err(format!("{word} is no formula")),
        Tree::List(list) => list,
    };
    let [Tree::Word(head), rest @ ..] = list.as_slice() else {
        return Err("a list without a head".to_owned());
    };
    let all = || rest.iter().map(formula).collect::<Result<Vec<_>, _>>();
    match (head.as_str(), rest) {
        ("and", _) => Ok(Formula::And(all()?)),
        ("or", _) => Ok(Formula::Or(all()?)),
        ("not", [of]) => Ok(Formula::Not(Box::new(formula(of)?))),
        ("=>", [left, right]) => {
            Ok(Formula::Implies(Box::new(formula(left)?), Box::new(formula(right)?)))
        }
        ("=", [left, right]) => Ok(Formula::Same(term(left)?, term(right)?)),
        ("forall", [of, inner]) => Ok(Formula::ForAll(variables(of)?, Box::new(formula(inner)?))),
        ("exists", [of, inner]) => Ok(Formula::Exists(variables(of)?, Box::new(formula(inner)?))),
        ("not" | "=>" | "=" | "forall" | "exists", _) => {
            Err(format!("{head} of {} parts", rest.len()))
        }
        (name, of) => {
            let terms = of.iter().map(term).collect::<Result<_, _>>()?;
            Ok(Formula::Relation(name.to_owned(), terms))
        }
    }
}

fn term(tree: &Tree) -> Result<Term, String> {
    match tree {
        Tree::Word(word) => Ok(Term::Variable(word.clone())),
        Tree::List(list) => match list.as_slice() {
            [Tree::Word(name), of] => Ok(Term::Function(name.clone(), Box::new(term(of)?))),
            _ => Err("a function has one argument".to_owned()),
        },
    }
}

/// Variables of a quantifier, or of a step: `((t Table) (i Index))`.
fn variables(tree: &Tree) -> Result<Vec<Variable>, String> {
    let Tree::List(list) = tree else {
        return Err("a list of variables is missing".to_owned());
    };
    let one = |tree: &Tree| match tree {
        Tree::List(pair) => match pair.as_slice() {
            [Tree::Word(name), Tree::Word(sort)] => {
                let sort = Sort::of(sort).ok_or(format!("{sort} is no sort"))?;
                Ok(Variable { name: name.clone(), sort })
            }
            _ => Err("a variable is a name and a sort".to_owned()),
        },
        Tree::Word(word) => Err(format!("{word} has no sort")),
    };
    list.iter().map(one).collect()
}

/// Reads a list of variables.
pub fn parse_variables(text: &str) -> Result<Vec<Variable>, FormulaError> {
    let fail = |reason: String| FormulaError { text: text.to_owned(), reason };
    let parsed = tree(&mut words(text).into_iter()).map_err(fail)?;
    variables(&parsed).map_err(fail)
}

/// Reads a term.
pub fn parse_term(text: &str) -> Result<Term, FormulaError> {
    let fail = |reason: String| FormulaError { text: text.to_owned(), reason };
    let parsed = tree(&mut words(text).into_iter()).map_err(fail)?;
    term(&parsed).map_err(fail)
}
