//! Public items of the libraries, compared with the lists in the tree.
//!
//! Each library has a file `api.txt` with one line for each public item. A change of the public API
//! so changes a file that a reviewer sees. The lists come from rustdoc's JSON, which the compiler
//! has behind an unstable option.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::{Outcome, outcome};

/// Libraries that others depend on, in the order in which they are published.
pub const LIBRARIES: &[&str] = &[
    "portolan",
    "portolan-spec",
    "portolan-tables",
    "portolan-hw",
    "portolan-bare",
    "portolan-virtio",
    "portolan-linux",
    "portolan-vmm",
];

/// Limit of changed lines that are shown of a library; the others are counted.
const SHOWN: usize = 20;

/// Compares the lists with the libraries.
pub fn check(root: &Path) -> Outcome {
    let listed = match lists(root) {
        Ok(listed) => listed,
        Err(other) => return other,
    };
    let mut good = true;
    for (library, now) in LIBRARIES.iter().zip(listed) {
        let kept = std::fs::read_to_string(file(root, library)).unwrap_or_default();
        good &= same(library, &kept, &now);
    }
    if good { Outcome::Pass } else { Outcome::Fail }
}

/// Writes the lists anew.
pub fn write(root: &Path) -> Outcome {
    let listed = match lists(root) {
        Ok(listed) => listed,
        Err(other) => return other,
    };
    for (library, now) in LIBRARIES.iter().zip(listed) {
        if let Err(error) = std::fs::write(file(root, library), now) {
            eprintln!("{}: {error}", file(root, library).display());
            return Outcome::Fail;
        }
    }
    Outcome::Pass
}

fn file(root: &Path, library: &str) -> PathBuf {
    root.join("crates").join(library).join("api.txt")
}

/// Tells if both lists are equal, and prints the lines that are in one of them.
fn same(library: &str, kept: &str, now: &str) -> bool {
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
        (kept.lines().collect(), now.lines().collect());
    let removed = old.difference(&new).map(|line| format!("- {line}"));
    let added = new.difference(&old).map(|line| format!("+ {line}"));
    let changes: Vec<String> = removed.chain(added).collect();
    if changes.is_empty() {
        return true;
    }
    eprintln!(
        "crates/{library}/api.txt is not the public API; `cargo xtask api --write` writes it:"
    );
    for change in changes.iter().take(SHOWN) {
        eprintln!("{change}");
    }
    if changes.len() > SHOWN {
        eprintln!("… and {} more", changes.len() - SHOWN);
    }
    false
}

/// Lists of all libraries, each with a line for each item.
fn lists(root: &Path) -> Result<Vec<String>, Outcome> {
    let target = root.join("target/api");
    document(root, &target)?;
    LIBRARIES
        .iter()
        .map(|library| {
            let json = target.join("doc").join(format!("{}.json", library.replace('-', "_")));
            let items = public_api::Builder::from_rustdoc_json(json)
                .omit_blanket_impls(true)
                .omit_auto_trait_impls(true)
                .omit_auto_derived_impls(true)
                .build()
                .map_err(|error| Outcome::Skip(format!("this compiler's JSON: {error}")))?;
            let lines: BTreeSet<String> = items.items().map(ToString::to_string).collect();
            Ok(lines.into_iter().fold(String::new(), |text, line| text + &line + "\n"))
        })
        .collect()
}

/// Makes rustdoc describe the libraries in JSON. Only rustdoc gets the unstable option, so that nothing else is
/// compiled differently from the other steps.
fn document(root: &Path, target: &Path) -> Result<(), Outcome> {
    let wrapper = target.join("rustdoc");
    let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
    if let Err(error) = std::fs::create_dir_all(target).and_then(|()| executable(&wrapper, script))
    {
        eprintln!("{}: {error}", wrapper.display());
        return Err(Outcome::Fail);
    }
    let mut command = Command::new("cargo");
    command.args(["doc", "--quiet", "--no-deps", "--lib"]).current_dir(root);
    for library in LIBRARIES {
        command.args(["-p", library]);
    }
    command.env("RUSTDOC", &wrapper).env("CARGO_TARGET_DIR", target);
    command.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow");
    match outcome(&mut command) {
        Outcome::Pass => Ok(()),
        other => Err(other),
    }
}

fn executable(path: &Path, script: &str) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    std::fs::write(path, script)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}
