//! The protocol of unmap, invalidate and free, and two checks of it; the formats of tables, and a proof of them.
//!
//! [`protocol`] has the steps, the invariant and the promises as data; [`smt`] proves the invariant
//! for any number of CPUs, tables, frames, debts and devices; [`run`] checks runs of the library
//! against the same data. [`formats`] proves the entries of tables from the compiler's code of them.
#![forbid(unsafe_code)]

pub mod checks;
pub mod defects;
pub mod expr;
pub mod fairness;
pub mod finite;
pub mod formats;
pub mod protocol;
pub mod run;
pub mod small;
pub mod smt;
