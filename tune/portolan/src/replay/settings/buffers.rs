//! Bouncing, huge pages, and buffers that stay mapped.
//!
//! Linux 6.12: kernel/dma/swiotlb.c, Documentation/networking/page_pool.rst, admin-guide/mm/transhuge.rst.

use portolan_cli::display::{bytes, grouped};

use super::copies::{BOUNCED, copies};
use super::cost::{Cost, further_pieces, of_piece};
use super::policy::{Advise, COMMAND_LINE, is_older};
use super::{FEWEST, Input, WORTH_PCT};
use crate::linux::{Release, stage_of};
use crate::replay::setting::{Besides, Effect, Evidence, Rule, Saving, Setting, pct};
use crate::replay::situation::{Now, Situation};

/// The rules of this file.
pub(super) const RULES: &[Advise] =
    &[pool, forced_bounce, iommu_for_bounce, areas, huge_pages, keep_mapped];

/// Slots of 2 KiB in Linux's default pool: 64 MiB.
const POOL: u64 = 1 << 15;
/// Linux gives areas no fewer slots than these (`IO_TLB_SEGSIZE`).
const AREA: u64 = 128;
/// Since 6.0 the pool has areas, one for each CPU (20347fca71a3).
const AREAS: Release = Release(6, 0);
/// Buffers that are mapped so often are worth keeping mapped.
const AGAIN: u64 = 4;

/// The event of the first bounce, and the number of them.
fn bounce_shown(input: &Input<'_>, shows: &str) -> Option<Evidence> {
    let first = input.summary.first_by_name.get(BOUNCED)?;
    let count = input.summary.events_by_name.get(BOUNCED).copied()?;
    let shows = format!("{shows}, the first of {}", grouped(count));
    Some(Evidence::of(first, shows, count))
}

/// A pool with more room: it was full, or more than half of it.
fn pool(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let peak = input.shape.bounced_slots_peak;
    let told = input.facts.and_then(|facts| facts.swiotlb_slots);
    let slots = told.unwrap_or(POOL);
    let failed = now.now == Now::Bounced && input.trace.failed_maps > 0;
    if peak == 0 || !(failed || peak > slots / 2) {
        return None;
    }
    let cpus = input.facts.map_or(0, |facts| facts.cpus);
    let cpus = if cpus > 0 { cpus } else { input.profile.cpus() };
    let areas = u64::from(cpus).next_power_of_two();
    let wanted = peak
        .saturating_mul(2)
        .max(slots.saturating_mul(2))
        .max(areas * AREA)
        .checked_next_power_of_two()?;
    let evidence = match (failed, &input.summary.first_failed) {
        (true, Some(line)) => {
            let count = input.trace.failed_maps;
            let shows = format!("a map that found no room, the first of {}", grouped(count));
            Evidence::of(line, shows, count)
        }
        _ => {
            let line = input.shape.bounced_slots_peak_at.as_ref()?;
            let shows = format!("the map with which {} slots were taken, the most", grouped(peak));
            Evidence::of(line, shows, 1)
        }
    };
    let mut assumes = Vec::new();
    if told.is_none() {
        let default =
            "that the pool has the 32,768 slots that Linux gives it unless told otherwise";
        assumes.push(default.to_owned());
    }
    Some(Setting {
        rule: Rule::BouncePool,
        where_to_set: COMMAND_LINE.to_owned(),
        value: format!("swiotlb={wanted},{areas}"),
        effect: Effect {
            says: format!(
                "{} slots of 2 KiB ({}) in {} areas, where up to {} were taken at once of {}; {} maps found no room",
                grouped(wanted),
                bytes(wanted.saturating_mul(2048)),
                areas,
                grouped(peak),
                grouped(slots),
                grouped(input.trace.failed_maps)
            ),
            saving: None,
            then: None,
        },
        reason: "A map that finds no room in the pool fails; one that finds its area full searches the others."
            .to_owned(),
        evidence,
        besides: told.map_or(Vec::new(), |told| {
            vec![Besides::fact("io_tlb_nslabs", grouped(told))]
        }),
        danger: None,
        note: None,
        assumes,
    })
}

