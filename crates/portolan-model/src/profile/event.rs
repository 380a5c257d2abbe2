//! The events that have a price.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ProfileError;
use super::sense::LONGEST_NS;

/// What can happen and takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// CPU: a call that maps, whatever it maps.
    MapCall,
    /// CPU: a call that unmaps less than a whole table.
    UnmapCall,
    /// CPU: a call that takes whole tables out of the tree, in place of [`Event::UnmapCall`].
    UnmapCallTables,
    /// CPU: one page of a mapper that goes page by page.
    MapPage,
    /// CPU: one entry written in a run.
    PteWrite,
    /// CPU: one leaf entry unmapped.
    UnmapPage,
    /// CPU: one table taken out of the tree and freed.
    TableFree,
    /// IOMMU: one by-page invalidation.
    CmdPage,
    /// IOMMU: one by-page invalidation that follows a map, where that costs another amount than
    /// [`Event::CmdPage`].
    CmdPageAfterMap,
    /// IOMMU: one by-range invalidation.
    CmdRange,
    /// IOMMU: one invalidation of a context, or of the configuration that points at it.
    CmdContext,
    /// IOMMU: one invalidation of everything.
    CmdGlobal,
    /// IOMMU: waiting until queued invalidations have completed.
    Sync,
    /// CPU: one exit to a hypervisor, for a register that it plays: the way there and back, and what it
    /// does meanwhile. What is submitted at a time rings one doorbell.
    Exit,
    /// CPU: one cache line written back to memory.
    CleanLine,
    /// Device: one step of a table walk that no cache answers.
    IotlbMissStep,
    /// Device and CPU: one I/O page fault, from the refused access to the access that goes through.
    FaultCall,
    /// CPU: one page that a fault populates and maps.
    FaultPage,
    /// CPU: bounce slots for one copy taken and given back.
    CopyCall,
    /// CPU: one byte copied to or from bounce slots.
    CopyByte,
}

impl Event {
    /// All events, in the order of their declaration.
    pub const ALL: [Self; 20] = [
        Self::MapCall,
        Self::UnmapCall,
        Self::UnmapCallTables,
        Self::MapPage,
        Self::PteWrite,
        Self::UnmapPage,
        Self::TableFree,
        Self::CmdPage,
        Self::CmdPageAfterMap,
        Self::CmdRange,
        Self::CmdContext,
        Self::CmdGlobal,
        Self::Sync,
        Self::Exit,
        Self::CleanLine,
        Self::IotlbMissStep,
        Self::FaultCall,
        Self::FaultPage,
        Self::CopyCall,
        Self::CopyByte,
    ];

    /// The name in profiles and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MapCall => "map_call",
            Self::UnmapCall => "unmap_call",
            Self::UnmapCallTables => "unmap_call_tables",
            Self::MapPage => "map_page",
            Self::PteWrite => "pte_write",
            Self::UnmapPage => "unmap_page",
            Self::TableFree => "table_free",
            Self::CmdPage => "cmd_page",
            Self::CmdPageAfterMap => "cmd_page_after_map",
            Self::CmdRange => "cmd_range",
            Self::CmdContext => "cmd_context",
            Self::CmdGlobal => "cmd_global",
            Self::Sync => "sync",
            Self::Exit => "exit",
            Self::CleanLine => "clean_line",
            Self::IotlbMissStep => "iotlb_miss_step",
            Self::FaultCall => "fault_call",
            Self::FaultPage => "fault_page",
            Self::CopyCall => "copy_call",
            Self::CopyByte => "copy_byte",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an event costs, and who says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Nanoseconds.
    pub ns: f64,
    /// At least so many, where the evidence leaves a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_ns: Option<f64>,
    /// At most so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_ns: Option<f64>,
    /// A published row, a paper, "fitted: ..." with the rows, or "assumed: ..." with the reason.
    pub source: String,
}

impl Price {
    /// The lower end of what it may be, in nanoseconds.
    pub fn low(&self) -> f64 {
        self.low_ns.unwrap_or(self.ns)
    }

    /// The upper end.
    pub fn high(&self) -> f64 {
        self.high_ns.unwrap_or(self.ns)
    }

    /// Whether it is a time with a source, for the price called `key`.
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
pub struct Prices(BTreeMap<Event, Price>);

impl Prices {
    /// The price of one event.
    pub fn get(&self, event: Event) -> Option<&Price> {
        self.0.get(&event)
    }

    /// All of them, in the order of [`Event::ALL`].
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
    /// Which machine.
    pub machine: String,
    /// Which event.
    pub event: Event,
}
