//! Strict, lazy or not translated: settings of Linux that change when unmapped addresses are invalidated.
//!
//! Linux 6.12 (drivers/iommu/iommu.c, intel/iommu.c), its kernel-parameters.txt and
//! ABI/testing/sysfs-kernel-iommu_groups; releases are in `docs/advice.md`.

use portolan::dma::Trust;
use portolan_cli::display::{bytes, duration, grouped};

use super::cost::{Commands, Cost, CountSource, saving};
use super::situation::FLUSH_AFTER_MAP;
use super::{FEWEST, Input, WINDOW_WORTH_PCT};
use crate::counts::Exposed;
use crate::facts::{DeviceFacts, Facts};
use crate::linux::{Release, stage_of};
use crate::replay::setting::{Besides, Effect, Evidence, Rule, Saving, Setting, Then};
use crate::replay::shape::Share;
use crate::replay::situation::{KnownBy, Now, Situation};

/// A rule: returns its advice, if it has one.
pub(super) type Advise = fn(&Input<'_>, &Situation) -> Option<Setting>;
/// The rules of this file; the first that has something to say is followed.
pub(super) const RULES: &[Advise] = &[first_stage, lazy, strict, identity];

/// Since 5.15 a group may be made lazy (26225bea1d84), from strict while its drivers run.
const LAZY_GROUPS: Release = Release(5, 15);
/// Since 6.3 caching mode with first-stage tables may be lazy (257ec2907419).
const LAZY_FIRST_STAGE: Release = Release(6, 3);
pub(super) const COMMAND_LINE: &str = "the kernel's command line";

/// Tells if the recorded kernel is older than `release`; `false` if its release is not known.
pub(super) fn is_older(input: &Input<'_>, release: Release) -> bool {
    let version = input.facts.and_then(|facts| facts.version());
    version.is_some_and(|(major, minor)| Release(major, minor) < release)
}

/// The line that shows the kernel's policy now, and the number of such lines.
fn shown(input: &Input<'_>, now: &Situation) -> Option<Evidence> {
    let recorded = &input.summary.recorded;
    let pages: u64 = recorded.page_masks.values().sum();
    let unmaps = &input.shape.streaming.unmaps;
    let (line, shows, count) = match (&now.known_by, now.now) {
        (KnownBy::Line(line), Now::Shadowed) => {
            if line.text.contains(FLUSH_AFTER_MAP) {
                (line, "an invalidation after a map", of_maps(input))
            } else {
                (line, "an invalidation for a map or an unmap", pages)
            }
        }
        (KnownBy::Line(line), Now::Lazy) => (line, "one flush for many unmaps", recorded.domain),
        (KnownBy::Line(line), _) => (line, "an invalidation for one unmap", pages),
        (KnownBy::Fact(_) | KnownBy::Assumption, _) => {
            let line = input.shape.excerpt(unmaps)?;
            let count = unmaps.count;
            let shows = "an unmap, for which a strict kernel waits for an invalidation";
            (line, shows, count)
        }
    };
    let shows = format!("{shows}, the first of {}", grouped(count));
    Some(Evidence::of(line, shows, count))
}

/// Invalidations after maps.
fn of_maps(input: &Input<'_>) -> u64 {
    let counted = input.summary.events_by_name.get(FLUSH_AFTER_MAP);
    counted.copied().unwrap_or(0)
}

/// Assumption on the kernel where nothing tells its policy.
fn assumed(now: &Situation) -> Vec<String> {
    match now.known_by {
        KnownBy::Assumption => vec![
            "that Linux is strict now: `cat /sys/kernel/iommu_groups/*/type` says DMA then, and DMA-FQ if it is lazy"
                .to_owned(),
        ],
        KnownBy::Line(_) | KnownBy::Fact(_) => Vec::new(),
    }
}

/// Assumption about a lazy kernel's release, if it matters and is unknown.
fn assumed_release(input: &Input<'_>) -> Option<String> {
    let counts = input.linux?;
    let unmaps = grouped(counts.perhaps_unqueued()?);
    Some(match counts.lazy.unqueued {
        0 => format!(
            "that Linux is older than 7.3: since then, where these requests use the two-step API, {unmaps} of \
             the unmaps wait even if it is lazy"
        ),
        _ => format!(
            "that Linux is 7.3 or later, where {unmaps} of the unmaps wait even if it is lazy; before, they do not"
        ),
    })
}

fn known(now: &Situation) -> Vec<Besides> {
    match &now.known_by {
        KnownBy::Fact(says) => vec![Besides::fact("iommu_groups/*/type", says.clone())],
        KnownBy::Line(_) | KnownBy::Assumption => Vec::new(),
    }
}

/// The device that has nine in ten of all unmaps.
fn busy<'a>(input: &'a Input<'_>) -> Option<&'a Share> {
    let shares = &input.shape.devices;
    let all: u64 = shares.iter().map(|share| share.unmaps).sum();
    let all = all + input.shape.other_devices.unmaps;
    shares.iter().find(|share| share.unmaps >= all - all / 10 && all > 0)
}

/// Tells if `name` is a function of PCI: `0000:00:1f.2`.
fn is_pci(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    [4, 2, 2, 1].into_iter().all(|digits| {
        let part = parts.next().unwrap_or("");
        part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit())
    }) && parts.next().is_none()
}

