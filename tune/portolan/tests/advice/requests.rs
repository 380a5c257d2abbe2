//! Requests that have no `dma:*` events: the invalidations show the kernel's policy.

use portolan_tune::replay::Now;

use super::{machine, replayed};

const DEVICE: &str = "0000:00:01.0";

/// Lines of a trace, a microsecond apart unless time is let pass.
#[derive(Default)]
struct Lines {
    text: String,
    at_us: u64,
}

impl Lines {
    fn add(&mut self, says: &str) {
        self.at_us += 1;
        let (s, us) = (self.at_us / 1_000_000, self.at_us % 1_000_000);
        self.text += &format!("  fio-1  [000] ..... {s:4}.{us:06}: {says}\n");
    }

    fn map(&mut self, iova: u64, pa: u64) {
        let end = iova + 4096;
        self.add(&format!(
            "map: IOMMU: iova={iova:#018x} - {end:#018x} paddr={pa:#018x} size=4096"
        ));
    }

    /// An unmap, and the invalidation that a strict kernel sends for it.
    fn unmap(&mut self, iova: u64, bytes: u64) {
        let end = iova + bytes;
        self.add(&format!(
            "unmap: IOMMU: iova={iova:#018x} - {end:#018x} size={bytes} unmapped_size={bytes}"
        ));
        self.add(&format!("qi_submit: iotlb_inv dmar0: 0x300f2 {iova:#x} 0x0 0x0"));
    }

    fn page(&mut self, iova: u64) {
        let pa = iova ^ 0x7000_0000;
        self.map(iova, pa);
        self.add(&format!(
            "dma_map_phys: {DEVICE} dir=FROM_DEVICE dma_addr={iova:x} size=4096 phys_addr={pa:x} attrs="
        ));
        self.at_us += 400;
        self.unmap(iova, 4096);
        self.add(&format!(
            "dma_unmap_phys: {DEVICE} dir=FROM_DEVICE dma_addr={iova:x} size=4096 attrs="
        ));
    }

    fn list(&mut self, iova: u64) {
        for n in 0..8 {
            self.map(iova + n * 4096, 0x1000_0000 + n * 8192);
        }
        self.at_us += 400;
        self.unmap(iova, 32768);
    }
}

#[test]
fn a_strict_kernel_is_seen_to_be_strict_whichever_events_its_requests_have() {
    let mut lists = Lines::default();
    let mut both = Lines::default();
    for n in 0..300 {
        lists.list(0xfff0_0000 - n * 32768);
        both.page(0xffe0_0000 - n * 4096);
        both.list(0xefe0_0000 - n * 32768);
    }
    for (trace, operations) in [(lists, 300), (both, 600)] {
        let report = replayed(&trace.text, &machine("xeon-vtd"));
        assert_eq!((report.trace.maps, report.trace.unmaps), (operations, operations));
        // One for each unmap: neither a hypervisor that shadows tables, nor lazy.
        assert_eq!(report.situation.now, Now::Strict, "{:?}", report.situation);
        assert_eq!(report.predicted.map(|predicted| predicted.strict), Some(operations));
        assert_eq!(report.trace.understood.events_pct, 100.0);
    }
}
