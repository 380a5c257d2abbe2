//! Neighbours of an event on its CPU: `dma:*` events name an `iommu:*` event before or after them.

use super::before::OrphanUnmap;
use super::event::TableEvent;
use super::mappings::MappingKey;
use super::op::{AddressRange, DeviceId, Origin};
use super::summary::Summary;

/// Unmaps without a map that wait for a `dma:*` event to say that it found none either.
const MOST_STRAYS: usize = 64;

/// The `iommu:unmap` that has to follow a `dma:*` event.
#[derive(Clone, Copy)]
enum Expected {
    Nothing,
    /// Unmap of these addresses.
    Range(AddressRange),
    /// Unmap of a list. If several mappings are alike, it is the oldest.
    List(MappingKey, AddressRange),
    /// Unmap of addresses that the trace does not tell.
    Any,
    /// Unmap of a list of this device; its map was not found by the event in this line.
    OfList {
        line: u64,
        device: DeviceId,
    },
}

#[derive(Clone, Copy)]
struct LastOfCpu {
    table: Option<TableEvent>,
    expected: Expected,
    /// The last unmap that was an operation which no `dma:*` event had named.
    ended: Option<AddressRange>,
}

const NOTHING: LastOfCpu = LastOfCpu { table: None, expected: Expected::Nothing, ended: None };

struct StrayUnmap {
    line: u64,
    cpu: u16,
    range: AddressRange,
    /// The orphan that it is if no `dma:*` event names it: its address may be mapped again before that is known.
    orphan: OrphanUnmap,
}

/// An unmap with a `dma:*` event but without a map.
#[derive(Clone, Copy)]
pub(super) struct SaidUnmap {
    /// Events that say it.
    pub(super) events: u64,
    /// False if the trace had mapped nothing there when it left its table.
    pub(super) is_at_known_address: bool,
}

/// The last events of each CPU.
#[derive(Default)]
pub(super) struct RecentEvents {
    cpus: Vec<LastOfCpu>,
    strays: Vec<StrayUnmap>,
}

impl RecentEvents {
    fn of(&mut self, cpu: u16) -> &mut LastOfCpu {
        let index = usize::from(cpu);
        if self.cpus.len() <= index {
            self.cpus.resize(index + 1, NOTHING);
        }
        &mut self.cpus[index]
    }

    pub(super) fn note_map(&mut self, cpu: u16) {
        self.of(cpu).table = Some(TableEvent::Map);
    }

    pub(super) fn note_unmap(&mut self, cpu: u16) {
        self.of(cpu).table = Some(TableEvent::Unmap);
    }

    /// The last `iommu:*` event of `cpu`, once.
    pub(super) fn take_table(&mut self, cpu: u16) -> Option<TableEvent> {
        self.of(cpu).table.take()
    }

    pub(super) fn note_ended(&mut self, cpu: u16, range: AddressRange) {
        self.of(cpu).ended = Some(range);
    }

    pub(super) fn expect_range(&mut self, cpu: u16, range: AddressRange) {
        self.of(cpu).expected = Expected::Range(range);
    }

    pub(super) fn expect_list(&mut self, cpu: u16, key: MappingKey, range: AddressRange) {
        self.of(cpu).expected = Expected::List(key, range);
    }

    pub(super) fn expect_any(&mut self, cpu: u16) {
        self.of(cpu).expected = Expected::Any;
    }

    pub(super) fn expect_of_list(&mut self, origin: Origin, device: DeviceId) {
        let line = origin.line;
        self.of(origin.cpu).expected = Expected::OfList { line, device };
    }

    /// Notes another `dma:*` event of `cpu`, which ends the wait for an expected event.
    pub(super) fn settle(&mut self, cpu: u16, summary: &mut Summary) {
        let of = self.of(cpu);
        if let Expected::OfList { line, device } = of.expected {
            summary.note_orphan_of(device);
            summary.note_orphan(line, OrphanUnmap::LIST);
        }
        of.expected = Expected::Nothing;
    }

    /// Tells if an unmap of `range` was announced on `cpu`.
    pub(super) fn takes(&mut self, cpu: u16, range: AddressRange) -> bool {
        let of = self.of(cpu);
        let announced = match of.expected {
            Expected::Range(expected) | Expected::List(_, expected) => expected == range,
            _ => false,
        };
        if announced {
            of.expected = Expected::Nothing;
        }
        announced
    }

