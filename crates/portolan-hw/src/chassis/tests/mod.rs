//! What tests of drivers have in common.

pub(crate) mod suite;
