//! Counts, operation by operation, the contents of a trace.
//!
//! Memory is bounded by the mappings that live at once and by the constants below; counts beyond them are summed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasherDefault;

use super::{ClassShape, Histogram, OperationGroup, Share, TraceShape};
use portolan::dma::Direction;

use crate::trace::{Class, Excerpt, Mix, Op, OpKind, Piece};

/// Devices and CPUs with counts of their own.
const MOST_DEVICES: usize = 64;
const MOST_CPUS: usize = 1024;
/// Buffers that are remembered, to know them when they are mapped again.
const MOST_BUFFERS: usize = 1 << 18;
const PAGE: u64 = 4096;
const FOUR_GIB: u64 = 1 << 32;
/// Largest request that Linux's caches of addresses serve: `IOVA_RANGE_CACHE_MAX_SIZE` is 6, of orders from 0.
const CACHED_PAGES: u64 = 1 << 5;
/// A slot of Linux's bounce pool.
const SLOT: u64 = 2048;

/// An operation's line, and the lines that are kept.
struct Book<'a> {
    line: u64,
    text: &'a [u8],
    kept: &'a mut BTreeMap<u64, Excerpt>,
}

impl Book<'_> {
    /// Adds an operation of `bytes` to `seen`, and keeps the line if it is the first.
    fn add(&mut self, seen: &mut OperationGroup, bytes: u64) {
        seen.count += 1;
        seen.bytes = seen.bytes.saturating_add(bytes);
        if seen.first_line.is_none() {
            seen.first_line = Some(self.line);
            self.keep();
        }
    }

    fn add_if(&mut self, seen: &mut OperationGroup, bytes: u64, holds: impl FnOnce() -> bool) {
        if holds() {
            self.add(seen, bytes);
        }
    }

    fn keep(&mut self) {
        let kept = self.kept.entry(self.line);
        kept.or_insert_with(|| Excerpt::of(self.line, self.text));
    }
}

/// A mapping that lives.
struct Life {
    class: Class,
    since_ns: u64,
    bytes: u64,
    slots: u64,
    known: EarlierMap,
}

/// Result of looking a buffer up among those that were mapped before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EarlierMap {
    No,
    Yes,
    Unknown,
}

/// Beginning of a buffer, for a device.
#[derive(PartialEq, Eq, Hash)]
struct Buffer {
    device: u32,
    pa: u64,
}

/// Counts gathered while a trace is read.
#[derive(Default)]
pub(in crate::replay) struct Observer {
    shape: TraceShape,
    begin_ns: Option<u64>,
    live: HashMap<u64, Life, BuildHasherDefault<Mix>>,
    buffers: HashSet<Buffer, BuildHasherDefault<Mix>>,
    cpus: BTreeMap<u16, Share>,
    /// Slots of the bounce pool that are taken.
    slots: u64,
    kept: BTreeMap<u64, Excerpt>,
}

impl Observer {
    /// Adds an operation, at `now_ns` of a time that does not step back.
    pub(in crate::replay) fn note(&mut self, op: &Op<'_>, now_ns: u64) {
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        self.shape.span_ns = now_ns.saturating_sub(begin_ns);
        match op.kind {
            OpKind::Map { .. } => self.map(op, now_ns),
            OpKind::Unmap { id, .. } => self.unmap(op, id.0, now_ns),
        }
    }

    /// Finishes the counts; `devices` are the trace's names.
    pub(in crate::replay) fn finish(mut self, devices: &[String]) -> TraceShape {
        for life in self.live.values() {
            class_of(&mut self.shape, life.class).left_mapped += 1;
        }
        let mut shape = self.shape;
        shape.buffers = self.buffers.len() as u64;
        for (share, name) in shape.devices.iter_mut().zip(devices) {
            share.name.clone_from(name);
        }
        shape.cpus = self.cpus.into_values().collect();
        shape.excerpts = self.kept;
        shape
    }

    fn map(&mut self, op: &Op<'_>, now_ns: u64) {
        let OpKind::Map { id, class, bytes, bounced, direction, .. } = op.kind else {
            return;
        };
        let mut book = Book { line: op.line, text: op.text, kept: &mut self.kept };
        for share in shares(&mut self.shape, &mut self.cpus, op) {
            book.add(&mut share.maps, bytes);
            book.add_if(&mut share.bounced, bounced, || bounced > 0);
        }
        let of_class = class_of(&mut self.shape, class);
        book.add(&mut of_class.maps, bytes);
        book.add(bucket(&mut of_class.sizes, bytes), bytes);
        book.add_if(&mut self.shape.bounced, bounced, || bounced > 0);
        let copied = match direction {
            Some(Direction::ToDevice) => bounced,
            _ => bounced.saturating_mul(2),
        };
        let sum = &mut self.shape.bounce_copied_bytes;
        *sum = sum.saturating_add(copied);
        let slots = bounced.div_ceil(SLOT);
        self.slots = self.slots.saturating_add(slots);
        if self.slots > self.shape.bounced_slots_peak {
            self.shape.bounced_slots_peak = self.slots;
            let peak = Excerpt::of(op.line, op.text);
            self.shape.bounced_slots_peak_at = Some(peak);
        }
        let known = match class {
            Class::Streaming => {
                let known = known(&mut self.buffers, op);
                streaming(&mut self.shape, &mut book, op, known);
                known
            }
            Class::Coherent => EarlierMap::Unknown,
        };
        let life = Life { class, since_ns: now_ns, bytes, slots, known };
        self.live.insert(id.0, life);
    }

