//! Policy of the traced system for its DMA: translated or not, strict or lazy; and the evidence for it.
//!
//! The trace's own invalidations say it best; then the facts of the recording; else strict is assumed, and said.

use super::Input;
use crate::facts::Facts;
use crate::replay::situation::{KnownBy, Now, Situation};
use crate::trace::Excerpt;

/// Linux traces this after a map, where the unit caches entries that are not present.
pub(super) const FLUSH_AFTER_MAP: &str = "cache_tag_flush_range_np";

impl Situation {
    pub(super) fn of(input: &Input<'_>) -> Self {
        let maps = input.shape.streaming.maps.count;
        let seen = |now, seen| {
            let line = input.shape.excerpt(seen).cloned();
            Self { now, known_by: line.map_or(KnownBy::Assumption, KnownBy::Line) }
        };
        if maps + input.shape.coherent.maps.count == 0 {
            return Self { now: Now::Nothing, known_by: KnownBy::Assumption };
        }
        if maps > 0 && input.shape.bounced.count >= maps.div_ceil(2) {
            return seen(Now::Bounced, &input.shape.bounced);
        }
        if maps > 0 && input.shape.untranslated.count >= maps.div_ceil(2) {
            return seen(Now::Untranslated, &input.shape.untranslated);
        }
        by_invalidations(input)
            .or_else(|| by_facts(input.facts?, &input.summary.devices))
            .unwrap_or(Self { now: Now::Strict, known_by: KnownBy::Assumption })
    }
}

/// Situation by the commands that the traced kernel queued.
fn by_invalidations(input: &Input<'_>) -> Option<Situation> {
    let (summary, recorded) = (input.summary, &input.summary.recorded);
    let pages: u64 = recorded.page_masks.values().sum();
    let unmaps = summary.unmaps + summary.coherent_frees + summary.orphan_unmaps;
    let of = |now, line: &Excerpt| Situation { now, known_by: KnownBy::Line(line.clone()) };
    if let Some(line) = summary.first_by_name.get(FLUSH_AFTER_MAP) {
        return Some(of(Now::Shadowed, line));
    }
    let maps = summary.maps + summary.coherent_allocs;
    if let Some(line) = &recorded.first_page {
        // Most of them follow a map, or, where the trace has no events of tables, nearly one came for each operation.
        let (after_map, after_unmap) = (recorded.pages_after_map, recorded.pages_after_unmap);
        let shadowed = match after_map + after_unmap {
            0 => maps > 0 && pages >= (maps + unmaps) - (maps + unmaps) / 10,
            _ => after_map > maps / 2,
        };
        if shadowed {
            return Some(of(Now::Shadowed, line));
        }
        let half = unmaps - unmaps / 2;
        if pages >= half {
            // Since 7.3 a lazy kernel waits for unmaps by the two-step API: then the groups' types tell.
            let waits = input.linux.is_some_and(|linux| linux.lazy.unqueued >= half);
            let told = input.facts.filter(|_| waits);
            let lazy = told
                .and_then(|facts| by_facts(facts, &summary.devices))
                .filter(|told| told.now == Now::Lazy);
            return Some(lazy.unwrap_or_else(|| of(Now::Strict, line)));
        }
    }
    let line = recorded.first_domain.as_ref()?;
    (recorded.domain < unmaps.div_ceil(2)).then(|| of(Now::Lazy, line))
}

/// Finds the situation from the groups of the devices that the trace names.
fn by_facts(facts: &Facts, devices: &[String]) -> Option<Situation> {
    let strict = facts.is_strict(devices)?;
    let kinds = facts.kinds_of(devices).into_iter();
    let kinds: Vec<_> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
    let now = match (strict, facts.has_caching_mode(), facts.has_first_stage()) {
        (false, ..) => Now::Lazy,
        (true, Some(true), Some(false)) => Now::Shadowed,
        (true, ..) => Now::Strict,
    };
    Some(Situation { now, known_by: KnownBy::Fact(format!("groups: {}", kinds.join(", "))) })
}
