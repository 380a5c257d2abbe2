//! Reports to look at: results of a command, as one HTML file that needs nothing else.
//!
//! A [`Page`] is data: sentences, plots and the tables of the same figures. [`Page::html`] writes it with inline
//! SVG and styles, for light and dark, wide and narrow, print, keyboard and screen reader; it asks no other place.
//! The meaning of figures is the caller's: nothing here knows of traces or policies.
#![forbid(unsafe_code)]

mod draw;
mod escape;
mod figure;
mod html;
mod look;
mod page;
mod ruler;
mod svg;
mod unit;

pub use figure::{
    Arrangement, Axis, Bars, Figure, Line, Lines, Mark, MarkRow, Marks, Plot, Scale, Series, Shape,
    Table,
};
pub use html::ReportError;
pub use page::{Origin, Page, Section, Tile};
pub use unit::Unit;

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
