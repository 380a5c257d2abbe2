//! Events of tables: pieces that `dma:*` events claim, and operations of their own.

use super::{MapArguments, OutOfTable, Pairing, map_op, unmap_op};
use crate::trace::mappings::{FoundInTable, InTable, Named};
use portolan::dma::Direction;

use crate::trace::op::{AddressRange, Class, Origin};
use crate::trace::outbox::Waits;
use crate::trace::summary::Summary;
use crate::trace::unclaimed::{TablePiece, TakenPiece};

impl Pairing {
    /// Keeps a piece until its operation is known.
    pub(super) fn table_map(&mut self, iova: u64, piece: TablePiece, text: &[u8]) {
        self.beside.note_map(piece.origin.cpu);
        let last = iova.saturating_add(piece.bytes - 1);
        let place = self.outbox.wait(Waits::Piece(iova, last), text);
        self.unclaimed.add(iova, place, piece);
    }

    /// Ends the mappings that an `iommu:unmap` takes out of a table.
    pub(super) fn table_unmap(
        &mut self,
        origin: Origin,
        iova: u64,
        bytes: u64,
        text: &[u8],
        summary: &mut Summary,
    ) {
        let last = iova.saturating_add(bytes - 1);
        let range = AddressRange { start: iova, last };
        self.beside.note_unmap(origin.cpu);
        if self.beside.takes(origin.cpu, range) {
            return;
        }
        if let Some(found) = self.tables.take_exact(iova, last) {
            summary.ambiguous_unmaps += u64::from(found.ambiguous);
            self.end(origin, found, text);
            return;
        }
        let mut taken = std::mem::take(&mut self.taken);
        summary.ambiguous_unmaps += u64::from(self.unclaimed.count_at(iova) > 1);
        self.unclaimed.take_exact(iova, last, &mut taken);
        if taken.is_empty() {
            self.end_within(origin, range, &mut taken, text, summary);
        } else {
            self.map_and_unmap(origin, &taken, text, summary);
        }
        taken.clear();
        self.taken = taken;
    }

    /// Ends several mappings, or parts of them: no single mapping has this range.
    fn end_within(
        &mut self,
        origin: Origin,
        range: AddressRange,
        taken: &mut Vec<TakenPiece>,
        text: &[u8],
        summary: &mut Summary,
    ) {
        let AddressRange { start, last } = range;
        let mut ended = Vec::new();
        let found = self.tables.take_within(start, last, &mut ended);
        if found && ended.is_empty() {
            summary.partial_unmaps += 1;
        }
        for one in ended {
            self.end(origin, one, text);
        }
        let outbox = &mut self.outbox;
        self.unclaimed.take_within(start, last, taken, |place| outbox.split(place));
        if !taken.is_empty() {
            self.map_and_unmap(origin, taken, text, summary);
        } else if !found {
            self.beside.stray(origin, range, summary);
        }
    }

    /// Ends a mapping that is out of its table.
    fn end(&mut self, origin: Origin, found: FoundInTable, text: &[u8]) {
        let FoundInTable { start, id, mapping, .. } = found;
        let Some((named, key)) = mapping.claimed else {
            self.beside.note_ended(origin.cpu, AddressRange { start, last: mapping.last });
            self.push_unmap(origin, mapping.device, Class::Streaming, id, text);
            return;
        };
        if named == Named::List
            && let Some(AddressRange { start, last }) = self.beside.other_list(origin.cpu, key)
        {
            // One of several lists of the same memory has ended: the list that was thought to have ended lives.
            self.lists.begins_at(key, id, start);
            let left = last - start + 1;
            let mapping = InTable { last, left, ..mapping };
            self.tables.add(start, id, mapping);
            return;
        }
        if named == Named::List && self.beside.is_list_of(origin.cpu, mapping.device) {
            self.lists.remove(key, id);
            self.push_unmap(origin, mapping.device, Class::Streaming, id, text);
            return;
        }
        let place = self.outbox.wait(Waits::Unmap(start), text);
        let out = OutOfTable { place, mapping, origin };
        self.out_of_table.insert((start, id), out);
    }

