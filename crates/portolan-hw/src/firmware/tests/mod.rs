//! Tables written by hand, random ones, and what is read from them.

mod fuzz;
pub(crate) mod golden;
