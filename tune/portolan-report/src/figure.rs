//! Figures as data: a plot and the table of the same numbers.

use crate::unit::Unit;

/// A plot with its name, its description for readers that do not see it, and its table.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name, which tells the contents.
    pub title: String,
    /// The meaning of the plot and the way to read it, in a sentence or two.
    pub says: String,
    /// The plot.
    pub plot: Plot,
    /// Numbers of the plot, or the numbers that it summarises.
    pub table: Table,
}

impl Figure {
    /// A figure. If there is nothing to plot, `reason` is shown instead.
    #[must_use]
    pub fn new(title: &str, says: &str, reason: Option<&str>, plot: Plot, table: Table) -> Self {
        Self {
            title: title.to_owned(),
            says: says.to_owned(),
            plot: match reason {
                Some(reason) => Plot::Nothing(reason.to_owned()),
                None => plot,
            },
            table,
        }
    }
}

/// A table with units in its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Headers, with units.
    pub head: Vec<String>,
    /// Rows of as many cells; the first cell names the row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with `head`.
    #[must_use]
    pub fn new<const N: usize>(
        head: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> Self {
        Self {
            head: head.map(str::to_owned).to_vec(),
            rows: rows.into_iter().map(Vec::from).collect(),
        }
    }
}

/// A plot. Values that are not finite are left out, and the figure tells their number.
#[derive(Clone, Debug, PartialEq)]
pub enum Plot {
    /// Bars by category.
    Bars(Bars),
    /// Lines over a numeric axis.
    Lines(Lines),
    /// Marks with error bars by category.
    Marks(Marks),
    /// No plot, for this reason.
    Nothing(String),
}

/// An axis of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Quantity on the axis: `time`, with the unit if [`Unit`] has it not: `throughput (Gbit/s)`.
    pub name: String,
    /// Mapping from numbers to lengths.
    pub scale: Scale,
    /// Unit in which numbers are written.
    pub unit: Unit,
}

impl Axis {
    /// An axis in proportion.
    #[must_use]
    pub fn linear(name: &str, unit: Unit) -> Self {
        let (name, scale) = (name.to_owned(), Scale::Linear);
        Self { name, scale, unit }
    }

    /// An axis by logarithm.
    #[must_use]
    pub fn log(name: &str, unit: Unit) -> Self {
        let (name, scale) = (name.to_owned(), Scale::Log);
        Self { name, scale, unit }
    }
}

/// Mapping from numbers to lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Linear scale.
    #[default]
    Linear,
    /// Logarithmic scale; zero and less stand at the lower end.
    Log,
}

/// Bars: one category each, of one part or more.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Names of the categories.
    pub categories: Vec<String>,
    /// The axis of the values.
    pub values: Axis,
    /// Parts, each with a value for each category.
    pub series: Vec<Series>,
    /// Arrangement of the bars.
    pub arrangement: Arrangement,
}

/// Arrangement of bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// A row for each category, the parts end to end.
    StackedRows,
    /// A column for each category, the parts on top of each other: a histogram where categories are intervals.
    StackedColumns,
}

/// Numbers of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// A number for each category.
    pub values: Vec<f64>,
}

/// Lines over a numeric axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// The axis from left to right.
    pub x: Axis,
    /// The axis from bottom to top.
    pub y: Axis,
    /// Lines.
    pub lines: Vec<Line>,
}

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Places on the two axes, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Shape of the line.
    pub shape: Shape,
}

/// Shape of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Straight lines from point to point; if there are few points, each has a mark.
    Straight,
    /// Level from each point to the next: a value holds until the next one.
    Steps,
    /// Marks only: measured values.
    Dots,
}

/// Marks with error bars, a row for each category.
#[derive(Clone, Debug, PartialEq)]
pub struct Marks {
    /// The axis of the values.
    pub values: Axis,
    /// Names of the kinds of marks in the legend: published, before, after.
    pub series: Vec<String>,
    /// Rows.
    pub rows: Vec<MarkRow>,
}

/// A row of marks.
#[derive(Clone, Debug, PartialEq)]
pub struct MarkRow {
    /// The name of the row.
    pub name: String,
    /// Its marks.
    pub marks: Vec<Mark>,
}

/// A mark.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Index of its kind in [`Marks::series`].
    pub series: usize,
    /// Value that it shows.
    pub value: f64,
    /// The least and the most that it may be.
    pub range: Option<[f64; 2]>,
    /// A word next to it, such as its kind of evidence.
    pub word: String,
}