    /// Decides the place that has waited longest.
    pub(in crate::trace) fn decide_first(&mut self, summary: &mut Summary) {
        let Some((place, waits)) = self.outbox.longest_waiting() else {
            return;
        };
        let (first, last) = match waits {
            Waits::Unmap(start) => return self.decide_unmap(start, place),
            Waits::Piece(first, last) => (first, last),
        };
        let mut run = std::mem::take(&mut self.taken);
        self.unclaimed.take_run(AddressRange { start: first, last }, place, &mut run);
        if run.is_empty() {
            self.outbox.decide(place);
        } else if run.iter().all(TakenPiece::is_direct) {
            // Memory that firmware reserves for a device is mapped before the device does anything.
            summary.direct_maps += 1;
            run.iter().for_each(|one| self.outbox.decide(one.place));
        } else if let Some(mapping) = self.map_alone(&run, summary) {
            let start = run.first().map_or(first, |first| first.iova);
            self.tables.add(start, self.next_id - 1, mapping);
        }
        run.clear();
        self.taken = run;
    }

    /// Makes the unmap at `place` an operation, because its `dma:*` event did not come.
    fn decide_unmap(&mut self, start: u64, place: u64) {
        let mut here = self.out_of_table.range((start, 0)..=(start, u64::MAX));
        let key = here.find(|(_, out)| out.place == place).map(|(key, _)| *key);
        let out = key.and_then(|key| self.out_of_table.remove(&key).map(|out| (key.1, out)));
        if let Some((id, out)) = out
            && let Some((named, key)) = out.mapping.claimed
        {
            self.named(named).remove(key, id);
            let op = unmap_op(out.origin, out.mapping.device, named.class(), id);
            self.outbox.fill(place, op, &[]);
            self.open = self.open.saturating_sub(1);
        }
        self.outbox.decide(place);
    }

    /// Makes pieces that nothing claimed an operation, and the unmap that ends them another.
    fn map_and_unmap(
        &mut self,
        origin: Origin,
        taken: &[TakenPiece],
        text: &[u8],
        summary: &mut Summary,
    ) {
        let Some(mapping) = self.map_alone(taken, summary) else {
            return;
        };
        let start = taken.first().map_or(0, |first| first.iova);
        self.beside.note_ended(origin.cpu, AddressRange { start, last: mapping.last });
        self.push_unmap(origin, mapping.device, Class::Streaming, self.next_id - 1, text);
    }

    /// Hands out pieces that nothing claimed as one map, where the last of them is.
    fn map_alone(&mut self, taken: &[TakenPiece], summary: &mut Summary) -> Option<InTable> {
        let (first, end) = (taken.first()?, taken.iter().max_by_key(|one| one.place)?);
        let bytes = taken.iter().map(|one| one.piece.bytes).fold(0u64, u64::saturating_add);
        let id = self.new_id(bytes, taken.len() as u64, summary);
        summary.mapped.note_mapped(first.iova);
        let device = match first.piece.device {
            Some(device) => device,
            None => self.devices.of_unclaimed(summary),
        };
        let mapping = id.map(|id| {
            self.pieces.clear();
            self.pieces.extend(taken.iter().map(TakenPiece::as_memory));
            let wanted = MapArguments {
                device,
                class: Class::Streaming,
                direction: Some(Direction::Bidirectional),
                dma: first.iova,
                bytes,
                api: self.unclaimed_api,
            };
            let op = map_op(end.piece.origin, &wanted, id, 0);
            self.outbox.fill(end.place, op, &self.pieces);
            let last = taken.last().unwrap_or(first);
            InTable {
                last: last.iova.saturating_add(last.piece.bytes - 1),
                left: bytes,
                device,
                claimed: None,
            }
        });
        for one in taken {
            self.outbox.decide(one.place);
        }
        mapping
    }
}
