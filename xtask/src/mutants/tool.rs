//! Source of the mutants, and the tree in which they are made.
//!
//! cargo-mutants lists them, each with a patch. They are made in a work tree below `target` that has
//! the last commit, never in the files at hand. That tree and its builds stay, so that the next run
//! compiles only changed files.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::sample::{Listed, Mutant};

/// Version that is installed if the tool is missing.
const VERSION: &str = "27.1.0";

/// Treatment of the mutants that the configuration excludes.
#[derive(Clone, Copy, Debug)]
pub enum Exclusions {
    /// They are left out.
    Configured,
    /// They are listed as well.
    Ignored,
}

/// A tree in which mutants are made.
pub struct Tree {
    /// Everything that stays between runs.
    home: PathBuf,
    commit: String,
}

impl Tree {
    /// The tree with the last commit, if cargo-mutants is here or can be installed.
    pub fn provide(root: &Path) -> anyhow::Result<Option<Self>> {
        if present() || install() { Self::of_last_commit(root).map(Some) } else { Ok(None) }
    }

    /// The tree with the last commit, for mutants that need no list.
    pub fn of_last_commit(root: &Path) -> anyhow::Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root.join("target"), |path| root.join(path));
        std::fs::create_dir_all(&target)?;
        let home = target.canonicalize()?.join("mutants");
        let commit = git(root, &["rev-parse", "HEAD"])?;
        let tree = Self { home, commit };
        check_out(root, &tree.path(), tree.commit())?;
        if !git(root, &["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
            eprintln!("mutants: changes that are not committed are left out");
        }
        Ok(tree)
    }

    /// The commit that the tree has.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// Path of the tree.
    pub fn path(&self) -> PathBuf {
        self.home.join("tree")
    }

    /// File that records the fates of this commit's mutants.
    pub fn record(&self) -> PathBuf {
        self.home.join(format!("{}.jsonl", self.commit))
    }

    /// Makes a cargo command that works in the tree and builds beside it.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(self.path());
        // `cargo xtask` runs under another cargo, which passes its settings to children.
        command.env_remove("CARGO").env_remove("RUSTC");
        command.env("CARGO_TARGET_DIR", self.home.join("build"));
        // A mutant may leave a variable unused; it must not fail because of that.
        command.env("RUSTFLAGS", "--cap-lints warn");
        // A build for one mutant compiles little and is run once.
        command.env("CARGO_INCREMENTAL", "1");
        command.env("CARGO_PROFILE_TEST_DEBUG", "0");
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }

    /// All mutants of `packages`.
    pub fn list(&self, packages: &[&str], exclusions: Exclusions) -> anyhow::Result<Vec<Mutant>> {
        let mut command = self.cargo();
        command.args(["mutants", "--colors", "never", "--list", "--json"]);
        match exclusions {
            Exclusions::Configured => {}
            Exclusions::Ignored => drop(command.arg("--no-config")),
        }
        for package in packages {
            command.args(["--package", package]);
        }
        let output = command.stderr(Stdio::inherit()).output()?;
        anyhow::ensure!(output.status.success(), "cargo-mutants lists no mutants");
        let listed: Vec<Listed> = serde_json::from_slice(&output.stdout)?;
        let mut sources: HashMap<String, String> = HashMap::new();
        let mut mutants = Vec::new();
        for one in listed {
            let file = one.file().to_owned();
            if !sources.contains_key(&file) {
                let text = std::fs::read_to_string(self.path().join(&file));
                sources.insert(file.clone(), text.with_context(|| file.clone())?);
            }
            let source = sources.get(&file).map_or("", String::as_str);
            mutants.push(Mutant::of(one, source));
        }
        Ok(mutants)
    }

    /// Makes the mutant; the tree is restored when the returned value is dropped.
    pub fn make<'t>(&'t self, mutant: &Mutant) -> anyhow::Result<Made<'t>> {
        self.restore()?;
        let made = Made(self);
        let mut command = Command::new("git");
        command.args(["apply", "--whitespace=nowarn", "-"]);
        let mut child = command.current_dir(self.path()).stdin(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("git reads nothing")?;
        input.write_all(mutant.patch().as_bytes())?;
        drop(input);
        let applied = child.wait()?.success();
        anyhow::ensure!(applied, "the patch of {} does not fit", mutant.name);
        Ok(made)
    }

    fn restore(&self) -> anyhow::Result<()> {
        git(&self.path(), &["checkout", "--quiet", "--", "."]).map(drop)
    }
}

/// A mutant that is made.
pub struct Made<'t>(&'t Tree);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.restore() {
            eprintln!("mutants: {error:#}");
        }
    }
}

fn present() -> bool {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn install() -> bool {
    eprintln!("mutants: installing cargo-mutants {VERSION}");
    let mut command = Command::new("cargo");
    command.args(["install", "--quiet", "--locked", "cargo-mutants"]);
    command.args(["--version", VERSION]);
    command.status().is_ok_and(|status| status.success()) && present()
}

/// Makes `path` a work tree of the repository at `root` with `commit`. One of which git does not know any
/// more, because it was pruned, is made again.
pub(super) fn check_out(root: &Path, path: &Path, commit: &str) -> anyhow::Result<()> {
    if path.join(".git").exists() && git(path, &["rev-parse", "--git-dir"]).is_ok() {
        git(path, &["checkout", "--quiet", "--force", "--detach", commit])?;
        return Ok(());
    }
    if path.exists() {
        std::fs::remove_dir_all(path)?;
    }
    let path = path.to_str().context("the path of the tree is not text")?;
    git(root, &["worktree", "prune"])?;
    git(root, &["worktree", "add", "--quiet", "--detach", path, commit])?;
    Ok(())
}

/// Runs git; returns its output.
fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "git {}: {why}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
