//! Compares the recording, the kernel's counts and QEMU's, load by load.
//!
//! Of the kernel's counts a mapping by the two-step API (Linux 6.17 and later) shows in `iommu:unmap` alone; `dma`
//! events are one a mapping and one an unmapping.

use super::run::{Count, Invalidations, Replayed, Run, Unit, received};
use crate::guest::GuestRun;

/// The kernel's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Strict,
    Lazy,
    Passthrough,
    /// No IOMMU.
    None,
}

impl Policy {
    fn translates(self) -> bool {
        matches!(self, Self::Strict | Self::Lazy)
    }
}

const MAPS: [&str; 3] = ["dma/dma_map_page", "dma/dma_map_phys", "dma/dma_map_sg"];
const UNMAPS: [&str; 3] = ["dma/dma_unmap_page", "dma/dma_unmap_phys", "dma/dma_unmap_sg"];
const ALLOCATIONS: [&str; 2] = ["dma/dma_alloc", "dma/dma_alloc_sgt"];
const FREES: [&str; 2] = ["dma/dma_free", "dma/dma_free_sgt"];
/// Largest allowed error of the prediction of a lazy kernel's invalidations, and least number that is judged. No
/// trace tells which of two busy CPUs counts ticks, which makes an eighth.
const WITHIN: f64 = 0.15;
const ENOUGH: u64 = 50;
/// The files that a recorder writes; each is replayed.
const FILES: [(&str, &[&str]); 3] =
    [("portolan", &["gz"]), ("trace-cmd", &["dat", "report"]), ("perf", &["data", "script"])];

/// The kernel's counts of the mappings of a load.
#[derive(Debug, PartialEq, Eq)]
struct Mappings {
    maps: Count,
    allocations: u64,
    ends: u64,
}

impl Mappings {
    fn counted(run: &Run, policy: Policy) -> Self {
        let (maps, unmaps) = (run.counted(&MAPS), run.counted(&UNMAPS).events);
        let frees = run.counted(&FREES).events;
        let ended =
            if policy.translates() { run.counted(&["iommu/unmap"]).events } else { unmaps + frees };
        // They began in the load, since each request ends in it.
        let two_step = ended.saturating_sub(unmaps + frees);
        Self {
            maps: Count {
                events: maps.events + two_step,
                bytes: match run.disks.bytes {
                    0 => maps.bytes,
                    bytes => bytes,
                },
            },
            allocations: run.counted(&ALLOCATIONS).events,
            ends: ended,
        }
    }
}

