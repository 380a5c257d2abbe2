//! Operations from events: pairs of map and unmap, and the memory of each map.
//!
//! * A page's unmap is found by device and DMA address, a scatter list's by device and list of
//!   physical addresses, since its event has no DMA address. Where several are alike the oldest
//!   goes first: an unmap may be printed after its address was given out again.
//! * The `iommu:map` events before a `dma:*` event on the same CPU give the true pieces: it claims them.
//! * An `iommu:unmap` that no `dma:*` event claims is an operation, and so are the pieces mapped in a row
//!   that it ends: Linux before 6.12 has no `dma:*` events, and since 6.17 requests of several pieces
//!   have none (`dma_iova_link`).
//! * `dma_unmap_page`, `_phys` and `_resource` are printed after the `iommu:unmap` that is theirs, `dma_unmap_sg`
//!   and `dma_free` before it.

mod table;

use std::collections::{BTreeMap, HashMap};

use portolan::addr::PhysAddr;

use super::devices::Devices;
use super::event::{Event, Unseen};
use super::line::Stamped;
use super::list::List;
use super::mappings::{InTable, LiveMapping, LiveMappings, MappingKey, Named, Tables};
use super::recent_events::RecentEvents;
use portolan::dma::Direction;

use super::op::{AddressRange, Api, Class, DeviceId, MapId, Op, OpKind, Origin, PAGE, Piece};
use super::outbox::{Outbox, Outgoing};
use super::pieces::guess_pieces;
use super::skew::EarlyUnmaps;
use super::summary::Summary;
use super::unclaimed::{TablePiece, TakenPiece, Unclaimed};

/// Mappings that live at once at most; further ones are counted and not handed out.
const MOST_LIVE: u64 = 1 << 20;

/// Arguments of a map except its memory.
#[derive(Clone, Copy)]
struct MapArguments {
    device: DeviceId,
    class: Class,
    direction: Option<Direction>,
    dma: u64,
    bytes: u64,
    api: Api,
}

/// A mapping that has left its table and whose `dma:*` event has not come.
struct OutOfTable {
    place: u64,
    mapping: InTable,
    origin: Origin,
}

/// Words of a `dma:*` event that ends a mapping found by its address.
struct Unmapped {
    device: DeviceId,
    dma: u64,
    bytes: u64,
}

impl Unmapped {
    fn key(&self) -> MappingKey {
        MappingKey::of_address(self.device, self.dma)
    }

    /// Its addresses.
    fn range(&self) -> AddressRange {
        let last = self.dma.saturating_add(self.bytes.saturating_sub(1));
        AddressRange { start: self.dma, last }
    }
}

/// The state of pairing.
#[derive(Default)]
pub(super) struct Pairing {
    next_id: u64,
    /// Mappings that live where the reader is.
    open: u64,
    /// Number of mappings that live at the last operation handed out.
    live: u64,
    pages: LiveMappings,
    coherent: LiveMappings,
    lists: LiveMappings,
    unclaimed: Unclaimed,
    /// Interface that made pieces which nothing claims.
    unclaimed_api: Api,
    tables: Tables,
    /// Mappings by first address and name.
    out_of_table: BTreeMap<(u64, u64), OutOfTable>,
    beside: RecentEvents,
    bounced: HashMap<u16, u64>,
    early: EarlyUnmaps,
    devices: Devices,
    outbox: Outbox,
    taken: Vec<TakenPiece>,
    pieces: Vec<Piece>,
    ended: bool,
}

/// An event on its way to the operations.
pub(super) struct Fed<'a, 'l> {
    pub(super) line: u64,
    pub(super) text: &'a [u8],
    pub(super) stamped: &'a Stamped<'l>,
    /// As in [`At::timers_late`](super::At::timers_late).
    pub(super) timers_late: Option<bool>,
}

impl Pairing {
    /// The next operation, if it is known; where too many wait, the first is decided with the knowledge so far.
    pub(super) fn next(&mut self, summary: &mut Summary) -> Option<Box<Outgoing>> {
        let mut next = self.outbox.pop();
        while next.is_none() && (self.outbox.is_full() || self.ended && self.outbox.waits()) {
            self.decide_first(summary);
            next = self.outbox.pop();
        }
        let outgoing = next?;
        self.count(outgoing.op()?, summary);
        Some(outgoing)
    }

    /// Takes back the operation that [`Self::next`] handed out.
    pub(super) fn give_back(&mut self, used: Box<Outgoing>) {
        self.outbox.give_back(used);
    }

