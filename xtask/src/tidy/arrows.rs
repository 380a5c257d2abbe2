//! Dependencies run one way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::Finding;

/// Crates that each crate of the workspace may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("portolan", &[]),
    ("portolan-spec", &[]),
    ("portolan-tables", &["portolan"]),
    ("portolan-hw", &["portolan", "portolan-spec", "portolan-tables"]),
    ("portolan-bare", &["portolan", "portolan-spec", "portolan-tables", "portolan-hw"]),
    ("portolan-virtio", &["portolan", "portolan-spec", "portolan-hw"]),
    ("portolan-sim", &["portolan"]),
    ("portolan-chips", &["portolan", "portolan-protocol", "portolan-sim"]),
    (
        "portolan-qemu",
        &["portolan", "portolan-spec", "portolan-tables", "portolan-hw", "portolan-bare"],
    ),
    ("portolan-linux", &["portolan"]),
    ("portolan-vmm", &["portolan", "portolan-spec"]),
    ("portolan-cli", &[]),
    ("portolan-report", &[]),
    // Nothing that only the other programs run: it would be compiled before the first replay.
    (
        "portolan-tune",
        &[
            "portolan",
            "portolan-spec",
            "portolan-tables",
            "portolan-hw",
            "portolan-sim",
            "portolan-cli",
            "portolan-report",
        ],
    ),
    ("portolan-formats", &["portolan"]),
    ("portolan-protocol", &["portolan", "portolan-formats"]),
    (
        "portolan-papers",
        &[
            "portolan",
            "portolan-hw",
            "portolan-chips",
            "portolan-sim",
            "portolan-cli",
            "portolan-report",
            "portolan-tune",
        ],
    ),
    ("portolan-verify", BACKENDS),
    ("portolan-bench", BACKENDS),
    // The first process of a guest, small.
    ("portolan-guest", &[]),
    ("portolan-monitor", &["portolan-vmm"]),
    ("xtask", &[]),
];

const BACKENDS: &[&str] = &[
    "portolan",
    "portolan-spec",
    "portolan-tables",
    "portolan-hw",
    "portolan-sim",
    "portolan-chips",
    "portolan-protocol",
    "portolan-qemu",
    "portolan-linux",
    "portolan-vmm",
    "portolan-cli",
];

/// Cargo's metadata of the workspace's packages.
pub fn metadata(root: &Path) -> anyhow::Result<serde_json::Value> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    let output = command.output()?;
    anyhow::ensure!(output.status.success(), "cargo metadata failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The folder of each package, from the root of the workspace.
pub(super) fn packages(root: &Path, metadata: &serde_json::Value) -> BTreeMap<String, String> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let folder = packages.filter_map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str()?).parent()?;
        let folder = manifest.strip_prefix(&root).ok()?.to_str()?;
        Some((package["name"].as_str()?.to_owned(), folder.to_owned()))
    });
    folder.collect()
}

/// The crates of others that packages depend on, for use and for tests.
pub(super) fn external(metadata: &serde_json::Value) -> BTreeSet<String> {
    let list = |of: &serde_json::Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let packages = list(metadata, "packages");
    let dependencies = packages.iter().flat_map(|package| list(package, "dependencies"));
    let others = dependencies.filter(|dependency| dependency["path"].is_null());
    others.filter_map(|dependency| Some(dependency["name"].as_str()?.to_owned())).collect()
}

pub(super) fn check(root: &Path, metadata: &serde_json::Value) -> anyhow::Result<Vec<Finding>> {
    let mut found = findings(metadata);
    let mut command = Command::new("cargo");
    command
        .args(["tree", "--package", FIRST, "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(root);
    let output = command.output()?;
    anyhow::ensure!(output.status.success(), "cargo tree failed");
    found.extend(c_libraries(&String::from_utf8(output.stdout)?));
    Ok(found)
}

/// The crate whose command a newcomer builds first.
const FIRST: &str = "portolan-tune";

/// Crates in `tree` that bring a C library: the first command wants no C compiler.
pub(super) fn c_libraries(tree: &str) -> Vec<Finding> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    // Declarations of Linux's system calls, in Rust alone.
    let c = names.filter(|name| name.ends_with("-sys") && *name != "linux-raw-sys");
    let names: BTreeSet<&str> = c.collect();
    let finding = |name: &str| Finding {
        path: FIRST.to_owned(),
        rule: "no-c",
        what: format!("must not depend on {name}, not even by way of another crate"),
    };
    names.into_iter().map(finding).collect()
}

/// Dependencies for use, not those for tests.
pub(super) fn findings(metadata: &serde_json::Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let ours: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut found = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or("");
        let allowed = ALLOWED.iter().find(|(of, _)| *of == name).map(|(_, allowed)| *allowed);
        let finding = |what| Finding { path: name.to_owned(), rule: "arrows", what };
        let Some(allowed) = allowed else {
            found.push(finding("is not in the table of allowed dependencies".to_owned()));
            continue;
        };
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        for dependency in dependencies.iter().filter(|d| d["kind"].is_null()) {
            let on = dependency["name"].as_str().unwrap_or("");
            if ours.contains(&on) && !allowed.contains(&on) {
                found.push(finding(format!("must not depend on {on}")));
            }
        }
    }
    found
}
