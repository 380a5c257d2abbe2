//! `cargo xtask mutants`: counts the small changes of the library and its drivers that some test notices.
//!
//! cargo-mutants names the changes; they are made one at a time, in a work tree below `target`. A
//! seeded sample takes as many from each room of the library and each driver. Mutants meet the unit
//! tests of their own package, then all of its tests, then those of other packages. Mutants that
//! change nothing that matters are left out by cargo-mutants itself (`.cargo/mutants.toml`).

mod equivalents;
pub mod mistakes;
mod options;
mod report;
mod sample;
mod stage;
#[cfg(test)]
mod tests;
mod tool;

use std::path::Path;
use std::process::ExitCode;

use equivalents::Equivalents;
use options::Options;
use report::{Fate, Report};
use stage::{Reach, Stage, Verdict};
use tool::{Exclusions, Tree};

pub use options::{MISTAKES, USAGE};

/// The packages whose mutants are made.
const PACKAGES: [&str; 3] = ["portolan", "portolan-tables", "portolan-hw"];
/// Packages whose tests run on the mutants that survived the tests of their own package.
const WIDER: [&str; 7] = [
    "portolan",
    "portolan-tables",
    "portolan-hw",
    "portolan-sim",
    "portolan-chips",
    "portolan-vmm",
    "portolan-verify",
];

/// Runs the command: 0 if enough mutants are caught or the tool is not available, 1 if too few are or an entry is not
/// equivalent, 2 if nothing could be found out.
pub fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n\nusage: cargo xtask {USAGE}");
            return ExitCode::from(2);
        }
    };
    let tree = match Tree::provide(root) {
        Ok(Some(tree)) => tree,
        Ok(None) => {
            println!("SKIP  cargo-mutants is not here and cannot be installed");
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&error),
    };
    match examine(&tree, &options) {
        Ok(report) => {
            let printed = if options.json {
                report.json().map(|json| println!("{json}"))
            } else {
                print!("{report}");
                Ok(())
            };
            match printed {
                Ok(()) => ExitCode::from(u8::from(!report.good())),
                Err(error) => fail(&error),
            }
        }
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("mutants: {error:#}");
    ExitCode::from(2)
}

/// Lists, chooses, tests.
fn examine(tree: &Tree, options: &Options) -> anyhow::Result<Report> {
    let all = tree.list(&PACKAGES, Exclusions::Configured)?;
    let with_excluded = tree.list(&PACKAGES, Exclusions::Ignored)?;
    let chosen = sample::choose(&all, options.sample, options.seed);
    let chosen = options.part.of(chosen);
    let mut report = Report {
        commit: tree.commit().to_owned(),
        seed: options.seed,
        of: all.len(),
        excluded: with_excluded.len().saturating_sub(all.len()),
        least: options.least,
        stale: Equivalents::read(&tree.path())?.stale(&with_excluded)?,
        results: Vec::new(),
    };
    if options.list {
        let untested = chosen.into_iter().map(|mutant| (mutant, Fate::Untested));
        report.results.extend(untested);
        return Ok(report);
    }
    let mut stage = Stage::new(tree);
    let mut left = chosen;
    for reach in [Reach::Own, Reach::Whole] {
        let verdicts = stage.judge(reach, &[], &left)?;
        let mut survived = Vec::new();
        for (mutant, verdict) in left.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Caught | Verdict::Hung => report.results.push((mutant, Fate::Caught)),
                Verdict::Unviable => report.results.push((mutant, Fate::Unviable)),
                Verdict::Survived => survived.push(mutant),
            }
        }
        left = survived;
    }
    let wider = stage.judge(Reach::Wider, &WIDER, &left)?;
    let fates = wider.into_iter().map(|verdict| match verdict {
        Verdict::Caught | Verdict::Hung => Fate::CaughtWider,
        Verdict::Unviable => Fate::Unviable,
        Verdict::Survived => Fate::Survived,
    });
    report.results.extend(left.into_iter().zip(fates));
    Ok(report)
}
