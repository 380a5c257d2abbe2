//! The library's files of formats, in a module of the same name as there.

pub use portolan::table::{Access, TableAccessError};

#[allow(dead_code, missing_docs, unused_imports)]
#[path = "../../../crates/portolan/src/table/format/mod.rs"]
pub mod format;
