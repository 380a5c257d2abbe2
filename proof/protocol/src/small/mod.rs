//! Protocols beside that of unmap and invalidate: each small, with its own state.
//!
//! They speak of what an address space's protocol leaves out: leaves that are split, places of free
//! addresses, page requests, bounce slots, a space whose hardware has failed, and units that sleep.
//! The same checks are made of each.

mod addresses;
mod bounce;
mod recovery;
mod requests;
mod splits;
mod suspend;

use crate::defects::Defect;
use crate::fairness::Endless;
use crate::finite::Sizes;
use crate::protocol::{Actor, Change, Claim, Protocol, Step};

/// A protocol with what its checks need.
pub struct Scope {
    /// Its subject.
    pub name: &'static str,
    /// The protocol.
    pub protocol: Protocol,
    /// Defects that the checks have to refute.
    pub defects: Vec<Defect>,
    /// Machine on which defects show.
    pub small: Sizes,
    /// Machines all of whose states are visited.
    pub searched: Vec<Sizes>,
    /// Promises of what comes to its end.
    pub endless: Vec<Endless>,
}

/// All of them.
pub fn all() -> Vec<Scope> {
    vec![
        splits::at_once(),
        splits::through_an_invalid_entry(),
        addresses::scope(),
        requests::scope(),
        bounce::scope(),
        recovery::scope(),
        suspend::scope(),
    ]
}

/// Step of a CPU.
fn by_cpu(
    name: &'static str,
    place: &'static str,
    variables: &'static str,
    guards: Vec<Claim>,
    changes: Vec<Change>,
) -> Step {
    Step { name, actor: Actor::Cpu, place, variables, guards, changes }
}

/// Step of the hardware, or of code that is not the library's.
fn by_others(
    name: &'static str,
    actor: Actor,
    variables: &'static str,
    guards: Vec<Claim>,
    changes: Vec<Change>,
) -> Step {
    Step { name, actor, place: "", variables, guards, changes }
}
