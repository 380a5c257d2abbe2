//! Tests that mutants meet: building, running, telling a failure from a hang.
//!
//! The fate of each mutant is written down at once, by commit: a run that was interrupted goes on
//! where it was when it is started again.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::sample::Mutant;
use super::tool::Tree;

/// Tests get so many times as long as on the unchanged source, and no less than [`SHORTEST`].
const PATIENCE: u32 = 5;
/// Shortest limit, for machines that do other work as well.
const SHORTEST: Duration = Duration::from_secs(120);
/// Time between two looks if tests have ended.
const LOOK: Duration = Duration::from_millis(100);

/// Verdict of tests on a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// A test failed.
    Caught,
    /// The tests did not end.
    Hung,
    /// Does not compile.
    Unviable,
    /// All tests passed.
    Survived,
}

/// Tests that are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reach {
    /// Unit tests of the mutant's own package.
    Own,
    /// All tests of the mutant's package.
    Whole,
    /// All tests of some packages.
    Wider,
}

/// A line of the record.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    name: String,
    reach: Reach,
    verdict: Verdict,
}

/// Tests in a tree.
pub struct Stage<'t> {
    tree: &'t Tree,
    record: PathBuf,
    known: HashMap<(String, Reach), Verdict>,
    /// Longest time that the tests of these packages may take.
    limits: HashMap<(Reach, Vec<String>), Duration>,
}

impl<'t> Stage<'t> {
    /// Makes a stage with the verdicts that are recorded for the tree's commit.
    pub fn new(tree: &'t Tree) -> Self {
        let record = tree.record();
        Self {
            tree,
            known: known(&std::fs::read_to_string(&record).unwrap_or_default()),
            record,
            limits: HashMap::new(),
        }
    }

    /// Runs the tests on each of `mutants`; returns their verdicts. `wider` are the packages of [`Reach::Wider`],
    /// each after its dependencies.
    pub fn judge(
        &mut self,
        reach: Reach,
        wider: &[&str],
        mutants: &[Mutant],
    ) -> anyhow::Result<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        for (at, mutant) in mutants.iter().enumerate() {
            let key = (mutant.name.clone(), reach);
            let start = Instant::now();
            let verdict = match self.known.get(&key) {
                Some(&verdict) => verdict,
                None => {
                    let packages = match reach {
                        Reach::Own | Reach::Whole => vec![mutant.package.clone()],
                        // Earlier packages do not depend on it.
                        Reach::Wider => {
                            let others = wider.iter().map(|&name| name.to_owned());
                            others.skip_while(|name| *name != mutant.package).collect()
                        }
                    };
                    let verdict = self.meet(reach, &packages, mutant)?;
                    write_down(&self.record, mutant, reach, verdict)?;
                    self.known.insert(key, verdict);
                    verdict
                }
            };
            let (seconds, number, of) = (start.elapsed().as_secs(), at + 1, mutants.len());
            eprintln!("{reach:?} {number}/{of}  {verdict:?}  {seconds} s  {}", mutant.name);
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    /// The packages' tests run one package after the other, the cheapest to compile first: most
    /// mutants that wider tests catch never need the last of them compiled.
    fn meet(
        &mut self,
        reach: Reach,
        packages: &[String],
        mutant: &Mutant,
    ) -> anyhow::Result<Verdict> {
        for package in packages {
            let package = std::slice::from_ref(package);
            let limit = self.limit(reach, package)?;
            let _made = self.tree.make(mutant)?;
            if !self.build(reach, package, Stdio::null())? {
                return Ok(Verdict::Unviable);
            }
            let mut tests = self.tests(reach, package);
            tests.stdout(Stdio::null()).stderr(Stdio::null());
            match ends_well(&mut tests, limit)? {
                None => return Ok(Verdict::Hung),
                Some(true) => {}
                Some(false) => return Ok(Verdict::Caught),
            }
        }
        Ok(Verdict::Survived)
    }

    /// Longest time that the tests may take, from the time that they take on the unchanged source,
    /// on which they have to pass.
    fn limit(&mut self, reach: Reach, packages: &[String]) -> anyhow::Result<Duration> {
        let key = (reach, packages.to_vec());
        if let Some(&limit) = self.limits.get(&key) {
            return Ok(limit);
        }
        let names = packages.join(", ");
        eprintln!("mutants: {reach:?} tests of {names}, unchanged");
        let built = self.build(reach, packages, Stdio::inherit())?;
        anyhow::ensure!(built, "{names}: the unchanged source does not compile");
        let start = Instant::now();
        let mut tests = self.tests(reach, packages);
        tests.stdout(Stdio::null());
        let passed = tests.status()?.success();
        anyhow::ensure!(passed, "{names}: tests fail on the unchanged source");
        let limit = (start.elapsed() * PATIENCE).max(SHORTEST);
        self.limits.insert(key, limit);
        Ok(limit)
    }

    fn build(&self, reach: Reach, packages: &[String], errors: Stdio) -> anyhow::Result<bool> {
        let mut command = self.tests(reach, packages);
        command.arg("--no-run").stdout(Stdio::null()).stderr(errors);
        Ok(command.status()?.success())
    }

    fn tests(&self, reach: Reach, packages: &[String]) -> Command {
        let mut command = self.tree.cargo();
        command.args(["test", "--quiet"]);
        for package in packages {
            command.args(["--package", package]);
        }
        command.args(match reach {
            Reach::Own => &["--lib"][..],
            Reach::Whole => &[],
            Reach::Wider => &["--lib", "--bins", "--tests"],
        });
        command
    }
}

/// Verdicts in a record. Incomplete lines are ignored.
pub fn known(record: &str) -> HashMap<(String, Reach), Verdict> {
    let lines = record.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.map(|line| ((line.name, line.reach), line.verdict)).collect()
}

fn write_down(path: &Path, mutant: &Mutant, reach: Reach, verdict: Verdict) -> anyhow::Result<()> {
    let line = Line { name: mutant.name.clone(), reach, verdict };
    let text = serde_json::to_string(&line)? + "\n";
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).append(true).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// Runs `command`; returns if it ends well, or `None` if it does not end within `limit`. Then it is
/// killed, with all that it started.
pub fn ends_well(command: &mut Command, limit: Duration) -> anyhow::Result<Option<bool>> {
    let mut child = command.process_group(0).spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if start.elapsed() >= limit {
            let group = format!("-{}", child.id());
            let mut kill = Command::new("kill");
            kill.args(["-KILL", "--", &group]).status()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}
