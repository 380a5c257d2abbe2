//! Common code of the drivers' tests.

pub(crate) mod hostile;
pub(crate) mod power;
mod sets;
pub(crate) mod suite;