/// A kernel whose pool has a lock for each CPU instead of one.
fn areas(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let at_work = input.shape.cpus.iter().filter(|cpu| cpu.bounced.count > 0).count();
    let many = input.shape.bounced.count >= FEWEST && at_work > 1;
    if now.now != Now::Bounced || !many || !is_older(input, AREAS) {
        return None;
    }
    let release = input.facts?.release.clone();
    Some(Setting {
        rule: Rule::BounceAreas,
        where_to_set: "the kernel".to_owned(),
        value: "Linux 6.0 or later".to_owned(),
        effect: Effect {
            says: format!(
                "an area of the pool, and a lock, for each of the {at_work} CPUs that bounce"
            ),
            saving: None,
            then: None,
        },
        reason: "Before 6.0 the bounce pool has one lock, for which all CPUs wait.".to_owned(),
        evidence: bounce_shown(input, "a bounce")?,
        besides: vec![Besides::fact("release", release)],
        danger: None,
        note: None,
        assumes: Vec::new(),
    })
}

/// Advises to remove `swiotlb=force`: devices that reach a buffer then need no copy.
fn forced_bounce(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let evidence =
        bounce_shown(input, "a bounce that was forced, though the device reaches the memory")?;
    let forced = evidence.text.ends_with(" FORCE");
    let parameter = input.facts.map(|facts| facts.parameter("swiotlb").unwrap_or(""));
    let told = parameter.map(|value| value.split(',').any(|word| word == "force"));
    if now.now != Now::Bounced || !forced || told == Some(false) {
        return None;
    }
    let (before_us, besides) = copies(input)?;
    let saving = Saving::of(before_us, 0.0, [100.0, 100.0])?;
    let assumes = match told {
        Some(_) => Vec::new(),
        None => vec![
            "that `swiotlb=force` is there; a guest with encrypted memory has to bounce, and says FORCE too"
                .to_owned(),
        ],
    };
    Some(Setting {
        rule: Rule::NoForcedBounce,
        where_to_set: COMMAND_LINE.to_owned(),
        value: "take swiotlb=force away".to_owned(),
        effect: Effect {
            says: format!("none of {} copied", bytes(input.shape.bounce_copied_bytes)),
            saving: Some(saving),
            then: None,
        },
        reason: "All DMA is copied through the bounce pool, whatever the device reaches.".to_owned(),
        evidence,
        besides,
        danger: Some(
            "devices then reach the buffers themselves, and without an IOMMU all of memory, as they do now.".to_owned(),
        ),
        note: None,
        assumes,
    })
}

/// An IOMMU, behind which a device of 32 bits reaches all memory that is mapped for it.
fn iommu_for_bounce(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let evidence = bounce_shown(input, "a bounce for a device that does not reach the memory")?;
    let on = input.facts.is_some_and(|facts| !facts.iommus.is_empty());
    let vtd = stage_of(input.profile).is_some();
    if now.now != Now::Bounced || evidence.text.ends_with(" FORCE") || on || !vtd {
        return None;
    }
    let (copies_us, besides) = copies(input)?;
    let strict = Cost::of(input, Now::Strict)?;
    let ends = strict.range_us.map(|us| pct(copies_us, us));
    let saving = Saving::of(copies_us, strict.us, [ends[0]?, ends[1]?])?;
    if saving.pct < WORTH_PCT {
        return None;
    }
    Some(Setting {
        rule: Rule::IommuForBounce,
        where_to_set: COMMAND_LINE.to_owned(),
        value: "intel_iommu=on".to_owned(),
        effect: Effect {
            says: format!(
                "{} mapped instead of {} copied, strict",
                bytes(input.trace.bytes_mapped),
                bytes(input.shape.bounce_copied_bytes)
            ),
            saving: Some(saving),
            then: None,
        },
        reason: "Behind an IOMMU a device with few address bits reaches any memory that is mapped for it, and no other."
            .to_owned(),
        evidence,
        besides,
        danger: None,
        note: None,
        assumes: vec!["that the machine has VT-d, switched on in its firmware".to_owned()],
    })
}

