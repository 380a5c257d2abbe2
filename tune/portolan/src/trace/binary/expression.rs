//! An expression of an event's text.
//!
//! A name or a helper that is not known is [`Expression::Unknown`], which prints as `?`.

/// Names of numbers.
#[derive(Debug)]
pub(super) struct NumberNames(pub(super) Vec<(u64, Box<str>)>);

/// An expression.
#[derive(Debug)]
pub(super) enum Expression {
    Number(i128),
    Text(Box<str>),
    /// A field, by its index.
    Field(usize),
    /// A local of a block.
    Local(usize),
    /// An element of an array.
    Element(Box<Self>, Box<Self>),
    Not(Box<Self>),
    Negated(Box<Self>),
    Complement(Box<Self>),
    Binary(Operator, Box<[Self; 2]>),
    Choice(Box<[Self; 3]>),
    Cast {
        bits: u32,
        signed: bool,
        of: Box<Self>,
    },
    /// Bytes of a field that has several elements.
    Length(usize),
    Symbol(Box<Self>, NumberNames),
    Flags {
        value: Box<Self>,
        between: Box<str>,
        names: NumberNames,
    },
    /// Array, count of elements if given, and size of each.
    List {
        array: Box<Self>,
        count: Option<Box<Self>>,
        each: Box<Self>,
    },
    /// Values of the locals, and the value of the block.
    Block(Vec<Self>, Box<Self>),
    Unknown,
}

/// An operator with two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    Unequal,
    Less,
    More,
    LessOrEqual,
    MoreOrEqual,
    ShiftLeft,
    ShiftRight,
    Plus,
    Minus,
    Times,
    Over,
    Rest,
}
