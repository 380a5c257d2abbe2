//! Promises of tests, for memory of models.

#[path = "../../../portolan/tests/support/promised.rs"]
mod promised;

pub(crate) use promised::{all_memory, promised};
