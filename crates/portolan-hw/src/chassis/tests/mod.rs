//! Common code of the drivers' tests.

mod sets;
pub(crate) mod suite;
