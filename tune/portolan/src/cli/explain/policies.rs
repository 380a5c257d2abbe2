//! `portolan explain --machine` and `--all`: the library's own policies for machine profiles.

use anyhow::Result;
use portolan_cli::Outcome;
use portolan_sim::profile::Profile;

use super::ExplainArgs;
use crate::cli::profile;
use crate::explain;

/// Prints the policies of the profiles that `args` names, or of all.
pub(super) fn run(args: &ExplainArgs) -> Result<Outcome> {
    let profiles = match args.machines.as_slice() {
        [] => Profile::builtin()?,
        names => names.iter().map(|name| profile(name)).collect::<Result<_>>()?,
    };
    let mut explanation = explain::explain(&profiles);
    if args.all {
        explanation.table = explain::everything();
    }
    args.output.show(&explanation, explain::text)?;
    Ok(Outcome::Good)
}
