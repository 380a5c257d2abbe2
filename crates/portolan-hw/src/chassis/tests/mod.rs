//! Common code of the drivers' tests.

pub(crate) mod suite;
