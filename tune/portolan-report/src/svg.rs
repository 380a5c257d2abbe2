//! Drawing area for `plotters`: inline SVG whose looks are the page's.
//!
//! Elements carry classes and no colours, so that the page's style has light, dark and print in one place. Marks and
//! hatchings are the page's too ([`crate::look`]).

use std::fmt::Write as _;

use plotters::style::RGBColor;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

use crate::escape::Escaped;
use crate::look;

/// Colour that marks the class of the grid.
pub(crate) const GRID: RGBColor = RGBColor(0, 0, 1);
/// Colour that marks the class of an axis.
pub(crate) const AXIS: RGBColor = RGBColor(0, 0, 2);

/// The length of ticks.
pub(crate) const TICK: i32 = 4;

/// Error type of drawing into a text, which never fails.
#[derive(Debug, thiserror::Error)]
#[error("drawing into a text failed")]
pub(crate) struct Never;

type Drawn = Result<(), DrawingErrorKind<Never>>;

/// An SVG element in the making.
pub(crate) struct Svg<'o> {
    out: &'o mut String,
    size: (u32, u32),
    /// The height of letters.
    font: u32,
}

impl<'o> Svg<'o> {
    /// Draws the content of an element of `size`, with letters of `font` pixels, to `out`.
    pub(crate) fn new(out: &'o mut String, size: (u32, u32), font: u32) -> Self {
        Self { out, size, font }
    }

    fn write(&mut self, element: std::fmt::Arguments<'_>) -> Drawn {
        self.out.write_fmt(element).map_err(|_| DrawingErrorKind::DrawingError(Never))
    }

    /// A filled bar of a series; none is too small to be seen.
    pub(crate) fn bar(&mut self, from: BackendCoord, to: BackendCoord, series: usize) -> Drawn {
        let (x, y, width, height) = area(from, to);
        // A gap between parts, where they are large enough.
        let (y, height) = if height > 3 { (y + 1, height - 1) } else { (y, height.max(1)) };
        let width = if width > 6 { width - 1 } else { width.max(1) };
        let class = series % look::KINDS;
        self.write(format_args!(
            r#"<rect class="f{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#
        ))
    }

    /// Lines through `points`.
    pub(crate) fn line(&mut self, points: &[BackendCoord], class: &str) -> Drawn {
        self.write(format_args!(r#"<polyline class="{class}" points=""#))?;
        let mut space = "";
        for (x, y) in points {
            self.write(format_args!("{space}{x},{y}"))?;
            space = " ";
        }
        self.write(format_args!(r#""/>"#))
    }

    /// The mark of a series.
    pub(crate) fn mark(&mut self, (x, y): BackendCoord, series: usize) -> Drawn {
        let class = series % look::KINDS;
        self.write(format_args!(
            r##"<use class="m{class}" href="#m{}" x="{x}" y="{y}"/>"##,
            look::shape(class)
        ))
    }

    /// Adds an area that shows `title` under the pointer.
    pub(crate) fn hit(&mut self, from: BackendCoord, to: BackendCoord, title: &str) -> Drawn {
        let (x, y, width, height) = area(from, to);
        let (width, height, title) = (width.max(1), height.max(1), Escaped(title));
        self.write(format_args!(
            r#"<rect class="h" x="{x}" y="{y}" width="{width}" height="{height}"><title>{title}</title></rect>"#
        ))
    }

    /// Words.
    pub(crate) fn words(&mut self, text: &str, class: &str, (x, y): BackendCoord) -> Drawn {
        let text = Escaped(text);
        self.write(format_args!(r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#))
    }
}

/// The upper left corner, width and height of the area with the corners `from` and `to`.
fn area(from: BackendCoord, to: BackendCoord) -> (i32, i32, i32, i32) {
    let (x, y) = (from.0.min(to.0), from.1.min(to.1));
    (x, y, (to.0 - from.0).abs(), (to.1 - from.1).abs())
}

fn class_of(color: BackendColor) -> &'static str {
    match color.rgb {
        (0, 0, 1) => "g",
        _ => "a",
    }
}

impl DrawingBackend for Svg<'_> {
    type ErrorType = Never;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, at: BackendCoord, color: BackendColor) -> Drawn {
        self.draw_rect(at, at, &color, true)
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        self.line(&[from, to], class_of(style.color()))
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        _fill: bool,
    ) -> Drawn {
        let around = [from, (to.0, from.1), to, (from.0, to.1), from];
        self.line(&around, class_of(style.color()))
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        let points: Vec<BackendCoord> = path.into_iter().collect();
        // A tick before a number reads as its sign.
        if matches!(points[..], [from, to] if from.1 == to.1 && (to.0 - from.0).abs() <= TICK) {
            return Ok(());
        }
        self.line(&points, class_of(style.color()))
    }

    fn draw_text<T: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &T,
        (x, y): BackendCoord,
    ) -> Drawn {
        let anchor = style.anchor();
        let class = match anchor.h_pos {
            HPos::Left => "t",
            HPos::Center => "t c",
            HPos::Right => "t e",
        };
        let height = self.font as i32;
        let down = match anchor.v_pos {
            VPos::Top => height * 4 / 5,
            VPos::Center => height * 7 / 20,
            VPos::Bottom => -height * 2 / 5,
        };
        let line = height + 1;
        // A second line, which names of rows may have: the two stand around the place of the one.
        let up = if text.contains('\n') { line / 2 } else { 0 };
        for (nth, text) in (0..).zip(text.split('\n')) {
            self.words(text, class, (x, y + down - up + nth * line))?;
        }
        Ok(())
    }

    fn estimate_text_size<T: BackendTextStyle>(
        &self,
        text: &str,
        _style: &T,
    ) -> Result<(u32, u32), DrawingErrorKind<Never>> {
        Ok((look::width(text, self.font), self.font))
    }
}