    /// The addresses that a list called `key` was expected to be unmapped from on `cpu`: another one like it was.
    pub(super) fn other_list(&mut self, cpu: u16, key: MappingKey) -> Option<AddressRange> {
        let of = self.of(cpu);
        match of.expected {
            Expected::List(expected, range) if expected == key => {
                of.expected = Expected::Nothing;
                Some(range)
            }
            _ => None,
        }
    }

    /// Tells if an unmap on `cpu` belongs to a list of `device` whose map was not found.
    pub(super) fn is_list_of(&mut self, cpu: u16, device: DeviceId) -> bool {
        let of = self.of(cpu);
        let is = matches!(of.expected, Expected::OfList { device: of, .. } if of == device);
        if is {
            of.expected = Expected::Nothing;
        }
        is
    }

    /// An `iommu:unmap` whose map is not in the trace.
    pub(super) fn stray(&mut self, origin: Origin, range: AddressRange, summary: &mut Summary) {
        let of = self.of(origin.cpu);
        match std::mem::replace(&mut of.expected, Expected::Nothing) {
            Expected::Any => return,
            Expected::OfList { line, device } => {
                summary.note_orphan_of(device);
                let orphan = summary.mapped.orphan(2, range);
                summary.note_orphan(line, orphan);
                return;
            }
            _ => {}
        }
        if self.strays.len() >= MOST_STRAYS {
            let first = self.strays.remove(0);
            first.count(summary);
        }
        self.strays.push(StrayUnmap {
            line: origin.line,
            cpu: origin.cpu,
            range,
            orphan: summary.mapped.orphan(1, range),
        });
    }

    /// Tells if the last unmaps of `cpu` that found no map include `dma`.
    pub(super) fn has_stray(&self, cpu: u16, dma: u64) -> bool {
        let mut strays = self.strays.iter();
        strays.any(|stray| stray.cpu == cpu && stray.has(dma))
    }

    /// Tells if the last unmap on `cpu` that no `dma:*` event had named has taken `dma` out, once.
    pub(super) fn takes_ended(&mut self, cpu: u16, dma: u64) -> bool {
        let within = |range: &mut AddressRange| range.contains(dma);
        self.of(cpu).ended.take_if(within).is_some()
    }

    /// The unmap for which a `dma:*` event for `dma` on `cpu` found no map; `None` if the event only names an
    /// operation that has ended.
    pub(super) fn saying(&mut self, cpu: u16, dma: u64) -> Option<SaidUnmap> {
        if self.takes_ended(cpu, dma) {
            return None;
        }
        // A task may be moved to another CPU between both events.
        let mut stray = self.take_last(|stray| stray.cpu == cpu && stray.has(dma));
        if stray.is_none() {
            stray = self.take_last(|stray| stray.has(dma));
        }
        Some(SaidUnmap {
            events: 1 + u64::from(stray.is_some()),
            is_at_known_address: stray.is_none_or(|stray| stray.orphan.is_at_known_address()),
        })
    }

    /// Removes the last waiting unmap of `dma` on `cpu` that found no map; returns `false` if there is none.
    pub(super) fn forget_stray(&mut self, cpu: u16, dma: u64) -> bool {
        let taken = self.take_last(|stray| stray.cpu == cpu && stray.has(dma));
        taken.is_some()
    }

    fn take_last(&mut self, is_it: impl Fn(&StrayUnmap) -> bool) -> Option<StrayUnmap> {
        let index = self.strays.iter().rposition(is_it);
        index.map(|index| self.strays.remove(index))
    }

    /// Ends the trace: events that still wait have found nothing.
    pub(super) fn finish(&mut self, summary: &mut Summary) {
        for stray in self.strays.drain(..) {
            stray.count(summary);
        }
        for cpu in 0..self.cpus.len() {
            self.settle(cpu as u16, summary);
        }
    }
}

impl StrayUnmap {
    fn has(&self, dma: u64) -> bool {
        self.range.contains(dma)
    }

    fn count(&self, summary: &mut Summary) {
        summary.note_orphan(self.line, self.orphan);
    }
}
