//! Common code of the drivers' tests.

pub(crate) mod hostile;
mod sets;
pub(crate) mod suite;