    fn count(&mut self, op: Op<'_>, summary: &mut Summary) {
        match op.kind {
            OpKind::Unmap { class: Class::Streaming, .. } => {
                summary.unmaps += 1;
                self.live = self.live.saturating_sub(1);
            }
            OpKind::Unmap { .. } => summary.coherent_frees += 1,
            OpKind::Map { class: Class::Streaming, bytes, .. } => {
                summary.maps += 1;
                summary.bytes_mapped = summary.bytes_mapped.saturating_add(bytes);
                self.live += 1;
                summary.max_live = summary.max_live.max(self.live);
            }
            OpKind::Map { bytes, .. } => {
                summary.coherent_allocs += 1;
                summary.coherent_bytes = summary.coherent_bytes.saturating_add(bytes);
            }
        }
    }

    /// Takes an event.
    pub(super) fn feed(&mut self, fed: &Fed<'_, '_>, event: Event<'_>, summary: &mut Summary) {
        let stamped = fed.stamped;
        let origin = Origin {
            line: fed.line,
            time_ns: stamped.time_ns,
            cpu: stamped.cpu,
            running: stamped.running,
            timers_late: fed.timers_late,
        };
        match event {
            Event::TableMap { device, iova, pa, bytes } => {
                let piece = TablePiece {
                    bytes,
                    pa,
                    origin,
                    device: device.map(|name| self.devices.id(name, summary)),
                };
                self.table_map(iova, piece, fed.text);
            }
            Event::TableUnmap { iova, bytes } => {
                self.table_unmap(origin, iova, bytes, fed.text, summary);
            }
            Event::Bounced { device, bytes } => {
                summary.note_bounced(device, bytes);
                let sum = self.bounced.entry(origin.cpu).or_default();
                *sum = sum.saturating_add(bytes);
            }
            Event::Queued { first, .. } => {
                let table = self.beside.take_table(origin.cpu);
                summary.recorded.note_after(table, first);
            }
            Event::Failed | Event::TimerRan(_) | Event::Other => {}
            event => {
                self.beside.settle(origin.cpu, summary);
                self.dma_event(origin, event, fed.text, summary);
            }
        }
    }

    fn map_sg(&mut self, origin: Origin, event: Event<'_>, text: &[u8], summary: &mut Summary) {
        let Event::MapSg { device, direction, dma, sizes, pas, unseen } = event else {
            return;
        };
        let wanted = MapArguments {
            device: self.devices.id(device, summary),
            class: Class::Streaming,
            direction,
            dma: dma.iter().next().unwrap_or(0),
            bytes: sizes.iter().fold(0u64, u64::saturating_add),
            api: Api::DmaMap,
        };
        self.claim(&wanted, origin.cpu);
        let told = !self.pieces.is_empty();
        if !told && guess_pieces(&mut self.pieces, wanted.bytes, sizes, pas) {
            summary.inexact_lists += 1;
        }
        let key = MappingKey::of_list(wanted.device, pas);
        self.map(origin, &wanted, Named::List, key, text, summary);
        if unseen != Unseen::default() {
            summary.truncated_lists += 1;
        }
        if !told {
            summary.understood.note_unseen(unseen, sizes, pas, wanted.bytes);
        }
    }

    fn dma_event(&mut self, origin: Origin, event: Event<'_>, text: &[u8], summary: &mut Summary) {
        self.unclaimed_api = Api::TwoStep;
        match event {
            Event::Map { device, class, direction, dma, bytes, pa } => {
                let wanted = MapArguments {
                    device: self.devices.id(device, summary),
                    class,
                    direction,
                    dma,
                    bytes,
                    api: Api::DmaMap,
                };
                self.claim(&wanted, origin.cpu);
                if self.pieces.is_empty() {
                    let pa = PhysAddr::new(pa.unwrap_or(dma));
                    self.pieces.push(Piece { pa, bytes });
                }
                let key = MappingKey::of_address(wanted.device, dma);
                self.map(origin, &wanted, Named::of(class), key, text, summary);
            }
            Event::MapSg { .. } => self.map_sg(origin, event, text, summary),
            Event::Unmap { device, class, dma, bytes } => {
                let device = self.devices.id(device, summary);
                let ended = Unmapped { device, dma, bytes };
                match class {
                    Class::Streaming => self.unmap(origin, &ended, text, summary),
                    Class::Coherent => self.free(origin, &ended, text, summary),
                }
            }
            Event::UnmapSg { device, pas } => {
                let device = self.devices.id(device, summary);
                self.unmap_sg(origin, device, pas, text);
            }
            _ => {}
        }
    }