/// Advises huge pages for buffers that are lists of single pages.
fn huge_pages(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let scattered = &input.shape.scattered;
    let told = input.facts.and_then(|facts| facts.huge_pages.as_deref());
    if !now.is_translated() || scattered.count < FEWEST || told == Some("always") {
        return None;
    }
    let piece = of_piece(input.profile);
    let price = input.profile.quote(piece).ok()?;
    let pieces = input.shape.scattered_pieces;
    let calls_us = further_pieces(input) as f64 * price.ns / 1000.0;
    let cost = Cost::of(input, now.now)?;
    let after_us = cost.us - calls_us;
    // Nothing, if the buffers stay scattered.
    let most = pct(cost.us, after_us)?;
    let saving = Saving::of(cost.us, after_us, [0.0, most])?;
    if saving.pct < WORTH_PCT {
        return None;
    }
    let each = pieces / scattered.count;
    let shows = format!(
        "a list of single pages, the first of {} with {each} on average",
        grouped(scattered.count)
    );
    Some(Setting {
        rule: Rule::HugePages,
        where_to_set: "/sys/kernel/mm/transparent_hugepage/enabled".to_owned(),
        value: "always".to_owned(),
        effect: Effect {
            says: format!(
                "as few as {} pieces mapped one by one instead of {}",
                grouped(scattered.count),
                grouped(pieces)
            ),
            saving: Some(saving),
            then: None,
        },
        reason: "Linux maps each piece of a list with a call of its own; a buffer in huge pages is one."
            .to_owned(),
        evidence: Evidence::of(input.shape.excerpt(scattered)?, shows, scattered.count),
        besides: vec![Besides {
            kind: "price",
            name: piece.name().to_owned(),
            says: format!("{:.3} ns, {}", price.ns, price.source),
        }],
        danger: None,
        note: None,
        assumes: vec![
            "that a program allocates these buffers (direct I/O) in blocks of 2 MiB; the page cache is not changed"
                .to_owned(),
        ],
    })
}

/// A driver that keeps the buffers of packets mapped.
fn keep_mapped(input: &Input<'_>, now: &Situation) -> Option<Setting> {
    let (again, all) = (&input.shape.packets_again, &input.shape.streaming.maps);
    let often = all.count >= AGAIN.saturating_mul(input.shape.buffers);
    let most = again.count >= all.count.div_ceil(2) && again.count >= FEWEST;
    if !(now.is_translated() && often && most) {
        return None;
    }
    let cost = Cost::of(input, now.now)?;
    let share = again.count as f64 / all.count as f64;
    let after_us = cost.us * (1.0 - share);
    // Nothing, if no buffer comes back in time to be used again.
    let most = pct(cost.us, after_us)?;
    let saving = Saving::of(cost.us, after_us, [0.0, most])?;
    if saving.pct < WORTH_PCT {
        return None;
    }
    let shows = format!(
        "a packet's buffer mapped again, the first of {}; the trace has {} buffers",
        grouped(again.count),
        grouped(input.shape.buffers)
    );
    let driver = input.facts.and_then(|facts| {
        let device = input.shape.devices.first()?;
        let known = facts.devices.iter().find(|one| one.name == device.name)?;
        Some(Besides::fact("driver", known.driver.clone()?))
    });
    Some(Setting {
        rule: Rule::KeepMapped,
        where_to_set: "the network driver".to_owned(),
        value: "one that keeps receive buffers mapped (page_pool with PP_FLAG_DMA_MAP)".to_owned(),
        effect: Effect {
            says: format!(
                "{} of {} maps and unmaps are left out",
                grouped(again.count),
                grouped(all.count)
            ),
            saving: Some(saving),
            then: None,
        },
        reason: "The same buffers are mapped and unmapped for each packet; a longer ring (`ethtool -G`) changes \
                 nothing of that, since each packet is mapped once whatever its length."
            .to_owned(),
        evidence: Evidence::of(input.shape.excerpt(again)?, shows, again.count),
        besides: driver.into_iter().collect(),
        danger: Some("the device reaches these buffers all the time, packets in use included.".to_owned()),
        note: None,
        assumes: Vec::new(),
    })
}