    fn unmap(&mut self, op: &Op<'_>, id: u64, now_ns: u64) {
        for share in shares(&mut self.shape, &mut self.cpus, op) {
            share.unmaps += 1;
        }
        let Some(life) = self.live.remove(&id) else {
            return;
        };
        self.slots = self.slots.saturating_sub(life.slots);
        let lived_ns = now_ns.saturating_sub(life.since_ns);
        let mut book = Book { line: op.line, text: op.text, kept: &mut self.kept };
        let of_class = class_of(&mut self.shape, life.class);
        book.add(&mut of_class.unmaps, life.bytes);
        let sum = &mut of_class.lifetimes_sum_ns;
        *sum = sum.saturating_add(lived_ns);
        book.add(bucket(&mut of_class.lifetimes_ns, lived_ns), life.bytes);
        if life.known == EarlierMap::Yes {
            let lifetimes = &mut self.shape.reused_lifetimes_ns;
            book.add(bucket(lifetimes, lived_ns), life.bytes);
        }
    }
}

/// Address at which the memory begins that `op` maps. Pieces that table events told are whole pages: then the DMA
/// address has the offset in the page, which a bounced one does not.
fn begin(op: &Op<'_>) -> Option<u64> {
    let OpKind::Map { offset, pieces, .. } = op.kind else {
        return None;
    };
    let pa = pieces.first()?.pa.get();
    match pa % PAGE {
        0 => Some(pa | u64::from(offset)),
        _ => Some(pa),
    }
}

/// Tells if the buffer that `op` maps was mapped before; remembers it.
fn known(buffers: &mut HashSet<Buffer, BuildHasherDefault<Mix>>, op: &Op<'_>) -> EarlierMap {
    let Some(pa) = begin(op) else {
        return EarlierMap::Unknown;
    };
    let buffer = Buffer { device: op.device.0, pa };
    if buffers.contains(&buffer) {
        return EarlierMap::Yes;
    }
    if buffers.len() >= MOST_BUFFERS {
        return EarlierMap::Unknown;
    }
    buffers.insert(buffer);
    EarlierMap::No
}

/// Counts a streaming map.
fn streaming(shape: &mut TraceShape, book: &mut Book<'_>, op: &Op<'_>, known: EarlierMap) {
    let OpKind::Map { direction, bytes, offset, pieces, dma, .. } = op.kind else {
        return;
    };
    book.add(bucket(&mut shape.pieces, pieces.len() as u64), bytes);
    for piece in pieces {
        book.add(bucket(&mut shape.piece_sizes, piece.bytes), piece.bytes);
    }
    let by = &mut shape.directions;
    let by = match direction {
        Some(Direction::ToDevice) => &mut by.to_device,
        Some(Direction::FromDevice) => &mut by.from_device,
        Some(Direction::Bidirectional) => &mut by.both,
        None => &mut by.none,
    };
    book.add(by, bytes);
    let pages = bytes.saturating_add(offset.into()).div_ceil(PAGE);
    let last = |start: u64, bytes: u64| start.saturating_add(bytes.saturating_sub(1));
    let high = |piece: &Piece| last(piece.pa.get(), piece.bytes) >= FOUR_GIB;
    let small = |piece: &Piece| piece.bytes <= PAGE;
    if pieces.len() > 1 && pieces.iter().all(small) {
        book.add(&mut shape.scattered, bytes);
        shape.scattered_pieces += pieces.len() as u64;
    }
    book.add_if(&mut shape.off_page, bytes, || begin(op).is_some_and(|pa| pa % PAGE > 0));
    book.add_if(&mut shape.short, bytes, || bytes < PAGE);
    book.add_if(&mut shape.above_caches, bytes, || pages > CACHED_PAGES);
    book.add_if(&mut shape.reused, bytes, || known == EarlierMap::Yes);
    book.add_if(&mut shape.packets_again, bytes, || {
        (known, direction) == (EarlierMap::Yes, Some(Direction::FromDevice)) && bytes < PAGE
    });
    shape.reuse_unknown += u64::from(known == EarlierMap::Unknown);
    book.add_if(&mut shape.dma_above_4g, bytes, || last(dma, bytes) >= FOUR_GIB);
    book.add_if(&mut shape.memory_above_4g, bytes, || pieces.iter().any(high));
    book.add_if(&mut shape.untranslated, bytes, || begin(op) == Some(dma));
}

fn class_of(shape: &mut TraceShape, class: Class) -> &mut ClassShape {
    match class {
        Class::Streaming => &mut shape.streaming,
        Class::Coherent => &mut shape.coherent,
    }
}

fn bucket(histogram: &mut Histogram, value: u64) -> &mut OperationGroup {
    let lg2 = value.checked_ilog2().unwrap_or(0);
    histogram.entry(lg2 as u8).or_default()
}

/// Counts of the device and the CPU of `op`.
fn shares<'a>(
    shape: &'a mut TraceShape,
    cpus: &'a mut BTreeMap<u16, Share>,
    op: &Op<'_>,
) -> [&'a mut Share; 2] {
    let index = op.device.0 as usize;
    if index < MOST_DEVICES && shape.devices.len() <= index {
        shape.devices.resize(index + 1, Share::default());
    }
    let device = shape.devices.get_mut(index).unwrap_or(&mut shape.other_devices);
    let cpu = if cpus.len() < MOST_CPUS || cpus.contains_key(&op.cpu) {
        cpus.entry(op.cpu).or_insert_with(|| Share { name: op.cpu.to_string(), ..Share::default() })
    } else {
        &mut shape.other_cpus
    };
    [device, cpu]
}

#[cfg(test)]
mod tests;