/// Each run of the guest's; all are told of before the first that is wrong fails.
pub fn check(ran: &GuestRun, unit: Unit, policy: Policy) -> Result<(), String> {
    let archive = ran.place.join("recordings.tar");
    let mut tar = std::process::Command::new("tar");
    tar.arg("-xf").arg(&archive).arg("-C").arg(&ran.place);
    if !tar.status().is_ok_and(|status| status.success()) {
        return Err(format!("{} cannot be unpacked", archive.display()));
    }
    let runs = Run::all(&ran.console)?;
    let received = received(ran, unit);
    if runs.is_empty() || runs.len() != received.len() {
        let (told, traced) = (runs.len(), received.len());
        return Err(format!("{told} loads, {traced} in QEMU's trace"));
    }
    let mut wrong = Vec::new();
    for (run, received) in runs.iter().zip(received) {
        let files = FILES.iter().find(|(recorder, _)| *recorder == run.recorder);
        for end in files.into_iter().flat_map(|(_, ends)| *ends) {
            let file = format!("{}-{}.{end}", run.load, run.recorder);
            let load = Load {
                run,
                unit,
                policy,
                says_release: !["report", "script"].contains(end),
                counted: Mappings::counted(run, policy),
                received,
                replayed: Replayed::of(ran, &file)?,
            };
            println!("{file:24} {}", load.row());
            wrong.extend(load.compare().err().map(|why| format!("{file}: {why}")));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// A load, with the counts of all three.
struct Load<'a> {
    run: &'a Run,
    unit: Unit,
    policy: Policy,
    /// Set if the file names the kernel's release: from 7.3 on Linux waits for unmaps of the two-step API at once.
    says_release: bool,
    /// Mappings that the kernel counted.
    counted: Mappings,
    /// Invalidations that QEMU received.
    received: Invalidations,
    replayed: Replayed,
}

impl Load<'_> {
    fn row(&self) -> String {
        let Self { counted, received, replayed, .. } = self;
        let submitted = self.run.submitted();
        format!(
            "{:5} maps of {:>8} bytes, {:5} ends, {:4} invalidations by page, {:3} by domain; kernel {:5}, \
             {:>8}, {:5}, {:4}, {:3}; QEMU {:4}, {:3}; predicted strict {:4}, lazy {}",
            replayed.maps.events,
            replayed.maps.bytes,
            replayed.ends,
            replayed.sent.pages,
            replayed.sent.domains,
            counted.maps.events,
            counted.maps.bytes,
            counted.ends,
            submitted.pages,
            submitted.domains,
            received.pages,
            received.domains,
            replayed.strict,
            replayed.lazy,
        )
    }

    /// Compares all counts of it.
    fn compare(&self) -> Result<(), String> {
        let replayed = &self.replayed;
        if (replayed.bad_lines, replayed.lost) != (0, 0) {
            let (bad, lost) = (replayed.bad_lines, replayed.lost);
            return Err(format!("{bad} lines cannot be read, {lost} events are lost"));
        }
        let found = Mappings {
            maps: replayed.maps,
            allocations: replayed.allocations,
            ends: replayed.ends,
        };
        if found != self.counted {
            let counted = &self.counted;
            return Err(format!("recorded {found:?}, counted by the kernel {counted:?}"));
        }
        self.compare_pieces()?;
        self.compare_invalidations()?;
        self.compare_prediction()
    }

    /// Checks that a huge buffer is one piece, or two if it begins within a page.
    fn compare_pieces(&self) -> Result<(), String> {
        let pieces = self.run.counted(&["iommu/map"]).events;
        let requests = self.run.disks.events;
        if self.run.load == "huge" && pieces > 2 * requests {
            Err(format!("{requests} requests of huge pages are {pieces} pieces"))
        } else {
            Ok(())
        }
    }

    /// Tells if the file contains the facts that the number of a lazy kernel's invalidations depends on.
    fn says_enough(&self) -> bool {
        let is_released = self.says_release || self.run.submitted().pages == 0;
        // The facts say that CPUs rest between bursts and are not held up.
        let has_facts = self.run.recorder == "portolan";
        is_released && (has_facts || self.run.load != "bursts")
    }

    fn compare_invalidations(&self) -> Result<(), String> {
        let (sent, submitted) = (self.replayed.sent, self.run.submitted());
        let received = self.received;
        let (expected, counted) = match self.unit {
            Unit::VtD => (received, submitted),
            // One for each mapping and one for each that ends; the kernel has no event for them.
            Unit::AmdVi => {
                let maps = self.counted.maps.events + self.counted.allocations;
                let pages = maps + self.counted.ends;
                let all = Invalidations { pages, ..Invalidations::default() };
                (received, all)
            }
        };
        let recorded = match self.unit {
            Unit::VtD => sent == submitted,
            Unit::AmdVi => sent == Invalidations::default(),
        };
        if recorded && expected == counted {
            Ok(())
        } else {
            Err(format!("recorded {sent:?}, by the kernel {counted:?}, received {received:?}"))
        }
    }

    fn compare_prediction(&self) -> Result<(), String> {
        let Replayed { strict, lazy, .. } = self.replayed;
        let submitted = self.run.submitted();
        let sent = submitted.pages + submitted.domains;
        let (predicted, sent, right) = match self.policy {
            // Buffers that were mapped before the recording are not replayed.
            Policy::Strict => {
                let known = self.replayed.ends - self.replayed.orphans;
                (strict, known, strict == known)
            }
            Policy::Lazy => {
                // This load has so many requests that a timer flushes often.
                if sent < ENOUGH && self.run.load == "pages" {
                    return Err(format!("only {sent} invalidations"));
                }
                let off = (lazy as f64 / sent as f64 - 1.0).abs();
                let is_judged = sent >= ENOUGH && self.says_enough();
                (lazy, sent, !is_judged || off <= WITHIN)
            }
            Policy::Passthrough | Policy::None => (0, sent, sent == 0),
        };
        if right {
            Ok(())
        } else {
            Err(format!("{predicted} invalidations predicted, {sent} sent"))
        }
    }
}
