//! Firmware's settings of a unit and of the streams behind it, for a driver.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 5.2.
//!
//! *Context.* Task: it takes heap memory.

use alloc::vec::Vec;

use super::{Devices, Entry, EntryKind, HostTranslation, Ivhd, Ivrs, Settings, UnitFlags};
use crate::TableError;
use crate::reserved::{Reserved, Streams};

/// Reservations of aliases, at most: more than any machine has.
const MOST_RESERVED: usize = 4097;

/// Firmware's settings of a unit and of the streams behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitOrders {
    /// Settings of the unit.
    pub flags: UnitFlags,
    /// Presence of host tables in the unit.
    pub host_translation: HostTranslation,
    /// Memory that streams of its segment go on using, with errors of the table in between.
    pub reserved: Vec<Result<Reserved, TableError>>,
    /// That of devices whose accesses carry another's requester identifier, for that one, whose entry
    /// counts.
    pub of_aliases: Vec<Reserved>,
    /// Settings of streams. A later one replaces an earlier one of the same stream.
    pub streams: Vec<(Devices, Settings)>,
    /// The first error among the entries.
    pub damage: Option<TableError>,
}

impl UnitOrders {
    /// Those by the `entries` of `unit`, and the `memory` of its segment.
    pub(crate) fn of(
        unit: &Ivhd<'_>,
        entries: &[Result<Entry<'_>, TableError>],
        memory: &[Result<Reserved, TableError>],
    ) -> Self {
        let mut orders = Self {
            flags: unit.flags,
            host_translation: unit.host_translation(),
            reserved: memory.to_vec(),
            of_aliases: Vec::new(),
            streams: Vec::new(),
            damage: None,
        };
        for entry in entries {
            match entry {
                Ok(entry) => orders.add(entry, memory),
                Err(error) => {
                    orders.damage.get_or_insert(*error);
                }
            }
        }
        orders
    }

    fn add(&mut self, entry: &Entry<'_>, memory: &[Result<Reserved, TableError>]) {
        let source = match entry.kind {
            EntryKind::Alias(source) => Some(Devices::one(source)),
            _ => None,
        };
        if let Some(source) = source {
            let streams = source.streams();
            let its = memory.iter().flatten();
            let its = its.filter(|one| one.streams.overlaps(entry.devices.streams()));
            let room = MOST_RESERVED.saturating_sub(self.of_aliases.len());
            self.of_aliases.extend(its.take(room).map(|one| Reserved { streams, ..*one }));
        }
        // Firmware lists an I/O APIC and a timer at one requester, with settings for the I/O APIC only.
        if entry.settings != Settings::default() {
            let both = [Some(entry.devices), source].into_iter().flatten();
            self.streams.extend(both.map(|devices| (devices, entry.settings)));
        }
    }
}

impl Ivrs<'_> {
    /// Firmware's settings of `unit`, which is one of the table's, and of the streams of its segment.
    pub fn orders(&self, unit: &Ivhd<'_>) -> UnitOrders {
        let entries: Vec<_> = unit.entries().collect();
        let memory: Vec<_> = self.reserved(unit.segment, Streams::ALL).collect();
        UnitOrders::of(unit, &entries, &memory)
    }
}
