//! Device trees, read from byte slices.
//!
//! *Context.* Interrupt: a lookup walks the tree.

pub mod fdt;
