//! Programs and tests that a build leaves, as cargo itself names them (`--message-format json`, the messages
//! `compiler-artifact`).
//!
//! A test that is run by its path needs no second build. `cargo test -p PACKAGE` would need one: the libraries have
//! other features there than in the whole workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// A program, or tests.
pub struct Executable {
    /// Folder of its package.
    pub package: PathBuf,
    /// Name of its target.
    pub name: String,
    /// Kind of its target: `lib`, `bin`, `test`, `example`.
    pub kind: String,
    /// True for tests, of which a library has some as well.
    pub is_test: bool,
    /// Path of its file.
    pub path: PathBuf,
}

impl Executable {
    /// Runs it as cargo would: in the folder of its package.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

#[derive(Deserialize)]
struct Message {
    manifest_path: PathBuf,
    target: MessageTarget,
    profile: MessageProfile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct MessageTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct MessageProfile {
    test: bool,
}

/// Builds what `cargo` says; returns it, or `None` if it is not built.
pub fn by(cargo: &mut Command) -> Option<Vec<Executable>> {
    cargo.args(["--quiet", "--message-format", "json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().ok()?;
    output.status.success().then(|| listed(&output.stdout))
}

/// The programs of the whole workspace that `targets` name, as the tests use them: built with their features and
/// their profile, so that nothing is compiled again.
pub fn programs(root: &Path, targets: &[&str]) -> Option<Vec<Executable>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "--profile", "test", "--workspace"]).args(targets);
    by(cargo.current_dir(root))
}

/// All tests of the workspace.
pub fn tests(root: &Path) -> Option<Vec<Executable>> {
    let mut cargo = Command::new("cargo");
    let all = by(cargo.args(["test", "--workspace", "--no-run"]).current_dir(root))?;
    Some(all.into_iter().filter(|one| one.is_test).collect())
}

/// The executables that cargo's messages name.
fn listed(messages: &[u8]) -> Vec<Executable> {
    let messages = messages.split(|byte| *byte == b'\n');
    // Other messages have other fields.
    let messages = messages.filter_map(|message| serde_json::from_slice::<Message>(message).ok());
    let executables = messages.filter_map(|message| {
        Some(Executable {
            package: message.manifest_path.parent()?.to_owned(),
            name: message.target.name,
            kind: message.target.kind.into_iter().next()?,
            is_test: message.profile.test,
            path: message.executable?,
        })
    });
    executables.collect()
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn libraries_and_other_messages_are_no_executables() {
        let artifact = |name: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/a#0.1.0",
                "manifest_path":"/w/a/Cargo.toml","target":{{"kind":["lib"],"name":"{name}"}},
                "profile":{{"test":true}},"executable":{executable}}}"#
            )
            .replace('\n', "")
        };
        let messages = [
            artifact("library", "null"),
            artifact("tests", "\"/w/target/debug/deps/tests-1\""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = listed(messages.join("\n").as_bytes());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].is_test), ("tests", true));
        assert_eq!(found[0].package.to_str(), Some("/w/a"));
        assert_eq!(found[0].kind, "lib");
    }
}
