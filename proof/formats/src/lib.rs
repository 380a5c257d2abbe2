//! Entries of all table formats as functions of numbers.
//!
//! The files of `crates/portolan/src/table/format` are compiled into this crate as they are. Each
//! format, with some widths and abilities, becomes a module of functions from 64-bit numbers to
//! one. `cargo xtask prove` has the compiler write their intermediate code, and
//! `portolan-protocol` reads formulas from that; it calls the same functions to compare.
//!
//! Not supported: functions of a whole format (widths, sizes of pages), which no entry depends on.
// The library's files would bring their unit tests, which need the rest of the library.
#![cfg(not(test))]
#![forbid(unsafe_code)]

/// Items that the library's files find in their crate.
mod addr {
    pub use portolan::addr::{PageSize, PageSizes, PhysAddr};
}

mod platform {
    pub use portolan::platform::Word;
}

mod table;

#[macro_use]
mod numbers;
pub mod configured;
pub mod wrong;

pub use configured::all;
pub use numbers::{Call, Family, Subject};
pub use wrong::{Mistake, mistakes};
