//! Tables written by hand, random ones, and the values read from them.

mod fuzz;
pub(crate) mod golden;
#[allow(missing_docs)]
pub(crate) mod lookup;
#[allow(dead_code)]
pub(crate) mod tree_bytes;
