//! Plots by `plotters`, each for a narrow and for a wide page.
//!
//! A plot is first a sketch: places between 0 and 1, ticks with their texts, room for words. It is drawn at one place
//! and with one type of axis: each further one would cost more in compiling than all the rest.

mod bars;
mod lines;
mod marks;
mod sketch;

use crate::figure::Plot;
use crate::look;
use crate::ruler::{Ruler, Tick};

/// Width of the page that a plot is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageWidth {
    /// A telephone's.
    Narrow,
    /// A screen's or a sheet of paper.
    Wide,
}

impl PageWidth {
    /// The width of a plot in pixels.
    fn width(self) -> i32 {
        match self {
            Self::Narrow => 328,
            Self::Wide => 820,
        }
    }

    /// The height of letters in pixels.
    fn font(self) -> u32 {
        match self {
            Self::Narrow => 12,
            Self::Wide => 13,
        }
    }

    /// The ticks of an axis from left to right in `room` pixels, thinned out until they fit side by side.
    fn ticks_of(self, ruler: &Ruler, room: i32) -> Vec<Tick> {
        let most = match self {
            Self::Narrow => 4,
            Self::Wide => 8,
        };
        let fewer = (2..most).rev().map(|count| ruler.ticks(count));
        let fits = |ticks: &Vec<Tick>| self.side_by_side(ticks, room);
        let mut ticks = std::iter::once(ruler.ticks(most)).chain(fewer);
        ticks.find(fits).unwrap_or_else(|| ruler.ticks(1))
    }

    /// Part of `text` that fits in two lines of `room` pixels.
    fn in_two(self, text: &str, room: i32) -> String {
        look::in_two(text, self.font(), room.max(0) as u32)
    }

    /// The height that the name of a row needs on its left.
    fn name_height(self, name: &str) -> i32 {
        match self {
            Self::Wide if self.in_two(name, NAME).contains('\n') => 38,
            Self::Wide | Self::Narrow => 0,
        }
    }

    /// The room on the left of a plot for the texts of `ticks`.
    fn left(self, ticks: &[Tick]) -> i32 {
        let lines = ticks.iter().flat_map(|tick| tick.text.split('\n'));
        let widest = lines.map(|line| self.text(line)).max();
        widest.map_or(1, |widest| widest + 14)
    }

    /// Tells if the texts of `ticks` fit side by side in `room` pixels.
    fn side_by_side(self, ticks: &[Tick], room: i32) -> bool {
        ticks.windows(2).all(|pair| {
            let apart = ((pair[1].at - pair[0].at) * f64::from(room)) as i32;
            apart > (self.text(&pair[0].text) + self.text(&pair[1].text)) / 2 + 6
        })
    }

    /// The width of `text`.
    fn text(self, text: &str) -> i32 {
        look::width(text, self.font()) as i32
    }

    /// Part of `text` that fits in `room` pixels.
    fn fitted(self, text: &str, room: i32) -> String {
        look::fitted(text, self.font(), room.max(0) as u32)
    }
}

/// The width of a row's name on its left, in pixels.
const NAME: i32 = 210;

/// A plot as drawn on the page.
#[derive(Debug)]
pub(crate) struct Drawn {
    /// Drawing for either page.
    pub(crate) svg: Vec<Element>,
    /// Names of its series, and the sample of each.
    pub(crate) key: Key,
    /// Notes on values that are not drawn.
    pub(crate) notes: Vec<String>,
}

/// The inside of an SVG element.
#[derive(Debug)]
pub(crate) struct Element {
    /// Page that this drawing is for.
    pub(crate) page: PageWidth,
    /// Width and height in pixels.
    pub(crate) size: (i32, i32),
    /// Its markup.
    pub(crate) content: String,
}

/// The legend of a plot.
#[derive(Debug)]
pub(crate) struct Key {
    /// Names in the order of the series, and the sample of each.
    pub(crate) series: Vec<(String, Sample)>,
    /// Place of the names.
    pub(crate) names: Names,
}

/// Sample of a series in the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    /// A filled area.
    Filling,
    /// A line with marks.
    Line,
    /// Marks.
    Mark,
}

/// Place of the names of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Above the plot.
    Above,
    /// At the ends of the lines on a wide page, otherwise above the plot.
    AtLines,
}

/// Draws `plot`.
///
/// # Errors
/// Reason for which it cannot be drawn: in the reader's words if there is nothing to draw.
pub(crate) fn draw(plot: &Plot) -> Result<Drawn, Undrawn> {
    match plot {
        Plot::Bars(bars) => bars::draw(bars),
        Plot::Lines(lines) => lines::draw(lines),
        Plot::Marks(marks) => marks::draw(marks),
        Plot::Nothing(why) => Err(Undrawn::Nothing(why.clone())),
    }
}

/// Reason why nothing is drawn.
#[derive(Debug)]
pub(crate) enum Undrawn {
    /// There is nothing to draw, for this reason.
    Nothing(String),
    /// The plotting library's reason.
    Library(String),
}

/// Note on `left_out` values that are not finite.
fn not_finite(left_out: usize) -> Option<String> {
    match left_out {
        0 => None,
        1 => Some("One value is not a finite number and is left out.".to_owned()),
        many => Some(format!("{many} values are not finite numbers and are left out.")),
    }
}

/// Reason why there is no plot if all values are `left_out`.
fn nothing(left_out: usize) -> Undrawn {
    let why = match left_out {
        0 => "there are no values".to_owned(),
        many => format!("none of {many} values is a finite number"),
    };
    Undrawn::Nothing(why)
}

/// Text under the pointer: a first line, then a line for each of `values`, unless they are too many.
fn title(head: &str, values: impl Iterator<Item = (String, String)>) -> String {
    const MOST: usize = 12;
    let mut said = head.to_owned();
    let mut more = 0;
    for (nth, (name, value)) in values.enumerate() {
        if nth >= MOST {
            more += 1;
            continue;
        }
        said.push('\n');
        if !name.is_empty() {
            said.push_str(&name);
            said.push_str(": ");
        }
        said.push_str(&value);
    }
    if more > 0 {
        said.push_str(&format!("\nand {more} more"));
    }
    said
}
