//! Choice of a device's addresses, and its own TLB.
//!
//! Linux 6.12: drivers/iommu/dma-iommu.c (`iommu.forcedac`), kernel-parameters.txt (`pci=noats`).

use portolan_cli::display::{duration, grouped};
use portolan_sim::profile::Event;

use super::cost::Cost;
use super::policy::{Advise, COMMAND_LINE, is_older};
use super::{FEWEST, Input, WORTH_PCT};
use crate::linux::Release;
use crate::replay::setting::{Besides, Effect, Evidence, Rule, Saving, Setting, pct};
use crate::replay::situation::Situation;

/// The rules of this file.
pub(super) const RULES: &[Advise] = &[force_dac, no_ats];

/// Since 6.5 a device that was once refused an address below 4 GiB is not tried there again.
const GIVES_UP: Release = Release(6, 5);

/// Advises to use addresses above 4 GiB at once if none are left below.
fn force_dac(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let (above, all) = (&input.shape.dma_above_4g, &input.shape.streaming.maps);
    let some_below = above.count < all.count;
    let has_version = input.facts.is_some_and(|facts| facts.version().is_some());
    let known = has_version && !is_older(input, GIVES_UP)
        || input.facts.is_some_and(|facts| facts.parameter("iommu.forcedac") == Some("1"));
    if !now.is_translated() || known || above.count < FEWEST || !some_below {
        return None;
    }
    let old = is_older(input, GIVES_UP);
    let shows = format!(
        "a DMA address above 4 GiB, the first of {}: below none was left",
        grouped(above.count)
    );
    Some(Setting {
        rule: Rule::ForceDac,
        where_to_set: COMMAND_LINE.to_owned(),
        value: if old {
"iommu.forcedac=1, or Linux 6.5 or later".to_owned()
} else {
"iommu.forcedac=1".to_owned()
},
        effect: Effect {
            says: format!(
                "{} searches below 4 GiB fewer that find nothing; no price says what they cost",
                grouped(above.count)
            ),
            saving: None,
            then: None,
        },
        reason: "Before 6.5, Linux looks for an address below 4 GiB at each map for a PCI device, also when all are \
                 taken."
            .to_owned(),
        evidence: Evidence::of(input.shape.excerpt(above)?, shows, above.count),
        besides: input.facts.filter(|_| old).map_or(Vec::new(), |facts| {
            vec![Besides::fact("release", facts.release.clone())]
        }),
        danger: Some(
            "a device or driver that cannot use 64 bits of address, and says that it can, fails at once.".to_owned(),
        ),
        note: None,
        assumes: if old {
Vec::new()
} else {
vec!["Linux before 6.5; later ones give up searching by themselves".to_owned()]
},
    })
}

/// Advises to turn the device TLB off if invalidating it costs more than the walks that it saves.
fn no_ats(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let recorded = &input.summary.recorded;
    if !now.is_strict() || recorded.device < FEWEST {
        return None;
    }
    let page = input.profile.quote(Event::CmdPage).ok()?;
    let sync = input.profile.quote(Event::Sync).ok()?;
    let cost = Cost::of(input, now.now)?;
    // Each flush is a command, and at worst a wait as well.
    let of = |ns: f64| recorded.device as f64 * ns / 1000.0;
    let flushes_us = of(page.ns);
    // At best, a device with a TLB waits for none of the walks that the replay counts.
    let walks_us = cost.stall_us;
    if flushes_us <= walks_us {
        return None;
    }
    let after_us = cost.us - flushes_us;
    let most = pct(cost.us, after_us - of(sync.high()))?;
    let saving = Saving::of(cost.us, after_us, [pct(cost.us, after_us)?, most])?;
    if saving.pct < WORTH_PCT {
        return None;
    }
    let shows = format!("a flush of a device's TLB, the first of {}", grouped(recorded.device));
    Some(Setting {
        rule: Rule::NoAts,
        where_to_set: COMMAND_LINE.to_owned(),
        value: "pci=noats".to_owned(),
        effect: Effect {
            says: format!(
                "none of {} flushes of device TLBs; devices then wait up to {} for walks",
                grouped(recorded.device),
                duration(walks_us)
            ),
            saving: Some(saving),
            then: None,
        },
        reason: "Each strict unmap flushes the device's TLB as well, though the mapping was used but once.".to_owned(),
        evidence: Evidence::of(recorded.first_device.as_ref()?, shows, recorded.device),
        besides: vec![Besides {
            kind: "price",
            name: Event::CmdPage.name().to_owned(),
            says: format!("{:.3} ns, {}", page.ns, page.source),
        }],
        danger: None,
        note: None,
        assumes: vec!["that a device's TLB saves each walk that the replay counts, and no more".to_owned()],
    })
}
