//! Counts of one recorded load: the guest's line, QEMU's trace, and a replay of the recording.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::guest::GuestRun;

/// QEMU's event when the guest opens a port: before a load, and after it.
const MARK: &str = "virtio_serial_handle_control_message event 6, value 1";
/// Kind of a submitted command, and granularity of an IOTLB invalidation (VT-d, 6.5.2.3).
const IOTLB: u64 = 2;

/// The guest's counts of a load.
#[derive(Deserialize)]
pub struct Run {
    pub load: String,
    pub recorder: String,
    /// Counts of kernel events, by the value of one of their fields.
    kernel: BTreeMap<String, BTreeMap<u64, Count>>,
    /// Requests of all disks.
    pub disks: Count,
}

/// Events or requests, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Count {
    pub events: u64,
    pub bytes: u64,
}

/// Invalidations of the IOTLB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Invalidations {
    /// Invalidations by page or range.
    pub pages: u64,
    pub domains: u64,
    pub global: u64,
}

/// Counts of a replay.
pub struct Replayed {
    /// Mappings for transfers.
    pub maps: Count,
    /// Coherent memory.
    pub allocations: u64,
    /// Mappings of both kinds that ended, those among them that began before the recording.
    pub ends: u64,
    pub orphans: u64,
    pub bad_lines: u64,
    pub lost: u64,
    /// Invalidations of the recorded kernel.
    pub sent: Invalidations,
    /// Invalidations of a strict kernel, and of a lazy one.
    pub strict: u64,
    pub lazy: u64,
}

impl Run {
    /// Parses all results that the guest printed.
    pub fn all(console: &str) -> Result<Vec<Self>, String> {
        let lines = console.lines().filter_map(|line| line.strip_prefix("run: "));
        let runs = lines
            .map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}")));
        runs.collect()
    }

    /// Counts of the kernel's `events`, together.
    pub fn counted(&self, events: &[&str]) -> Count {
        let of = events.iter().filter_map(|event| self.kernel.get(*event));
        of.flat_map(BTreeMap::values).fold(Count::default(), |sum, count| Count {
            events: sum.events + count.events,
            bytes: sum.bytes + count.bytes,
        })
    }

    /// The invalidations that the kernel submitted.
    pub fn submitted(&self) -> Invalidations {
        let mut sum = Invalidations::default();
        for (word, count) in self.kernel.get("intel_iommu/qi_submit").into_iter().flatten() {
            match (word & 0xf, word >> 4 & 3) {
                (IOTLB, 1) => sum.global += count.events,
                (IOTLB, 2) => sum.domains += count.events,
                (IOTLB, 3) => sum.pages += count.events,
                _ => {}
            }
        }
        sum
    }
}

/// The unit that QEMU plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    VtD,
    /// AMD-Vi, which caches absent entries: Linux invalidates when it maps as well. It has no event for commands.
    AmdVi,
}

impl Unit {
    /// QEMU's events: an invalidation of pages, of a domain, of all.
    fn events(self) -> [&'static str; 3] {
        match self {
            Self::VtD => [
                "vtd_inv_desc_iotlb_pages",
                "vtd_inv_desc_iotlb_domain",
                "vtd_inv_desc_iotlb_global",
            ],
            // A domain is its pages, all of them.
            Self::AmdVi => ["amdvi_pages_inval", "amdvi_domain_inval", "amdvi_all_inval"],
        }
    }
}

/// Commands that QEMU's unit got during each run.
pub fn received(ran: &GuestRun, unit: Unit) -> Vec<Invalidations> {
    let [pages, domains, global] = unit.events().map(|event| ran.traced_after(MARK, event));
    // Every other part is between two loads; the last begins when the recordings leave.
    let parts = (1..pages.len()).step_by(2).map(|at| at - 1);
    let part =
        |at: usize| Invalidations { pages: pages[at], domains: domains[at], global: global[at] };
    parts.map(part).collect()
}

impl Replayed {
    /// Replays a recording of the guest's.
    pub fn of(ran: &GuestRun, file: &str) -> Result<Self, String> {
        let json = ran.portolan(&["replay", file, "--policy", "strict-page"])?;
        Self::read(&json).ok_or_else(|| format!("{file}: the replay leaves out a count"))
    }

    fn read(json: &Value) -> Option<Self> {
        let (trace, sent, predicted) = (&json["trace"], &json["sent"], &json["predicted"]);
        let streaming = &json["shape"]["streaming"]["maps"];
        let of = |what: &str| trace[what].as_u64();
        let sent = |what: &str| sent["invalidations"][what].as_u64().unwrap_or(0);
        Some(Self {
            maps: Count {
                events: streaming["count"].as_u64()?,
                bytes: streaming["bytes"].as_u64()?,
            },
            allocations: of("coherent_allocs")?,
            ends: of("unmaps")? + of("orphan_unmaps")? + of("coherent_frees")?,
            orphans: of("orphan_unmaps")?,
            bad_lines: of("bad_lines")?,
            lost: of("lost_events")?,
            sent: Invalidations {
                pages: sent("page") + sent("range"),
                domains: sent("context"),
                global: sent("global"),
            },
            strict: predicted["strict"].as_u64().unwrap_or(0),
            lazy: predicted["lazy"].as_u64().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_added_up_by_kind() {
        let console = "Linux\nrun: {\"load\":\"pages\",\"recorder\":\"perf\",\"kernel\":{\
                       \"iommu/unmap\":{\"4096\":{\"events\":3,\"bytes\":12288},\
                       \"8192\":{\"events\":1,\"bytes\":8192}},\
                       \"intel_iommu/qi_submit\":{\"262386\":{\"events\":3,\"bytes\":0},\
                       \"262370\":{\"events\":2,\"bytes\":0},\"5\":{\"events\":9,\"bytes\":0}}},\
                       \"disks\":{\"events\":4,\"bytes\":20480}}\r\n";
        let runs = Run::all(console).unwrap();
        let [run] = &runs[..] else {
            panic!("{} runs", runs.len());
        };
        let both = run.counted(&["iommu/unmap", "dma/dma_free"]);
        assert_eq!((both.events, both.bytes), (4, 20480));
        let wanted = Invalidations { pages: 3, domains: 2, global: 0 };
        assert_eq!(run.submitted(), wanted);
        assert!(Run::all("run: {}\n").is_err());
    }
}