    /// Ends the trace: events that are open by now are decided with the knowledge so far.
    pub(super) fn finish(&mut self, summary: &mut Summary) {
        self.beside.finish(summary);
        self.ended = true;
    }

    /// Closes the books, when all operations are out.
    pub(super) fn close(&mut self, summary: &mut Summary) {
        summary.left_mapped = self.live;
        summary.finish();
    }

    /// Takes the table pieces of `wanted`, if all are found.
    fn claim(&mut self, wanted: &MapArguments, cpu: u16) {
        self.pieces.clear();
        let last = wanted.dma.saturating_add(wanted.bytes.saturating_sub(1));
        self.unclaimed.claim(wanted.dma, last, cpu, &mut self.taken);
        for one in &self.taken {
            self.outbox.decide(one.place);
            self.pieces.push(one.as_memory());
        }
        if !self.taken.is_empty() {
            self.devices.note_translated(wanted.device);
        }
    }

    /// Hands out a map of `self.pieces` that `named` will find.
    fn map(
        &mut self,
        origin: Origin,
        wanted: &MapArguments,
        named: Named,
        key: MappingKey,
        text: &[u8],
        summary: &mut Summary,
    ) {
        if named == Named::Page
            && !self.taken.is_empty()
            && let Some(early) = self.early.note_map(wanted.device, wanted.dma, origin)
        {
            summary.note_early(early);
            summary.understood.miss(1 + self.taken.len() as u64, wanted.bytes);
            self.taken.clear();
            return;
        }
        let start = self.taken.first().map(|first| first.iova);
        let Some(id) = self.new_id(wanted.bytes, 1, summary) else {
            self.taken.clear();
            return;
        };
        if let (Some(start), Some(end)) = (start, self.taken.last()) {
            let last = end.iova.saturating_add(end.piece.bytes - 1);
            let mapping = InTable {
                last,
                left: last - start + 1,
                device: wanted.device,
                claimed: Some((named, key)),
            };
            self.tables.add(start, id, mapping);
        }
        self.taken.clear();
        self.named(named).add(key, LiveMapping { id, start });
        let bounced = self.bounced.remove(&origin.cpu).unwrap_or(0);
        let op = map_op(origin, wanted, id, bounced);
        self.outbox.push(op, &self.pieces, text);
        summary.mapped.note_mapped(wanted.dma);
    }

    /// Name of a new mapping, made by `events` of the trace, unless too many are live.
    fn new_id(&mut self, bytes: u64, events: u64, summary: &mut Summary) -> Option<u64> {
        if self.open >= MOST_LIVE {
            summary.maps_beyond += 1;
            summary.understood.miss(events, bytes);
            return None;
        }
        summary.understood.note_bytes(bytes);
        self.open += 1;
        self.next_id += 1;
        Some(self.next_id - 1)
    }

    fn named(&mut self, kind: Named) -> &mut LiveMappings {
        match kind {
            Named::Page => &mut self.pages,
            Named::List => &mut self.lists,
            Named::Coherent => &mut self.coherent,
        }
    }

    /// Ends the mapping of a page. The last `iommu:unmap` of the CPU at this address belongs to it, because only
    /// interrupts can come between the two. Another CPU may be given the address before.
    fn unmap(&mut self, origin: Origin, ended: &Unmapped, text: &[u8], summary: &mut Summary) {
        let cpu = origin.cpu;
        let key = ended.key();
        if let Some(id) = self.taken_out_on(cpu, key) {
            self.pages.remove(key, id.1);
            if let Some(out) = self.out_of_table.remove(&id) {
                self.outbox.decide(out.place);
            }
            self.push_unmap(origin, ended.device, Class::Streaming, id.1, text);
            return;
        }
        let oldest = self.pages.oldest(key);
        let pieces_untold = oldest.is_some_and(|mapping| mapping.start.is_none());
        let found = match self.beside.has_stray(cpu, ended.dma) {
            // Its unmap found nothing, since its pieces are not in the trace.
            true if pieces_untold => self.beside.forget_stray(cpu, ended.dma),
            true => false,
            false => !(pieces_untold && self.beside.takes_ended(cpu, ended.dma)),
        };
        let mapping = oldest.filter(|_| found);
        if let Some(mapping) = mapping {
            self.pages.take(key);
            self.leave_table(origin, &mapping, Named::Page);
            self.push_unmap(origin, ended.device, Class::Streaming, mapping.id, text);
        } else if let Some(said) = self.beside.saying(cpu, ended.dma) {
            if said.is_at_known_address && oldest.is_none() {
                self.early.note_orphan(ended.device, ended.dma, origin);
            }
            summary.note_orphan_of(ended.device);
            let orphan = summary.mapped.orphan(said.events, ended.range());
            summary.note_orphan(origin.line, orphan);
        }
    }

