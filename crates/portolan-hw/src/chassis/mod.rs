//! What all drivers stand on.

pub(crate) mod entry;
