//! Reports to look at: pages of `portolan-report` from reproductions, curves and made-up loads.
//!
//! `docs/report.md` explains each figure and the origin of its numbers.

mod bounds;
mod camera;
mod reproduce;
mod scale;

pub use camera::camera;
pub use reproduce::{Results, reproductions};
pub use scale::scale;
