//! Layouts of the Arm SMMU architecture v2 (IHI 0062, issue D.c), and nothing else.
//!
//! [`global`]: the global register spaces 0 and 1; [`bank`]: a translation context bank. The window
//! is two halves of equal size: global pages, then one page for each context bank.
//! *Context.* Interrupt: everything here is a value.
//!
//! Not here: security state determination, performance monitors, hypervisor banks.

pub mod bank;
pub mod global;

/// Declares fields of 32-bit registers: `NAME: lsb, width`.
macro_rules! fields {
    ($($fields:tt)*) => { crate::bits::fields! { crate::Bits32; $($fields)* } };
}
pub(crate) use fields;
