//! What a lane counts, and the report that it comes to.

use portolan::table::Format;

use super::report::{DeviceCounts, Exposed, Invalidations, PolicyReport, TimeByCause};
use crate::rig::Rig;

/// Counts of one lane; the rest is the model's.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) maps: u64,
    pub(super) unmaps: u64,
    pub(super) entries_mapped: u64,
    pub(super) entries_unmapped: u64,
    pub(super) table_unmaps: u64,
    pub(super) tables_freed: u64,
    pub(super) rejected: u64,
    pub(super) mapped_peak: u64,
    pub(super) pages_peak: usize,
    pub(super) exposed_bytes: u64,
    pub(super) reusable_bytes: u64,
    pub(super) exposed_ns: f64,
}

impl Tally {
    /// Notes `bytes` that were reachable for `ns` after their unmap.
    pub(super) fn exposed(&mut self, bytes: u64, ns: f64) {
        self.exposed_bytes = self.exposed_bytes.max(bytes);
        self.exposed_ns = self.exposed_ns.max(ns);
    }

    /// The report of the policy called `name`, whose debts `rig` was paid.
    pub(super) fn report<F: Format>(&self, name: &str, rig: &Rig<F>) -> PolicyReport {
        let done = rig.counters();
        let kinds = done.invalidations;
        let cpu = rig.cpu();
        let each = rig.commands();
        let sum = |terms: &[(u64, f64)]| terms.iter().map(|(n, ns)| *n as f64 * ns).sum::<f64>();
        let map = sum(&[(self.maps, cpu.map_call), (self.entries_mapped, cpu.entry)]);
        let unmap = sum(&[
            (self.unmaps - self.table_unmaps, cpu.unmap_call),
            (self.table_unmaps, cpu.unmap_call_tables),
            (self.entries_unmapped, cpu.entry),
            (self.tables_freed, cpu.table_free),
        ]);
        let invalidation = sum(&[
            (kinds.page - kinds.page_after_map, each.page),
            (kinds.page_after_map, each.page_after_map),
            (kinds.range, each.range),
            (kinds.context, each.context),
            (kinds.global, each.global),
            (done.cleaned_lines, each.clean_line),
        ]);
        let us = |ns: f64| ns / 1000.0;
        let mut time_us = TimeByCause {
            total: 0.0,
            map: us(map),
            unmap: us(unmap),
            invalidation: us(invalidation),
            sync_wait: us(done.syncs as f64 * each.sync),
            device_stall: us(rig.stall_ns()),
        };
        time_us.total = time_us.cpu() + time_us.device_stall;
        PolicyReport {
            policy: name.to_owned(),
            operations: self.maps + self.unmaps,
            invalidations: Invalidations {
                page: kinds.page,
                range: kinds.range,
                context: kinds.context,
                global: kinds.global,
            },
            masks: done.range_masks,
            syncs: done.syncs,
            time_us,
            exposed: Exposed {
                max_bytes: self.exposed_bytes,
                reusable_bytes: self.reusable_bytes,
                max_us: us(self.exposed_ns),
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
            bounce: None,
        }
    }
}
