//! The events that have a price.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ProfileError;
use super::sense::LONGEST_NS;

macro_rules! events {
    ($($event:ident = $name:literal => $what:literal;)*) => {
        /// An event that takes time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Event {$(#[doc = $what] $event),*}

        impl Event {
            /// All events, in the order of their declaration.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$event),*];

            /// The name in profiles and reports.
            pub const fn name(self) -> &'static str {
                match self {$(Self::$event => $name),*}
            }

            /// The event in words: the CPU or unit that takes the time, and the work.
            pub const fn what(self) -> &'static str {
                match self {$(Self::$event => $what),*}
            }
        }
    };
}

events! {
    MapCall = "map_call" => "CPU: a call that maps, whatever it maps.";
    UnmapCall = "unmap_call" => "CPU: a call that unmaps less than a whole table.";
    UnmapCallTables = "unmap_call_tables" =>
        "CPU: a call that takes whole tables out of the tree, in place of `unmap_call`.";
    MapPage = "map_page" => "CPU: one page of a mapper that goes page by page.";
    PteWrite = "pte_write" => "CPU: one entry written in a run.";
    UnmapPage = "unmap_page" => "CPU: one leaf entry unmapped.";
    TableFree = "table_free" => "CPU: one table taken out of the tree and freed.";
    CmdPage = "cmd_page" => "IOMMU: one by-page invalidation.";
    CmdPageAfterMap = "cmd_page_after_map" =>
        "IOMMU: one by-page invalidation that follows a map, where that costs another amount than `cmd_page`.";
    CmdRange = "cmd_range" => "IOMMU: one by-range invalidation.";
    CmdContext = "cmd_context" => "IOMMU: one invalidation of a context, or of the configuration that points at it.";
    CmdGlobal = "cmd_global" => "IOMMU: one invalidation of everything.";
    Sync = "sync" => "IOMMU: waiting until queued invalidations have completed.";
    Exit = "exit" =>
        "CPU: one exit to a hypervisor, for a register that it plays: the way there and back, and what it does \
         meanwhile. What is submitted at a time rings one doorbell.";
    CleanLine = "clean_line" => "CPU: one cache line written back to memory.";
    IotlbMissStep = "iotlb_miss_step" => "Device: one step of a table walk that no cache answers.";
    FaultCall = "fault_call" =>
        "Device and CPU: one I/O page fault, from the refused access to the access that goes through.";
    FaultPage = "fault_page" => "CPU: one page that a fault populates and maps.";
    LinuxMap = "linux_map" => "CPU: one piece of an operation mapped by Linux (`iommu_map`).";
    LinuxUnmap = "linux_unmap" => "CPU: one operation unmapped by Linux (`iommu_unmap`).";
    LinuxPiece = "linux_piece" => "CPU: each further piece of an operation, mapped and unmapped by Linux.";
    IovaCached = "iova_cached" => "CPU: addresses that Linux takes from a CPU's cache of them and gives back to it.";
    IovaTree = "iova_tree" => "CPU: addresses that are too many for the caches, from Linux's tree and back.";
    FlushQueueEntry = "flush_queue_entry" => "CPU: one unmap put into a flush queue of Linux, with its lock.";
    CopyCall = "copy_call" => "CPU: bounce slots for one copy taken and given back.";
    CopyByte = "copy_byte" => "CPU: one byte copied to or from bounce slots.";
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Price of an event, and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Nanoseconds.
    pub ns: f64,
    /// Lower limit, if the evidence leaves a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_ns: Option<f64>,
    /// Upper limit, if the evidence leaves a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_ns: Option<f64>,
    /// A published row, a paper, "fitted: ..." with the rows, or "assumed: ..." with the reason.
    pub source: String,
}

impl Price {
    /// The lower end of the price's range, in nanoseconds.
    pub fn low(&self) -> f64 {
        self.low_ns.unwrap_or(self.ns)
    }

    /// The upper end.
    pub fn high(&self) -> f64 {
        self.high_ns.unwrap_or(self.ns)
    }

    /// Checks that it is a time with a source, for the price called `key`.
    pub(crate) fn check(&self, key: &'static str) -> Result<(), ProfileError> {
        let value = |why| ProfileError::Value { key, why };
        for ns in [self.ns, self.low(), self.high()] {
            if !ns.is_finite() || ns < 0.0 {
                return Err(value(format!("{ns} ns is not a time")));
            }
            if ns > LONGEST_NS {
                return Err(value(format!("{ns} ns is longer than a second")));
            }
        }
        if self.low() > self.ns || self.ns > self.high() {
            let (low, high) = (self.low(), self.high());
            return Err(value(format!("{} ns is not from {low} to {high}", self.ns)));
        }
        if self.source.trim().is_empty() {
            return Err(value("a price needs its source".to_owned()));
        }
        Ok(())
    }
}

/// The prices of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prices(pub(super) BTreeMap<Event, Price>);

impl Prices {
    /// The price of one event.
    pub fn get(&self, event: Event) -> Option<&Price> {
        self.0.get(&event)
    }

    /// Iterates over all prices, in the order of [`Event::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Event, &Price)> {
        self.0.iter().map(|(event, price)| (*event, price))
    }

    pub(super) fn check(&self) -> Result<(), ProfileError> {
        for (event, price) in self.iter() {
            price.check(event.name())?;
        }
        Ok(())
    }
}

/// A price that is wanted and that the profile does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the machine `{machine}` has no price for `{event}`")]
pub struct MissingPrice {
    /// Name of the machine.
    pub machine: String,
    /// Event without a price.
    pub event: Event,
}
