//! Outcome of a step of `cargo xtask test`, and of the commands that run one step alone.

use std::process::Command;

/// Outcome of a step.
pub enum Outcome {
    /// Well.
    Pass,
    /// Not; it said why.
    Fail,
    /// It was not run, for this reason.
    Skip(String),
}

/// Prints the outcome of a step that runs alone; tells if it did not fail.
pub fn say(name: &str, outcome: Outcome) -> bool {
    match &outcome {
        Outcome::Pass => println!("PASS  {name}"),
        Outcome::Fail => println!("FAIL  {name}"),
        Outcome::Skip(why) => println!("SKIP  {name}: {why}"),
    }
    !matches!(outcome, Outcome::Fail)
}

/// Runs a command; it passes if the command ends well.
pub fn outcome(command: &mut Command) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Outcome::Pass,
        Ok(_) => Outcome::Fail,
        Err(error) => {
            eprintln!("cannot start {command:?}: {error}");
            Outcome::Fail
        }
    }
}
