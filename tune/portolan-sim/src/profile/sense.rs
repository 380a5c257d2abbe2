//! Checks of a profile: prices that are no prices, and facts that contradict each other.
//!
//! A contradiction is refused, since each figure after it would be wrong. An unlikely value is a warning:
//! [`Profile::warnings`](super::Profile::warnings).

use portolan::dma::{Shadowing, TrapCost};
use portolan::inval::{Caching, PageForm, RangeForm};

use super::{ContextKind, Event, Profile, ProfileError};
use crate::decode::EntryLayout;

/// Nanoseconds of the longest event that is believed: a second.
pub(crate) const LONGEST_NS: f64 = 1e9;
/// Nanoseconds below which no invalidation is believed that is an exit to a hypervisor: about the time of the unit
/// itself on bare metal.
const SHORTEST_EXIT_NS: f64 = 500.0;

/// CPUs, commands of a queue and entries of a cache beyond which a number is a slip.
const MOST: u32 = 1 << 20;
/// Bytes of an operation, likewise: 64 GiB.
const MOST_BYTES: u64 = 1 << 36;
/// Exponent of pages beyond which no range reaches: addresses have 64 bits.
const MOST_LG2_PAGES: u8 = 52;

/// Refuses contradictions in `profile`.
pub(super) fn check(profile: &Profile) -> Result<(), ProfileError> {
    let wrong = |key, why: String| Err(ProfileError::Value { key, why });
    let (caps, around) = (profile.capabilities, profile.surroundings);
    unit(profile)?;
    sizes(profile)?;
    if around.shadowing != Shadowing::None && around.exits == TrapCost::None {
        let why =
            "tables are shadowed, so there is a hypervisor, and an invalidation is an exit to it";
        return wrong("surroundings.exits", why.to_owned());
    }
    exits(profile)?;
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

/// Refuses capabilities that a unit with such tables does not have.
fn unit(profile: &Profile) -> Result<(), ProfileError> {
    let wrong = |key, why: &str| {
        let why = why.to_owned();
        Err(ProfileError::Value { key, why })
    };
    let (caps, kind) = (profile.capabilities, profile.format.kind());
    let caches_absence = caps.caching == Caching::NotPresentToo;
    let followed = profile.surroundings.shadowing == Shadowing::CachingMode;
    match kind {
        EntryLayout::VtdSecondStage if caches_absence != followed => {
            let why = "second-stage tables of VT-d cache what is not present in caching mode, and only then";
            return wrong("surroundings.shadowing", why);
        }
        EntryLayout::VtdFirstStage if caches_absence => {
            let why = "VT-d never caches that a first-stage entry is not present";
            return wrong("capabilities.caching", why);
        }
        EntryLayout::Armv8Stage1 | EntryLayout::Armv8Stage2 if caches_absence => {
            let why = "an SMMU of Arm's never caches that an entry is not present";
            return wrong("capabilities.caching", why);
        }
        EntryLayout::Tegra if !caches_absence => {
            let why = "Tegra's SMMU caches entries that are not present";
            return wrong("capabilities.caching", why);
        }
        EntryLayout::Armv8Stage1 | EntryLayout::Armv8Stage2 | EntryLayout::Tegra if followed => {
            let why = "caching mode is VT-d's";
            return wrong("surroundings.shadowing", why);
        }
        _ => {}
    }
    let tag = match kind {
        EntryLayout::Armv8Stage1 | EntryLayout::Tegra | EntryLayout::RiscvFirstStage => {
            ContextKind::Asid
        }
        EntryLayout::Armv8Stage2 | EntryLayout::RiscvSecondStage => ContextKind::Vmid,
        EntryLayout::VtdFirstStage | EntryLayout::VtdSecondStage | EntryLayout::AmdV1 => {
            ContextKind::Domain
        }
    };
    if profile.context != tag {
        return wrong("context", "translations of such tables are tagged by another number");
    }
    if caps.granule != profile.format.granule() {
        return wrong("capabilities.granule", "the tables have another granule");
    }
    Ok(())
}

/// Refuses numbers that no machine has.
fn sizes(profile: &Profile) -> Result<(), ProfileError> {
    let wrong = |key| {
        let why = "no machine has so many".to_owned();
        Err(ProfileError::Value { key, why })
    };
    let caches = &profile.caches;
    let counts = [
        ("cpus", profile.cpus),
        ("queue.depth", profile.queue.depth),
        ("caches.iotlb", caches.iotlb.entries),
        ("caches.walk", caches.walk.entries),
        ("caches.configuration", caches.configuration.entries),
    ];
    if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count > MOST) {
        return wrong(key);
    }
    if let RangeForm::PowerOfTwo { max_lg2_pages } = profile.capabilities.range
        && max_lg2_pages > MOST_LG2_PAGES
    {
        return wrong("capabilities.range");
    }
    if let RangeForm::NumScale { max_num, max_scale } = profile.capabilities.range
        && (max_num == 0 || max_num > 32 || max_scale > 31)
    {
        // Fields of five bits, one of which counts from one.
        return wrong("capabilities.range");
    }
    match &profile.workload {
        Some(workload) if workload.bytes > MOST_BYTES => wrong("workload.bytes"),
        _ => Ok(()),
    }
}

/// Refuses exits without a price, a price without exits, and CPUs that receive in no order.
fn exits(profile: &Profile) -> Result<(), ProfileError> {
    let wrong = |key, why: &str| {
        let why = why.to_owned();
        Err(ProfileError::Value { key, why })
    };
    let price = profile.prices.get(Event::Exit);
    match (profile.surroundings.exits, price) {
        (TrapCost::Expensive, None) => {
            return wrong("exit", "an invalidation is an exit; what does one cost?");
        }
        (TrapCost::None, Some(_)) => {
            return wrong("exit", "nothing exits here, so it has no price");
        }
        _ => {}
    }
    let Some([low, usual, high]) = profile.surroundings.receiving else {
        return Ok(());
    };
    if price.is_none() {
        let why = "CPUs that receive at once are what the price of an exit ranges over, and there is none";
        return wrong("surroundings.receiving", why);
    }
    if low == 0 || low > usual || usual > high {
        let why = "the least, the number that the price is for, and the most, in this order";
        return wrong("surroundings.receiving", why);
    }
    Ok(())
}

/// Warnings on unlikely values in `profile`, a sentence each.
pub(super) fn warnings(profile: &Profile) -> Vec<String> {
    let ns = |event| profile.price(event).ok();
    let mut said = Vec::new();
    let command = ns(Event::CmdRange).or_else(|| ns(Event::CmdPage));
    if let (Some(exit), Some(command), Some(sync)) = (ns(Event::Exit), command, ns(Event::Sync))
        && command + sync + exit < SHORTEST_EXIT_NS
    {
        said.push(format!(
            "machine {}: an invalidation is an exit to a hypervisor and costs {:.0} ns with its sync, less \
             than on bare metal; is that the price of one CPU that waits?",
            profile.name(),
            command + sync + exit,
        ));
    }
    if let (Some(command), Some(sync)) = (command, ns(Event::Sync))
        && command + sync == 0.0
    {
        said.push(format!(
            "machine {}: an invalidation and its sync cost nothing, so no policy saves anything",
            profile.name(),
        ));
    }
    let dearer = [
        (Event::PteWrite, Event::MapPage, "an entry in a run costs more than a page mapped alone"),
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
            said.push(format!("machine {}: {what}: {a} ns and {b} ns", profile.name()));
        }
    }
    said
}
