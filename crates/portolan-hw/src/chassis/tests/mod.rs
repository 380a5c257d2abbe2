//! Common code of the drivers' tests.

mod domains;
pub(crate) mod former;
pub(crate) mod handed_interrupts;
pub(crate) mod handover;
pub(crate) mod hostile;
pub(crate) mod power;
mod sets;
pub(crate) mod suite;
pub(crate) mod suspend;
