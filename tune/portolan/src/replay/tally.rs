//! Counts of a lane, and the report from them.

use anyhow::Result;
use portolan_sim::iommu::CommandPrices;
use portolan_sim::profile::{Event, Profile};

use super::bounce::{CountedPool, Force};
use super::policy::Policy;
use super::report::{BounceCounts, DeviceCounts, PolicyReport, Saved, TimeByCause};
use super::timeline::Timeline;
use super::window::Windows;
use crate::counts::{Exposed, Invalidations};
use crate::fixture::Fixture;

/// Prices of CPU work and commands on a machine, in nanoseconds.
pub(super) struct WorkPrices {
    /// A call that maps.
    map_call: f64,
    /// Price of a call that unmaps, and of one that removes whole tables.
    unmap_call: [f64; 2],
    /// An entry written or cleared in a run.
    entry: f64,
    /// A table page taken out of the tree and freed.
    table_free: f64,
    commands: CommandPrices,
    copy: Option<CopyPrices>,
}

/// Prices of copying, in nanoseconds.
struct CopyPrices {
    call: f64,
    byte: f64,
}

impl WorkPrices {
    /// Prices of a machine under `policy`.
    ///
    /// # Errors
    /// If the profile lacks one.
    pub(super) fn of(policy: Policy, profile: &Profile) -> Result<Self> {
        Ok(Self {
            map_call: profile.price(Event::MapCall)?,
            unmap_call: [profile.price(Event::UnmapCall)?, profile.price(Event::UnmapCallTables)?],
            entry: profile.price(Event::PteWrite)?,
            table_free: profile.price(Event::TableFree)?,
            commands: CommandPrices::of(profile)?,
            copy: match policy {
                Policy::Bounce(_) => Some(CopyPrices {
                    call: profile.price(Event::CopyCall)?,
                    byte: profile.price(Event::CopyByte)?,
                }),
                _ => None,
            },
        })
    }
}

/// Counts of one lane; the rest is the model's.
#[derive(Debug, Default)]
pub(super) struct Tally {
    maps: u64,
    unmaps: u64,
    entries_mapped: u64,
    entries_unmapped: u64,
    mapped_peak: u64,
    pub(super) table_unmaps: u64,
    pub(super) tables_freed: u64,
    pub(super) rejected: u64,
    pub(super) pages_peak: usize,
    /// Invalidations that strict would have needed for the copied buffers.
    saved: Saved,
}

impl Tally {
    /// Notes a map with `entries` entries.
    pub(super) fn mapped(&mut self, entries: u64) {
        self.maps += 1;
        self.entries_mapped += entries;
        self.mapped_peak = self.mapped_peak.max(self.maps - self.unmaps);
    }

    /// Notes its end.
    pub(super) fn unmapped(&mut self, entries: u64) {
        self.unmaps += 1;
        self.entries_unmapped += entries;
    }

    /// Notes the end of a map of `pages` pages that was copied.
    pub(super) fn save(&mut self, pages: u64) {
        self.saved.pages += pages;
        self.saved.syncs += 1;
    }

    /// Nanoseconds of CPU work on maps and on unmaps.
    fn work_ns(&self, prices: &WorkPrices, pool: Option<&CountedPool>) -> (f64, f64) {
        if let (Some(copy), Some(pool)) = (&prices.copy, pool) {
            let ([_, _, copies], [inward, outward]) = (pool.slots(), pool.moved());
            let map = copies as f64 * copy.call + inward as f64 * copy.byte;
            return (map, outward as f64 * copy.byte);
        }
        let [call, with_tables] = prices.unmap_call;
        let map = sum(&[(self.maps, prices.map_call), (self.entries_mapped, prices.entry)]);
        let unmap = sum(&[
            (self.unmaps - self.table_unmaps, call),
            (self.table_unmaps, with_tables),
            (self.entries_unmapped, prices.entry),
            (self.tables_freed, prices.table_free),
        ]);
        (map, unmap)
    }

    /// The report of `policy` on a fixture; `pool` has the copies if it makes some.
    pub(super) fn report(
        &self,
        policy: Policy,
        prices: &WorkPrices,
        windows: &Windows,
        fixture: &Fixture,
        pool: Option<&CountedPool>,
    ) -> PolicyReport {
        let done = fixture.model.counters();
        let kinds = done.invalidations;
        let each = prices.commands;
        let (map, unmap) = self.work_ns(prices, pool);
        let invalidation = sum(&[
            (kinds.page - kinds.page_after_map, each.page),
            (kinds.page_after_map, each.page_after_map),
            (kinds.range, each.range),
            (kinds.context, each.context),
            (kinds.global, each.global),
            (fixture.lines(), each.clean_line),
        ]);
        let us = |ns: f64| ns / 1000.0;
        let time_us = TimeByCause {
            map: us(map),
            unmap: us(unmap),
            invalidation: us(invalidation),
            sync_wait: us(done.syncs as f64 * each.sync),
            exits: us(done.doorbells as f64 * each.exit),
            device_stall: us(fixture.model.stall_ns()),
            ..TimeByCause::default()
        };
        let time_us = time_us.summed();
        let (max_bytes, longest_ns) = windows.worst();
        PolicyReport {
            policy: policy.name().to_owned(),
            operations: self.maps + self.unmaps,
            invalidations: Invalidations::of(&done),
            masks: done.range_masks,
            syncs: done.syncs,
            exits: if each.exit > 0.0 { done.doorbells } else { 0 },
            time_us,
            total_range_us: None,
            exposed: Exposed {
                max_bytes,
                reusable_bytes: match policy {
                    Policy::Lazy => max_bytes,
                    _ => 0,
                },
                max_us: us(longest_ns),
            },
            table_pages_peak: self.pages_peak as u64,
            device: DeviceCounts {
                accesses: done.dma_accesses + done.faults,
                iotlb_misses: done.iotlb_misses,
                walk_reads: done.walk_steps,
                faults: done.faults,
            },
            rejected_maps: self.rejected,
            mapped_peak: self.mapped_peak,
            bounce: pool.map(|pool| self.bounced(pool)),
            timeline: Timeline::default(),
        }
    }

    fn bounced(&self, pool: &CountedPool) -> BounceCounts {
        let [slots, slots_peak, copies] = pool.slots();
        let (areas, force) = pool.shape();
        BounceCounts {
            slots,
            areas,
            forced: force == Force::Everything,
            slots_peak,
            copies,
            bytes_copied: pool.moved().iter().sum(),
            saved: self.saved,
        }
    }
}

fn sum(terms: &[(u64, f64)]) -> f64 {
    terms.iter().map(|(n, ns)| *n as f64 * ns).sum()
}
