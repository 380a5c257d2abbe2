//! Directions as types.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::table::Access;

mod sealed {
    pub trait Sealed {}
}

/// Which way bytes go.
pub trait Direction: sealed::Sealed + 'static {
    /// What the device may do.
    const ACCESS: Access;
    /// Whether the device writes.
    const FILLS: Fills;
}

/// Whether the device writes into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fills {
    /// It only reads.
    Nothing,
    /// It writes.
    Buffer,
}

macro_rules! direction {
    ($(#[$doc:meta])* $name:ident: $access:expr, $fills:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl Direction for $name {
            const ACCESS: Access = $access;
            const FILLS: Fills = $fills;
        }
    };
}

direction! {
    /// The device reads.
    ToDevice: Access::READ, Fills::Nothing
}
direction! {
    /// The device writes.
    FromDevice: Access::WRITE, Fills::Buffer
}
direction! {
    /// The device reads and writes.
    Bidirectional: Access::READ.union(Access::WRITE), Fills::Buffer
}
