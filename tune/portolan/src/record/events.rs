//! The events that a replay reads, and which of them a kernel has.
//!
//! Linux, include/trace/events/dma.h (6.12), iommu.h, swiotlb.h, timer.h and drivers/iommu/intel/trace.h; filters:
//! Documentation/trace/events.rst.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::environment::Environment;
use super::error::RecordError;

/// Subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// A mapping, without which there is nothing to replay.
    Map,
    /// Other work of DMA.
    Dma,
    /// A timer of the kernel's.
    Timer,
}

/// Names of an event in the releases of Linux, and the kind of its statement.
pub struct EventNames {
    /// Its subject.
    pub what: &'static str,
    /// Its system.
    pub system: &'static str,
    /// Its names.
    pub names: &'static [&'static str],
    /// Kind of statement that the event makes.
    pub tells: Tells,
}

const fn wanted(
    what: &'static str,
    system: &'static str,
    names: &'static [&'static str],
) -> EventNames {
    EventNames { what, system, names, tells: Tells::Dma }
}

const fn maps(
    what: &'static str,
    system: &'static str,
    names: &'static [&'static str],
) -> EventNames {
    EventNames { tells: Tells::Map, ..wanted(what, system, names) }
}

/// The events that a replay reads.
pub const WANTED: &[EventNames] = &[
    maps("maps", "dma", &["dma_map_page", "dma_map_phys", "dma_map_resource"]),
    wanted("unmaps", "dma", &["dma_unmap_page", "dma_unmap_phys", "dma_unmap_resource"]),
    maps("maps of lists", "dma", &["dma_map_sg"]),
    wanted("maps of lists that failed", "dma", &["dma_map_sg_err"]),
    wanted("unmaps of lists", "dma", &["dma_unmap_sg"]),
    maps("coherent memory", "dma", &["dma_alloc", "dma_alloc_pages", "dma_alloc_sgt"]),
    wanted("coherent memory that failed", "dma", &["dma_alloc_sgt_err"]),
    wanted("coherent memory given back", "dma", &["dma_free", "dma_free_pages", "dma_free_sgt"]),
    maps("pieces mapped in tables", "iommu", &["map"]),
    wanted("pieces unmapped", "iommu", &["unmap"]),
    wanted("bounced buffers", "swiotlb", &["swiotlb_bounced"]),
    wanted("commands of VT-d", "intel_iommu", &["qi_submit"]),
    // They show which CPUs run the timers of flush queues a tick late.
    EventNames {
        tells: Tells::Timer,
        ..wanted("runs of timers", "timer", &["timer_expire_entry"])
    },
];

/// Recorded events, and those that cannot be recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventSelection {
    /// `system:name` of each event that is recorded.
    pub recorded: Vec<String>,
    /// Subjects on which this kernel has no event.
    pub absent: Vec<&'static str>,
    /// Events that do not name their device, and so are left out where devices were chosen.
    pub without_device: Vec<String>,
    #[serde(skip)]
    pub(super) chosen: Vec<Chosen>,
}

/// An event that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// `system/name`.
    pub(super) path: String,
    /// Filter of the kernel's, in its own words.
    pub(super) filter: Option<String>,
    /// The kernel's description of its fields.
    pub(super) format: String,
    pub(super) tells: Tells,
}

impl EventSelection {
    /// Selects events of the tracefs at `root`: all, or those that name one of `devices`.
    pub(crate) fn choose(
        root: &Path,
        devices: &[String],
        machine: &Environment,
    ) -> Result<Self, RecordError> {
        let mut events = Self::default();
        for wanted in WANTED {
            let folder = root.join("events").join(wanted.system);
            events.add(wanted, &folder, devices);
        }
        let is_left_out = !events.without_device.is_empty();
        match events.chosen.iter().any(|event| event.tells == Tells::Map) {
            true => Ok(events),
            false if is_left_out => Err(RecordError::NoDeviceEvents),
            false => Err(RecordError::NoEvents {
                root: root.to_owned(),
                release: machine.release(),
                others: events.recorded.join(", "),
            }),
        }
    }

    fn add(&mut self, wanted: &EventNames, folder: &Path, devices: &[String]) {
        let EventNames { system, .. } = wanted;
        let there = wanted.names.iter().filter(|name| folder.join(name).is_dir());
        let there: Vec<_> = there.collect();
        if there.is_empty() {
            self.absent.push(wanted.what);
        }
        for name in there {
            let event = format!("{system}:{name}");
            let format = fs::read_to_string(folder.join(name).join("format")).unwrap_or_default();
            let filter = filter(&format, devices);
            if filter.is_none() && !devices.is_empty() {
                self.without_device.push(event);
                continue;
            }
            self.chosen.push(Chosen {
                path: format!("{system}/{name}"),
                filter,
                format,
                tells: wanted.tells,
            });
            self.recorded.push(event);
        }
    }

    /// Tells if an event of this system is recorded.
    pub(crate) fn has(&self, system: &str) -> bool {
        let mut names = self.recorded.iter();
        names.any(|name| name.split(':').next() == Some(system))
    }
}

/// Filter for events that name one of `devices`, in the kernel's syntax; `None` if the events name no device.
fn filter(format: &str, devices: &[String]) -> Option<String> {
    let field = ["device", "dev_name"].into_iter().find(|field| {
        let named = format!(" {field};");
        format.lines().any(|line| line.contains("field:") && line.contains(&named))
    })?;
    let terms: Vec<String> =
        devices.iter().map(|device| format!("{field} == \"{device}\"")).collect();
    (!terms.is_empty()).then(|| terms.join(" || "))
}