/// The file with the type of the busy device's group, if that can be changed from `kind`.
fn group_file(input: &Input<'_>, kind: &str) -> Option<String> {
    let device = busy(input)?;
    let known = |facts: &DeviceFacts| facts.name == device.name;
    let facts = input.facts.and_then(|facts| facts.devices.iter().find(|one| known(one)));
    match facts {
        Some(facts) if facts.group_kind.as_deref().unwrap_or(kind) != kind => None,
        Some(facts) => Some(format!("/sys/kernel/iommu_groups/{}/type", facts.group)),
        None if is_pci(&device.name) => {
            Some(format!("/sys/bus/pci/devices/{}/iommu_group/type", device.name))
        }
        None => None,
    }
}

/// Words for a number that depends on time: `a few hundred`.
pub(in crate::replay) fn about(number: u64) -> String {
    match number {
        ..10 => "a few".to_owned(),
        10..100 => "a few dozen".to_owned(),
        100..1_000 => "a few hundred".to_owned(),
        1_000..10_000 => "a few thousand".to_owned(),
        _ => grouped(number.next_multiple_of(10_000)),
    }
}

impl Commands {
    fn in_words(self) -> String {
        match self.are {
            CountSource::Counted => grouped(self.count),
            CountSource::Predicted => format!("at most {}", about(self.most)),
        }
    }
}

/// Effect of lazy instead of `before`, and the memory that stays reachable.
fn lazy_effect(before: &Cost, after: &Cost, saving: Saving) -> (Effect, String) {
    let effect = Effect {
        says: format!(
            "{} invalidations instead of {}",
            after.commands.in_words(),
            before.commands.in_words()
        ),
        saving: Some(saving),
        then: Some(Then {
            policy: Now::Lazy,
            invalidations: after.commands.most,
            causes: after.causes,
            device_wait_us: after.stall_us,
            exposed: after.exposed,
        }),
    };
    let danger = format!(
        "after unmap the device still reaches up to {} for up to {}. Only for devices that you trust.",
        bytes(after.exposed.max_bytes),
        duration(after.exposed.max_us)
    );
    (effect, danger)
}

/// Enough unmaps to say something of a load.
fn is_a_load(input: &Input<'_>) -> bool {
    input.shape.streaming.unmaps.count >= FEWEST
}

/// Lazy for the device that does nearly all of it, or for all devices.
fn lazy(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let may_be = input.defaults.lazy_if_asked == "yes";
    if now.now != Now::Strict || !may_be || !is_a_load(input) {
        return None;
    }
    let (before, after) = (Cost::of(input, Now::Strict)?, Cost::of(input, Now::Lazy)?);
    let saving = saving(&before, &after).filter(|saving| saving.pct >= WINDOW_WORTH_PCT)?;
    let (effect, danger) = lazy_effect(&before, &after, saving);
    let group = group_file(input, "DMA").filter(|_| !is_older(input, LAZY_GROUPS));
    let mut assumes = assumed(now);
    assumes.extend(assumed_release(input));
    let (rule, where_to_set, value) = match group {
        Some(file) => {
            if input.facts.is_none_or(|facts| facts.version().is_none()) {
                assumes.push("Linux 5.15 or later".to_owned());
            }
            (Rule::LazyGroup, file, "DMA-FQ")
        }
        None => (Rule::LazyKernel, COMMAND_LINE.to_owned(), "iommu.strict=0"),
    };
    let note = match rule {
        Rule::LazyGroup => Some(
            "It holds until the next boot; iommu.strict=0 on the kernel's command line makes it so for all trusted \
             devices.",
        ),
        _ => None,
    };
    Some(Setting {
        rule,
        where_to_set,
        value: value.to_owned(),
        effect,
        reason: "Strict, Linux waits at each unmap; lazy, once for many.".to_owned(),
        evidence: shown(input, now)?,
        besides: known(now),
        danger: Some(danger),
        note,
        assumes,
    })
}

