//! Rust compilers for other machines: the one in use, where rustup has a library for it, and one for AArch64.
//!
//! Debian's security suite carries a newer compiler as the source package `rustc-web`, with its library for
//! other architectures. It is unpacked below `target`; nothing of it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::packages;
use crate::qemu::Apt;

/// The target.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The oldest release that compiles all of the workspace: its rust-version.
const WANTED: (u32, u32) = (1, 88);

/// Sees to Rust's library for `target`; or says that there is none.
pub fn add_target(target: &str) -> Result<(), String> {
    let mut install = Command::new("rustup");
    install.args(["target", "add", target]);
    install.stdout(Stdio::null()).stderr(Stdio::null());
    match install.status().is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => Err(format!(
            "Rust's library for {target} is not here and cannot be installed"
        )),
    }
}

/// What Clippy's driver is told: cargo's way to say `-D warnings`.
pub const LINTS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// A compiler with its lints, and the linker for it.
pub struct Compiler {
    root: PathBuf,
}

impl Compiler {
    fn rustc(&self) -> PathBuf {
        self.root.join("usr/bin/rustc")
    }

    fn clippy(&self) -> PathBuf {
        self.root.join("usr/bin/clippy-driver")
    }

    fn linker(&self) -> PathBuf {
        self.root.join("usr/bin/aarch64-linux-gnu-ld")
    }

    fn libraries(&self) -> PathBuf {
        self.root.join("usr/lib/x86_64-linux-gnu")
    }

    /// Has `cargo` compile with it, and refuse warnings of what it builds for the folder that it is in:
    /// Clippy's driver is the compiler with lints, so that nothing is compiled twice.
    pub fn give(&self, cargo: &mut Command) {
        cargo.env("RUSTC", self.rustc());
        cargo.env("RUSTC_WORKSPACE_WRAPPER", self.clippy());
        cargo.env("CLIPPY_ARGS", LINTS);
        cargo.env("LD_LIBRARY_PATH", self.libraries());
        cargo.env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            self.linker(),
        );
    }

    fn works(&self) -> bool {
        let says = |program: PathBuf, argument: &str| {
            let mut command = Command::new(program);
            command.arg(argument).stderr(Stdio::null());
            command.env("LD_LIBRARY_PATH", self.libraries());
            let output = command
                .output()
                .ok()
                .filter(|output| output.status.success())?;
            String::from_utf8(output.stdout).ok()
        };
        let new = says(self.rustc(), "--version").and_then(|text| version(&text));
        let library = self.root.join("usr/lib/rustlib").join(TARGET);
        new.is_some_and(|new| new >= WANTED)
            && library.exists()
            && self.clippy().exists()
            && says(self.linker(), "--version").is_some()
    }
}

/// The first two numbers of `rustc 1.96.0 (...)`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_whitespace().nth(1)?.split('.');
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// The packages that `rustc-web` cannot do without, of those that it depends on: its library and LLVM's.
fn libraries(depends: &str) -> Vec<String> {
    let names = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let wanted = ["libstd-rust-web-", "libllvm", "libz3"];
    let mut found: Vec<String> = Vec::new();
    for name in names.filter(|name| wanted.iter().any(|start| name.starts_with(start))) {
        if !found.iter().any(|known| known == name) {
            found.push(name.to_owned());
        }
    }
    found
}

/// Finds the compiler, or fetches it.
///
/// # Errors
/// Why there is none.
pub fn provide(root: &Path) -> Result<Compiler, String> {
    let place = root.join("target/rust-aarch64");
    let unpacked = || {
        let root = place.canonicalize().ok()?.join("root");
        Some(Compiler { root }).filter(Compiler::works)
    };
    if let Some(found) = unpacked() {
        return Ok(found);
    }
    if std::env::consts::ARCH != "x86_64" {
        return Err("the packages are those for x86-64".to_owned());
    }
    if !packages::present("apt-get") || !packages::present("dpkg-deb") {
        return Err("apt-get and dpkg-deb are not here".to_owned());
    }
    fetch(&place)?;
    unpacked().ok_or_else(|| "Debian's rustc-web is too old, or does not start".to_owned())
}

/// Downloads and unpacks, below `place`.
fn fetch(place: &Path) -> Result<(), String> {
    let both = ["APT::Architectures::=amd64", "APT::Architectures::=arm64"];
    let get = Apt::at(place, &both).map_err(|error| error.to_string())?;
    get.run("apt-get", &["update", "-qq"])?;
    let mut wanted: Vec<String> = [
        "rustc-web",
        "rust-web-clippy",
        "libstd-rust-web-dev",
        "binutils-aarch64-linux-gnu",
    ]
    .map(str::to_owned)
    .to_vec();
    // The compiler's library, and what that needs.
    let closure = [
        "depends",
        "--recurse",
        "--no-recommends",
        "--no-suggests",
        "--no-conflicts",
    ];
    let rest = ["--no-breaks", "--no-replaces", "--no-enhances", "rustc-web"];
    let depends: Vec<&str> = closure.into_iter().chain(rest).collect();
    wanted.extend(libraries(&get.run("apt-cache", &depends)?));
    wanted.retain(|name| !name.ends_with(":i386"));
    wanted.push("libstd-rust-web-dev:arm64".to_owned());
    wanted.sort();
    wanted.dedup();
    let mut download = vec!["download", "-qq"];
    download.extend(wanted.iter().map(String::as_str));
    get.run("apt-get", &download)?;
    get.unpack()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(
            version("rustc 1.96.0 (ac68faa20 2026-05-25)"),
            Some((1, 96))
        );
        assert_eq!(version("rustc"), None);
        assert_eq!(version("rustc x.y"), None);
    }

    #[test]
    fn libraries_are_picked_from_what_is_depended_on() {
        let text = "rustc-web\n  Depends: libc6\n  Depends: libstd-rust-web-dev\n  Depends: gcc\n\
                    libstd-rust-web-dev\n  Depends: libstd-rust-web-1.96\n\
                    libstd-rust-web-1.96\n  Depends: libllvm22\n  Depends: libllvm22\n";
        let wanted = ["libstd-rust-web-dev", "libstd-rust-web-1.96", "libllvm22"];
        assert_eq!(libraries(text), wanted);
    }
}
