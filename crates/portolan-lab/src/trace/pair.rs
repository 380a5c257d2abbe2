//! From events to operations: which unmap ends which map, and what memory a map is made of.
//!
//! * A page's unmap is found by device and DMA address, a scatter list's by device and list of
//!   physical addresses, since its event has no DMA address. Where several are alike the oldest
//!   goes first: an unmap may be printed after its address was given out again.
//! * The `iommu:map` events before a `dma:*` event on the same CPU give the true pieces.
//! * In a trace without `dma:*` events the `iommu:*` events themselves are the operations.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use portolan::addr::PhysAddr;

use super::event::{Event, List};
use super::line::Stamped;
use super::op::{Class, DeviceId, Direction, MapId, Mix, Op, OpKind, Piece, Running};
use super::summary::Summary;

/// Table pieces that wait for an operation to claim them.
const MAX_PIECES: usize = 1 << 16;
const PAGE: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    device: u32,
    what: u64,
}

/// Mappings that are alike, oldest first.
struct Alike {
    first: u64,
    more: VecDeque<u64>,
}

#[derive(Default)]
struct Live(HashMap<Key, Alike, BuildHasherDefault<Mix>>);

impl Live {
    fn add(&mut self, key: Key, id: u64) {
        let alike = || Alike {
            first: id,
            more: VecDeque::new(),
        };
        self.0
            .entry(key)
            .and_modify(|alike| alike.more.push_back(id))
            .or_insert_with(alike);
    }

    fn take(&mut self, key: Key) -> Option<MapId> {
        let alike = self.0.get_mut(&key)?;
        let id = alike.first;
        match alike.more.pop_front() {
            Some(next) => alike.first = next,
            None => {
                self.0.remove(&key);
            }
        }
        Some(MapId(id))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    DmaEvents,
    TableEvents,
}

fn key_of(device: DeviceId, dma: u64) -> Key {
    Key {
        device: device.0,
        what: dma,
    }
}

/// The state of pairing.
pub(super) struct Pairing {
    source: Source,
    next_id: u64,
    live: u64,
    pages: Live,
    coherent: Live,
    lists: Live,
    /// Table pieces by first address, with their length and memory; where the pieces are the
    /// operations, with the operation's number instead of the memory.
    table: BTreeMap<u64, (u64, u64)>,
    bounced: HashMap<u16, u64>,
    devices: Vec<Box<[u8]>>,
    pieces: Vec<Piece>,
    /// Operations not yet handed out; a map is given `pieces` then.
    pending: VecDeque<Op<'static>>,
}

impl Pairing {
    pub(super) fn new(has_dma_events: bool) -> Self {
        Self {
            source: if has_dma_events {
                Source::DmaEvents
            } else {
                Source::TableEvents
            },
            next_id: 0,
            live: 0,
            pages: Live::default(),
            coherent: Live::default(),
            lists: Live::default(),
            table: BTreeMap::new(),
            bounced: HashMap::new(),
            devices: Vec::new(),
            pieces: Vec::new(),
            pending: VecDeque::new(),
        }
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The oldest operation that was not yet handed out; it came from the line that says `text`.
    pub(super) fn take_pending<'r>(
        &'r mut self,
        text: &'r [u8],
        summary: &mut Summary,
    ) -> Option<Op<'r>> {
        let mut op: Op<'r> = self.pending.pop_front()?;
        op.text = text;
        match &mut op.kind {
            OpKind::Unmap { class, .. } => match class {
                Class::Streaming => {
                    summary.unmaps += 1;
                    self.live = self.live.saturating_sub(1);
                }
                Class::Coherent => summary.coherent_frees += 1,
            },
            OpKind::Map {
                class,
                bytes,
                pieces,
                ..
            } => {
                *pieces = &self.pieces;
                match class {
                    Class::Streaming => {
                        summary.maps += 1;
                        summary.bytes_mapped = summary.bytes_mapped.saturating_add(*bytes);
                        self.live += 1;
                        summary.max_live = summary.max_live.max(self.live);
                    }
                    Class::Coherent => {
                        summary.coherent_allocs += 1;
                        summary.coherent_bytes = summary.coherent_bytes.saturating_add(*bytes);
                    }
                }
            }
        }
        Some(op)
    }

    fn live_of(&mut self, class: Class) -> &mut Live {
        match class {
            Class::Streaming => &mut self.pages,
            Class::Coherent => &mut self.coherent,
        }
    }

