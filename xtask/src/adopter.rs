//! The libraries as packages, and a crate outside the workspace that depends on them.
//!
//! The crate's source is the tutorial and the adopters' page: each block is a module of a `no_std` library. It is
//! compiled against what `cargo package` packs, for this machine and for one without an operating
//! system. Nothing is published.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::api::LIBRARIES;
use crate::cross;
use crate::outcome::{Outcome, outcome};

/// Libraries that an adopter's kernel uses; the others are for processes.
const FOR_KERNELS: &[&str] = &[
    "portolan",
    "portolan-spec",
    "portolan-tables",
    "portolan-hw",
    "portolan-bare",
    "portolan-virtio",
];

/// Documents whose blocks are compiled.
const PAGES: [&str; 2] = ["docs/tutorial.md", "docs/adopters.md"];

/// A machine without an operating system.
const BARE: &str = "aarch64-unknown-none";

/// Packs the libraries, tries their publication, and builds the adopter's crate.
pub fn run(root: &Path) -> Outcome {
    let target = root.join("target/packages");
    for step in [publication, unpacked, adopter] {
        match step(root, &target) {
            Outcome::Pass => {}
            other => return other,
        }
    }
    Outcome::Pass
}

/// All but the upload. The adopter's crate compiles what was packed, so that `cargo` need not.
fn publication(root: &Path, target: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args([
        "publish",
        "--quiet",
        "--workspace",
        "--dry-run",
        "--no-verify",
        "--allow-dirty",
    ]);
    outcome(command.current_dir(root).env("CARGO_TARGET_DIR", target))
}

fn unpacked(root: &Path, target: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    for library in LIBRARIES {
        command.args(["-p", library]);
    }
    match outcome(command.current_dir(root).env("CARGO_TARGET_DIR", target)) {
        Outcome::Pass => {}
        other => return other,
    }
    for library in LIBRARIES {
        let packed = target.join("package").join(format!("{library}-{}.crate", version()));
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&packed).arg("-C").arg(target.join("package"));
        match outcome(&mut tar) {
            Outcome::Pass => {}
            other => return other,
        }
        if let Err(why) = links_stay(&unpacked_at(target, library)) {
            eprintln!("{library}: {why}");
            return Outcome::Fail;
        }
    }
    Outcome::Pass
}

fn unpacked_at(target: &Path, library: &str) -> PathBuf {
    target.join("package").join(format!("{library}-{}", version()))
}

/// A package's front page leads to nothing that the package does not have.
fn links_stay(package: &Path) -> Result<(), String> {
    let page = std::fs::read_to_string(package.join("README.md")).map_err(|e| e.to_string())?;
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let mut files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    match files.find(|target| !package.join(target).exists() || target.contains("..")) {
        Some(lost) => Err(format!("its README leads to {lost}, which is not in the package")),
        None => Ok(()),
    }
}

/// Version of the workspace, which this program shares.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn adopter(root: &Path, target: &Path) -> Outcome {
    let folder = target.join("adopter");
    if let Err(error) = write(root, target, &folder) {
        eprintln!("{}: {error}", folder.display());
        return Outcome::Fail;
    }
    let check = |extra: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(["check", "--quiet"]).args(extra).current_dir(&folder);
        outcome(command.env("CARGO_TARGET_DIR", target.join("build")))
    };
    match check(&["--features", "processes"]) {
        Outcome::Pass => {}
        other => return other,
    }
    match cross::add_target(BARE) {
        Ok(()) => check(&["--target", BARE]),
        Err(why) => Outcome::Skip(why),
    }
}

fn write(root: &Path, target: &Path, folder: &Path) -> std::io::Result<()> {
    let pages = PAGES.iter().map(|page| std::fs::read_to_string(root.join(page)));
    let pages: Vec<String> = pages.collect::<Result<_, _>>()?;
    std::fs::create_dir_all(folder.join("src"))?;
    std::fs::write(folder.join("Cargo.toml"), manifest(target))?;
    // The versions that everything else here is built with.
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    std::fs::write(folder.join("src/lib.rs"), library(&pages))
}

fn manifest(target: &Path) -> String {
    let mut text = String::from(
        "[package]\nname = \"adopter\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [features]\nprocesses = [\"dep:portolan-linux\", \"dep:portolan-vmm\"]\n\n[dependencies]\n",
    );
    for library in LIBRARIES {
        let optional = !FOR_KERNELS.contains(library);
        let _ =
            writeln!(text, "{library} = {{ version = \"{}\", optional = {optional} }}", version());
    }
    text.push_str("\n[patch.crates-io]\n");
    for library in LIBRARIES {
        let path = unpacked_at(target, library);
        let _ = writeln!(text, "{library} = {{ path = \"{}\" }}", path.display());
    }
    text
}

/// A module for each block of Rust.
fn library(pages: &[String]) -> String {
    let mut text = String::from("#![no_std]\n#![allow(dead_code)]\nextern crate alloc;\n");
    for (number, block) in pages.iter().flat_map(|page| blocks(page)).enumerate() {
        let _ = writeln!(text, "\npub mod block{number} {{\n{block}}}");
    }
    text
}

/// The blocks of Rust of a document.
fn blocks(document: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in document.lines() {
        match &mut open {
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some(block) => {
                block.push_str(line.strip_prefix("# ").unwrap_or(line));
                block.push('\n');
            }
            None if line.starts_with("```rust") => open = Some(String::new()),
            None => {}
        }
    }
    blocks
}