/// Strict again, where lazy saves too little for its window.
fn strict(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    if now.now != Now::Lazy || !is_a_load(input) {
        return None;
    }
    let (lazy, strict) = (Cost::of(input, Now::Lazy)?, Cost::of(input, Now::Strict)?);
    if lazy.exposed.max_bytes == 0 {
        // The kernel already waits for all of it.
        return None;
    }
    saving(&strict, &lazy).filter(|saving| saving.range_pct[1] < WINDOW_WORTH_PCT)?;
    Some(Setting {
        rule: Rule::StrictKernel,
        where_to_set: COMMAND_LINE.to_owned(),
        value: "iommu.strict=1".to_owned(),
        effect: Effect {
            says: format!(
                "nothing stays reachable after unmap, where up to {} do for up to {} now",
                bytes(lazy.exposed.max_bytes),
                duration(lazy.exposed.max_us)
            ),
            saving: saving(&lazy, &strict),
            then: Some(Then {
                policy: Now::Strict,
                invalidations: strict.commands.count,
                causes: strict.causes,
                device_wait_us: strict.stall_us,
                exposed: Exposed::default(),
            }),
        },
        reason: "Lazy saves too little here to be worth its window.".to_owned(),
        evidence: shown(input, now).filter(|shown| shown.count > 0)?,
        besides: known(now),
        danger: None,
        note: None,
        assumes: Vec::new(),
    })
}

/// First-stage tables under caching mode, which nothing shadows, so that Linux may be lazy.
fn first_stage(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let has = input.facts.map(Facts::has_first_stage);
    let trusted = input.profile.surroundings().trust == Trust::Trusted;
    let off = has == Some(Some(false)) || stage_of(input.profile).is_none() || !trusted;
    if now.now != Now::Shadowed || off || !is_a_load(input) {
        return None;
    }
    let (before, after) = (Cost::of(input, Now::Shadowed)?, Cost::of(input, Now::Lazy)?);
    let saving = saving(&before, &after).filter(|saving| saving.pct >= WINDOW_WORTH_PCT)?;
    let (effect, danger) = lazy_effect(&before, &after, saving);
    let mut assumes = Vec::new();
    if has.flatten().is_none() {
        let unit =
            "that the hypervisor's virtual unit offers scalable mode with first-stage tables";
        assumes.push(unit.to_owned());
    }
    if input.facts.is_none_or(|facts| facts.version().is_none()) {
        assumes.push("Linux 6.3 or later in the guest, which may be lazy then".to_owned());
    }
    let setting = "intel_iommu=on,sm_on iommu.strict=0";
    let value = if is_older(input, LAZY_FIRST_STAGE) {
        format!("{setting}, on Linux 6.3 or later")
    } else {
        setting.to_owned()
    };
    Some(Setting {
        rule: Rule::FirstStage,
        where_to_set: "the guest kernel's command line".to_owned(),
        value,
        effect,
        reason: "The hypervisor shadows second-stage tables (caching mode), so Linux invalidates at each map and unmap \
                 and refuses to be lazy; first-stage tables are not shadowed."
            .to_owned(),
        evidence: shown(input, now)?,
        besides: known(now),
        danger: Some(danger),
        note: None,
        assumes,
    })
}

/// Advises pass-through if the machine refuses to be lazy, and facts say both this and that the devices are trusted.
fn identity(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let facts = input.facts?;
    let refused = input.defaults.lazy_if_asked == "no"
        || (now.now == Now::Shadowed && facts.has_first_stage() == Some(false));
    let trusted = input.profile.surroundings().trust == Trust::Trusted;
    if !(now.is_strict() && refused && trusted && is_a_load(input)) {
        return None;
    }
    let before = Cost::of(input, now.now)?;
    let saving = Saving::of(before.us, 0.0, [100.0, 100.0])?;
    let mut besides = known(now);
    if facts.has_first_stage() == Some(false) {
        let says = "no scalable mode with first-stage tables";
        besides.push(Besides::fact("ecap", says));
    }
    Some(Setting {
        rule: Rule::Identity,
        where_to_set: COMMAND_LINE.to_owned(),
        value: "iommu.passthrough=1".to_owned(),
        effect: Effect {
            says: format!("none of {} invalidations, and no tables", before.commands.in_words()),
            saving: Some(saving),
            then: None,
        },
        reason: "Lazy is refused on this machine, so mapping costs this much or nothing.".to_owned(),
        evidence: shown(input, now)?,
        besides,
        danger: Some(
            "devices then read and write all of memory: a fault in one, or its firmware, reaches the kernel. Only \
             where every device and its driver are trusted, and never with ports that strangers can plug into."
                .to_owned(),
        ),
        note: Some(
            "One device alone is taken out by `identity` in its group's type, while no driver is bound to it.",
        ),
        assumes: Vec::new(),
    })
}