    /// The mapping called `key` that an `iommu:unmap` of `cpu` has taken out of its table: its first address and name.
    fn taken_out_on(&self, cpu: u16, key: MappingKey) -> Option<(u64, u64)> {
        let mut alike = self.pages.alike(key);
        alike.find_map(|mapping| {
            let id = (mapping.start?, mapping.id);
            let out = self.out_of_table.get(&id)?;
            (out.origin.cpu == cpu).then_some(id)
        })
    }

    /// Ends coherent memory.
    fn free(&mut self, origin: Origin, ended: &Unmapped, text: &[u8], summary: &mut Summary) {
        if let Some(mapping) = self.coherent.take(ended.key()) {
            self.leave_table(origin, &mapping, Named::Coherent);
            self.push_unmap(origin, ended.device, Class::Coherent, mapping.id, text);
            return;
        }
        let AddressRange { start, last } = ended.range();
        let orphan = summary.mapped.orphan(1, ended.range());
        summary.note_orphan_of(ended.device);
        summary.note_orphan(origin.line, orphan);
        let pages = AddressRange { start: start - start % PAGE, last: last | (PAGE - 1) };
        self.beside.expect_range(origin.cpu, pages);
    }

    fn unmap_sg(&mut self, origin: Origin, device: DeviceId, pas: List<'_>, text: &[u8]) {
        match self.lists.take(MappingKey::of_list(device, pas)) {
            Some(mapping) => {
                self.leave_table(origin, &mapping, Named::List);
                self.push_unmap(origin, device, Class::Streaming, mapping.id, text);
            }
            None => self.beside.expect_of_list(origin, device),
        }
    }

    /// A `dma:*` event ends `mapping`: takes it out of its table, or knows that it is.
    fn leave_table(&mut self, origin: Origin, mapping: &LiveMapping, named: Named) {
        let Some(start) = mapping.start else {
            if named != Named::Page {
                self.beside.expect_any(origin.cpu);
            }
            return;
        };
        if let Some(out) = self.out_of_table.remove(&(start, mapping.id)) {
            self.outbox.decide(out.place);
            return;
        }
        let Some(in_table) = self.tables.remove(start, mapping.id) else {
            return;
        };
        let range = AddressRange { start, last: in_table.last };
        match (named, in_table.claimed) {
            (Named::Page, _) => {}
            (Named::List, Some((_, key))) => {
                self.beside.expect_list(origin.cpu, key, range);
                return;
            }
            _ => {
                self.beside.expect_range(origin.cpu, range);
                return;
            }
        }
        // Another domain's mapping of this address was thought to be unmapped.
        let others = (start, 0)..=(start, u64::MAX);
        let mut others = self.out_of_table.range(others);
        let other = others.find(|(_, out)| out.origin.cpu == origin.cpu);
        if let Some(key) = other.map(|(key, _)| *key)
            && let Some(out) = self.out_of_table.remove(&key)
        {
            self.outbox.decide(out.place);
            self.tables.add(key.0, key.1, out.mapping);
        }
    }

    fn push_unmap(&mut self, origin: Origin, device: DeviceId, class: Class, id: u64, text: &[u8]) {
        self.open = self.open.saturating_sub(1);
        let op = unmap_op(origin, device, class, id);
        self.outbox.push(op, &[], text);
    }
}

fn map_op(origin: Origin, wanted: &MapArguments, id: u64, bounced: u64) -> Op<'static> {
    let kind = OpKind::Map {
        id: MapId(id),
        class: wanted.class,
        direction: wanted.direction,
        bytes: wanted.bytes,
        offset: (wanted.dma % PAGE) as u16,
        pieces: &[],
        dma: wanted.dma,
        bounced,
        api: wanted.api,
    };
    op_of(origin, wanted.device, kind)
}

fn unmap_op(origin: Origin, device: DeviceId, class: Class, id: u64) -> Op<'static> {
    let id = MapId(id);
    op_of(origin, device, OpKind::Unmap { id, class })
}

fn op_of(origin: Origin, device: DeviceId, kind: OpKind<'static>) -> Op<'static> {
    Op {
        line: origin.line,
        text: b"",
        time_ns: origin.time_ns,
        cpu: origin.cpu,
        running: origin.running,
        timers_late: origin.timers_late,
        device,
        kind,
    }
}
