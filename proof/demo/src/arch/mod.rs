//! Code that differs between architectures.

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod this;

#[cfg(target_arch = "x86_64")]
pub use this::Sleep;
pub use this::{
    Interrupts, KEPT, LAST_MAPPED, Loader, exit, map_uncached, number, processor, put, set_number,
    uncached_type,
};