    fn map_one(
        &mut self,
        at: (u64, u64, u16, Running),
        device: DeviceId,
        (class, direction): (Class, Direction),
        (dma, bytes): (u64, u64),
        pa: Option<u64>,
    ) {
        self.claim(dma, bytes);
        if self.pieces.is_empty() {
            let pa = PhysAddr::new(pa.unwrap_or(dma));
            self.pieces.push(Piece { pa, bytes });
        }
        let id = self.next_id;
        self.live_of(class).add(key_of(device, dma), id);
        self.push_map(at, device, class, direction, bytes, dma);
    }

    pub(super) fn feed(
        &mut self,
        line: u64,
        stamped: &Stamped<'_>,
        event: Event<'_>,
        summary: &mut Summary,
    ) {
        let at = (line, stamped.time_ns, stamped.cpu, stamped.running);
        match event {
            Event::TableMap { iova, pa, bytes } => match self.source {
                Source::DmaEvents => self.note_piece(iova, bytes, pa, summary),
                Source::TableEvents => self.table_map(at, iova, pa, bytes, summary),
            },
            Event::TableUnmap { iova, bytes } => match self.source {
                Source::DmaEvents => self.forget_pieces(iova, bytes, summary),
                Source::TableEvents => self.table_unmap(at, iova, bytes, summary),
            },
            Event::Bounced { bytes } => {
                summary.bounced_bytes = summary.bounced_bytes.saturating_add(bytes);
                let sum = self.bounced.entry(stamped.cpu).or_default();
                *sum = sum.saturating_add(bytes);
            }
            Event::Failed | Event::Queued { .. } | Event::Other => {}
            _ if self.source == Source::TableEvents => {}
            Event::Map {
                device,
                class,
                direction,
                dma,
                bytes,
                pa,
            } => {
                let device = self.device(device, summary);
                self.map_one(at, device, (class, direction), (dma, bytes), pa);
            }
            Event::MapSg {
                device,
                direction,
                dma,
                sizes,
                pas,
                cut,
            } => {
                let device = self.device(device, summary);
                self.map_sg(at, device, direction, (dma, sizes, pas), cut, summary);
            }
            Event::Unmap { device, class, dma } => {
                let device = self.device(device, summary);
                let found = self.live_of(class).take(key_of(device, dma));
                self.push_unmap(at, device, class, found, summary);
            }
            Event::UnmapSg { device, pas } => {
                let device = self.device(device, summary);
                let found = self.lists.take(list_key(device, pas));
                self.push_unmap(at, device, Class::Streaming, found, summary);
            }
        }
    }

    /// Closes the books at the end of the trace.
    pub(super) fn finish(&mut self, summary: &mut Summary) {
        summary.left_mapped = self.live;
        if self.source == Source::DmaEvents {
            summary.unclaimed_table_maps += self.table.len() as u64;
        }
        summary.finish();
    }

    fn device(&mut self, name: &[u8], summary: &mut Summary) -> DeviceId {
        let known = self.devices.iter().position(|known| **known == *name);
        let index = known.unwrap_or_else(|| {
            self.devices.push(name.into());
            summary.devices.push(name.escape_ascii().to_string());
            self.devices.len() - 1
        });
        DeviceId(index as u32)
    }

    fn push_map(
        &mut self,
        (line, time_ns, cpu, running): (u64, u64, u16, Running),
        device: DeviceId,
        class: Class,
        direction: Direction,
        bytes: u64,
        dma: u64,
    ) {
        let id = MapId(self.next_id);
        self.next_id += 1;
        let bounced = self.bounced.remove(&cpu).unwrap_or(0);
        let kind = OpKind::Map {
            id,
            class,
            direction,
            bytes,
            offset: (dma % PAGE) as u16,
            pieces: &[],
            dma,
            bounced,
        };
        self.pending.push_back(Op {
            line,
            text: b"",
            time_ns,
            cpu,
            running,
            device,
            kind,
        });
    }

    fn push_unmap(
        &mut self,
        (line, time_ns, cpu, running): (u64, u64, u16, Running),
        device: DeviceId,
        class: Class,
        found: Option<MapId>,
        summary: &mut Summary,
    ) {
        match found {
            Some(id) => self.pending.push_back(Op {
                line,
                text: b"",
                time_ns,
                cpu,
                running,
                device,
                kind: OpKind::Unmap { id, class },
            }),
            None => summary.note_orphan(line),
        }
    }

