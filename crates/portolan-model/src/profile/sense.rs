//! What a profile must not say: prices that are no prices, and facts that contradict each other.
//!
//! A contradiction is refused, since each figure after it would be wrong. What is only unlikely is a
//! warning: [`Profile::warnings`](super::Profile::warnings).

use portolan::dma::{Shadowing, TrapCost};
use portolan::inval::{Caching, PageForm, RangeForm};

use super::{Event, Profile, ProfileError};
use crate::decode::TableFormat;

/// Nanoseconds of the longest event that is believed: a second.
pub(crate) const LONGEST_NS: f64 = 1e9;
/// Nanoseconds below which no invalidation is believed that is an exit to a hypervisor: about what
/// the unit itself takes on bare metal.
const SHORTEST_EXIT_NS: f64 = 500.0;

/// What a walk of tables is in VT-d's words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walked {
    FirstStage,
    SecondStage,
    Other,
}

fn walked(format: TableFormat) -> Walked {
    let is = |made: Result<TableFormat, _>| made.as_ref().ok() == Some(&format);
    if [4, 5]
        .map(TableFormat::vtd_first_stage)
        .map(is)
        .contains(&true)
    {
        Walked::FirstStage
    } else if [3, 4, 5]
        .map(TableFormat::vtd_second_stage)
        .map(is)
        .contains(&true)
    {
        Walked::SecondStage
    } else {
        Walked::Other
    }
}

/// Refuses what contradicts itself in `profile`.
pub(super) fn check(profile: &Profile) -> Result<(), ProfileError> {
    let wrong = |key, why: String| Err(ProfileError::Value { key, why });
    let (caps, around) = (profile.capabilities, profile.surroundings);
    let caches_absence = caps.caching == Caching::NotPresentToo;
    match walked(profile.format) {
        Walked::SecondStage if caches_absence != (around.shadowing == Shadowing::CachingMode) => {
            return wrong(
                "surroundings.shadowing",
                "second-stage tables of VT-d cache what is not present in caching mode, and only then"
                    .to_owned(),
            );
        }
        Walked::FirstStage if caches_absence => {
            let why = "VT-d never caches that a first-stage entry is not present".to_owned();
            return wrong("capabilities.caching", why);
        }
        _ => {}
    }
    if around.shadowing != Shadowing::None && around.exits == TrapCost::None {
        let why =
            "tables are shadowed, so there is a hypervisor, and an invalidation is an exit to it";
        return wrong("surroundings.exits", why.to_owned());
    }
    let forms = [
        (Event::CmdPage, caps.page == PageForm::Absent, "by page"),
        (Event::CmdRange, caps.range == RangeForm::Absent, "by range"),
    ];
    for (event, absent, form) in forms {
        match (absent, profile.prices.get(event)) {
            (true, Some(_)) => {
                let why = format!("the machine has no invalidation {form}, so it has no price");
                return wrong(event.name(), why);
            }
            (false, None) => {
                let why = format!("the machine invalidates {form}; what does that cost?");
                return wrong(event.name(), why);
            }
            _ => {}
        }
    }
    let deadline = profile.queue.deadline_ns as f64;
    if let Some(sync) = profile.prices.get(Event::Sync)
        && sync.high() > deadline
    {
        let why = format!("a wait of {} ns is past the queue's deadline", sync.high());
        return wrong("sync", why);
    }
    Ok(())
}

/// What in `profile` is unlikely, a sentence each.
pub(super) fn warnings(profile: &Profile) -> Vec<String> {
    let ns = |event| profile.price(event).ok();
    let mut said = Vec::new();
    let command = ns(Event::CmdRange).or_else(|| ns(Event::CmdPage));
    if let (TrapCost::Expensive, Some(command), Some(sync)) =
        (profile.surroundings.exits, command, ns(Event::Sync))
        && command + sync < SHORTEST_EXIT_NS
    {
        said.push(format!(
            "machine {}: an invalidation is an exit to a hypervisor and costs {:.0} ns with its sync, less \
             than on bare metal; is that the price of one CPU that waits?",
            profile.name(),
            command + sync,
        ));
    }
    let dearer = [
        (
            Event::PteWrite,
            Event::MapPage,
            "an entry in a run costs more than a page mapped alone",
        ),
        (
            Event::CmdPage,
            Event::CmdGlobal,
            "a command for a page costs more than one for everything",
        ),
    ];
    for (small, large, what) in dearer {
        if let (Some(a), Some(b)) = (ns(small), ns(large))
            && a > b
        {
            said.push(format!(
                "machine {}: {what}: {a} ns and {b} ns",
                profile.name()
            ));
        }
    }
    said
}
