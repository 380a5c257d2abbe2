//! A plot before it is drawn, and the drawing by `plotters`.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{BackendCoordOnly, Drawable, PointCollection};
use plotters::prelude::ChartBuilder;
use plotters_backend::{BackendCoord, DrawingErrorKind};

use super::{Element, PageWidth, Undrawn};
use crate::look::KINDS;
use crate::ruler::Tick;
use crate::svg::{self, Never, Svg};

/// A place in a plot, from 0 to 1 on either axis.
pub(super) type Place = (f64, f64);

/// Something in a plot.
pub(super) enum Piece {
    /// A bar of a series between two corners.
    Bar([Place; 2], usize),
    /// A line of this kind.
    Line(Vec<Place>, Stroke),
    /// The mark of a series.
    Mark([Place; 1], usize),
    /// Words, so many pixels from a place.
    Words([Place; 1], (i32, i32), Anchor, String),
    /// A mark so many pixels from a place.
    KeyMark([Place; 1], (i32, i32), usize),
    /// An area between two corners that shows this text under the pointer.
    Hit([Place; 2], String),
}

/// Part of the words that is at their place.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    End,
}

/// Object that a line draws.
#[derive(Clone, Copy)]
pub(super) enum Stroke {
    /// Colour of a series.
    Series(usize),
    /// Colour of an error bar of a series.
    Error(usize),
    /// A line between rows.
    Grid,
    /// Line at zero, drawn if values lie below it.
    Zero,
}

impl<'p> PointCollection<'p, Place> for &'p Piece {
    type Point = &'p Place;
    type IntoIter = std::slice::Iter<'p, Place>;

    fn point_iter(self) -> Self::IntoIter {
        match self {
            Piece::Bar(places, _) | Piece::Hit(places, _) => places.iter(),
            Piece::Line(places, _) => places.iter(),
            Piece::Mark(place, _) | Piece::Words(place, ..) | Piece::KeyMark(place, ..) => {
                place.iter()
            }
        }
    }
}

impl Drawable<Svg<'_>> for Piece {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        places: I,
        svg: &mut Svg<'_>,
        _: (u32, u32),
    ) -> Result<(), DrawingErrorKind<Never>> {
        let mut places: Vec<BackendCoord> = places.collect();
        if let Self::Line(_, stroke) = self {
            places.dedup();
            return match stroke {
                Stroke::Series(series) => svg.line(&places, &format!("l l{}", series % KINDS)),
                Stroke::Error(series) => svg.line(&places, &format!("w l{}", series % KINDS)),
                Stroke::Grid => svg.line(&places, "g"),
                Stroke::Zero => svg.line(&places, "a"),
            };
        }
        let (Some(&first), Some(&last)) = (places.first(), places.last()) else {
            return Ok(());
        };
        let moved = |by: &(i32, i32)| (first.0 + by.0, first.1 + by.1);
        match self {
            Self::Bar(_, series) => svg.bar(first, last, *series),
            Self::Hit(_, title) => svg.hit(first, last, title),
            Self::Mark(_, series) => svg.mark(first, *series),
            Self::KeyMark(_, by, series) => svg.mark(moved(by), *series),
            Self::Words(_, by, anchor, text) => {
                let class = match anchor {
                    Anchor::Start => "t",
                    Anchor::End => "t e",
                };
                svg.words(text, class, moved(by))
            }
            Self::Line(..) => Ok(()),
        }
    }
}

/// The axis from 0 to 1 with its ticks.
struct Ticked(Vec<Tick>);

impl Ranged for Ticked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, at: &f64, (first, last): (i32, i32)) -> i32 {
        first + (f64::from(last - first) * at).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.0.iter().map(|tick| tick.at).collect()
        }
    }

    fn range(&self) -> Range<f64> {
        0.0..1.0
    }
}

impl ValueFormatter<f64> for Ticked {
    fn format_ext(&self, at: &f64) -> String {
        let tick = self.0.iter().find(|tick| tick.at == *at);
        tick.map_or_else(String::new, |tick| tick.text.clone())
    }
}

/// Ticks that are continued as lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grid {
    /// Texts of the axis below, written upwards.
    Upright,
    /// Texts of the axis on the left, written across.
    Across,
}

/// A plot before it is drawn.
pub(super) struct Sketch {
    pub(super) page: PageWidth,
    /// Height of the area for values.
    pub(super) height: i32,
    /// The room on the right of that area.
    pub(super) right: i32,
    /// Ticks below, and the name of their axis.
    pub(super) x: Vec<Tick>,
    pub(super) x_name: String,
    /// Ticks on the left, and the name of their axis.
    pub(super) y: Vec<Tick>,
    pub(super) y_name: String,
    pub(super) grid: Grid,
    pub(super) pieces: Vec<Piece>,
}

/// The room between an axis and its ticks' texts.
const GAP: i32 = 6;

impl Sketch {
    /// The widths of the rooms on the left and on the right of the area.
    fn sides(&self) -> (i32, i32) {
        let (mut left, mut right) = (self.page.left(&self.y), self.right.max(7));
        // The outermost texts below stand out by half of their widths at most.
        let area = f64::from(self.page.width() - left - right);
        for tick in &self.x {
            let half = (self.page.text(&tick.text) + 1) / 2;
            left = left.max(half - (tick.at * area) as i32);
            right = right.max(half - ((1.0 - tick.at) * area) as i32 + 1);
        }
        (left, right)
    }

    /// The element.
    pub(super) fn draw(self) -> Result<Element, Undrawn> {
        let font = self.page.font() as i32;
        let top = if self.y_name.is_empty() { 6 } else { font * 2 + 4 };
        let bottom = font + 2 * GAP + 1 + if self.x_name.is_empty() { 0 } else { font + 6 };
        let (width, height) = (self.page.width(), top + self.height + bottom);
        let (page, mut content) = (self.page, String::new());
        let svg = Svg::new(&mut content, (width as u32, height as u32), font as u32);
        let drawn = self.on(svg, [top, bottom]);
        drawn.map_err(|error| Undrawn::Library(error.to_string()))?;
        let size = (width, height);
        Ok(Element { page, size, content })
    }

    fn on(self, svg: Svg<'_>, [top, bottom]: [i32; 2]) -> Result<(), DrawingAreaErrorKind<Never>> {
        let (left, right) = self.sides();
        let font = ("sans-serif", f64::from(self.page.font()));
        let root = svg.into_drawing_area();
        let mut chart = ChartBuilder::on(&root);
        chart.margin_top(top).margin_right(right);
        chart.x_label_area_size(bottom).y_label_area_size(left);
        let mut chart = chart.build_cartesian_2d(Ticked(self.x), Ticked(self.y))?;
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(svg::GRID).axis_style(svg::AXIS);
        mesh.label_style(font).set_all_tick_mark_size(svg::TICK);
        if !self.x_name.is_empty() {
            mesh.x_desc(self.page.fitted(&self.x_name, self.page.width() - left - right));
        }
        match self.grid {
            Grid::Upright => mesh.disable_y_mesh(),
            Grid::Across => mesh.disable_x_mesh(),
        };
        mesh.draw()?;
        if !self.y_name.is_empty() {
            let name = self.page.fitted(&self.y_name, self.page.width());
            let above = Piece::Words(
                [(0.0, 1.0)],
                (-left + 1, -font.1 as i32 / 2 - 7),
                Anchor::Start,
                name,
            );
            chart.draw_series::<BackendCoordOnly, Piece, _, _>([&above])?;
        }
        chart.draw_series::<BackendCoordOnly, Piece, _, _>(&self.pieces)?;
        root.present()
    }
}
