//! What differs between architectures.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{LAST_MAPPED, StartInfo, exit, put};