    fn map_sg(
        &mut self,
        at: (u64, u64, u16, Running),
        device: DeviceId,
        direction: Direction,
        (dma, sizes, pas): (List<'_>, List<'_>, List<'_>),
        cut: bool,
        summary: &mut Summary,
    ) {
        let bytes = sizes.iter().fold(0u64, u64::saturating_add);
        let first = dma.iter().next().unwrap_or(0);
        self.claim(first, bytes);
        if cut {
            summary.truncated_lists += 1;
        }
        if self.pieces.is_empty() && guess_pieces(&mut self.pieces, bytes, sizes, pas) {
            summary.inexact_lists += 1;
        }
        self.lists.add(list_key(device, pas), self.next_id);
        self.push_map(at, device, Class::Streaming, direction, bytes, first);
    }

    fn note_piece(&mut self, iova: u64, bytes: u64, pa: u64, summary: &mut Summary) {
        if self.table.len() >= MAX_PIECES {
            summary.unclaimed_table_maps += self.table.len() as u64;
            self.table.clear();
        }
        if self.table.insert(iova, (bytes, pa)).is_some() {
            summary.unclaimed_table_maps += 1;
        }
    }

    fn forget_pieces(&mut self, iova: u64, bytes: u64, summary: &mut Summary) {
        let last = iova.saturating_add(bytes - 1);
        while let Some((&at, _)) = self.table.range(iova..=last).next() {
            self.table.remove(&at);
            summary.unclaimed_table_maps += 1;
        }
    }

    /// Takes the table pieces that make up `bytes` bytes from `dma`, if all are there.
    fn claim(&mut self, dma: u64, bytes: u64) {
        self.pieces.clear();
        let start = dma - dma % PAGE;
        let last = dma.saturating_add(bytes - 1);
        let mut at = start;
        while at <= last {
            let Some(&(length, pa)) = self.table.get(&at) else {
                self.pieces.clear();
                return;
            };
            self.pieces.push(Piece {
                pa: PhysAddr::new(pa),
                bytes: length,
            });
            let Some(next) = at.checked_add(length) else {
                break;
            };
            at = next;
        }
        let mut at = start;
        for piece in &self.pieces {
            self.table.remove(&at);
            at = at.saturating_add(piece.bytes);
        }
    }

    fn table_map(
        &mut self,
        at: (u64, u64, u16, Running),
        iova: u64,
        pa: u64,
        bytes: u64,
        summary: &mut Summary,
    ) {
        let device = self.device(b"iommu", summary);
        self.pieces.clear();
        self.pieces.push(Piece {
            pa: PhysAddr::new(pa),
            bytes,
        });
        self.table.insert(iova, (bytes, self.next_id));
        self.push_map(at, device, Class::Streaming, Direction::Both, bytes, iova);
    }

    /// Ends every piece that begins in the range.
    fn table_unmap(
        &mut self,
        at: (u64, u64, u16, Running),
        iova: u64,
        bytes: u64,
        summary: &mut Summary,
    ) {
        let device = self.device(b"iommu", summary);
        let last = iova.saturating_add(bytes - 1);
        let mut found = false;
        while let Some((&start, &(_, id))) = self.table.range(iova..=last).next() {
            self.table.remove(&start);
            self.push_unmap(at, device, Class::Streaming, Some(MapId(id)), summary);
            found = true;
        }
        if !found {
            summary.note_orphan(at.0);
        }
    }
}

fn list_key(device: DeviceId, pas: List<'_>) -> Key {
    let mut mix = Mix::default();
    for pa in pas.iter() {
        mix.write_u64(pa);
    }
    Key {
        device: device.0,
        what: mix.finish(),
    }
}

/// Pieces from the lists of the event alone; whether lengths had to be guessed.
fn guess_pieces(pieces: &mut Vec<Piece>, bytes: u64, sizes: List<'_>, pas: List<'_>) -> bool {
    let count = pas.iter().count() as u64;
    if count == 0 {
        pieces.push(Piece {
            pa: PhysAddr::new(0),
            bytes,
        });
        return true;
    }
    if sizes.iter().count() as u64 == count {
        let both = pas.iter().zip(sizes.iter()).filter(|&(_, bytes)| bytes > 0);
        pieces.extend(both.map(|(pa, bytes)| Piece {
            pa: PhysAddr::new(pa),
            bytes,
        }));
        return false;
    }
    let mut left = bytes;
    for (pa, i) in pas.iter().zip(1u64..) {
        let step = if i == count {
            left
        } else {
            left.min(PAGE - pa % PAGE)
        };
        if step > 0 {
            pieces.push(Piece {
                pa: PhysAddr::new(pa),
                bytes: step,
            });
        }
        left -= step;
    }
    count.checked_mul(PAGE) != Some(bytes)
}
