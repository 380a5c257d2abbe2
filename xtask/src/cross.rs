//! Rust's libraries for other machines, which rustup has.

use std::process::{Command, Stdio};

/// Arguments for Clippy's driver: cargo's way to say `-D warnings`.
pub const LINTS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Installs Rust's library for `target`; returns an error if it cannot.
pub fn add_target(target: &str) -> Result<(), String> {
    let mut install = Command::new("rustup");
    install.args(["target", "add", target]);
    install.stdout(Stdio::null()).stderr(Stdio::null());
    if install.status().is_ok_and(|status| status.success()) {
        Ok(())
    } else {
        Err(format!("Rust's library for {target} is not here and cannot be installed"))
    }
}
