//! Operations of a trace, some thousands at a time, as every policy carries them out.

use std::sync::atomic::{AtomicU32, Ordering};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::Direction;

use crate::trace::{self, At, Class, OpKind, Piece};

/// Device addresses are handed out below 2^32, as Linux does first.
pub(super) const WINDOW_LG2: u32 = 32;
/// Operations of a chunk, and pieces with which it takes no further ones.
const OPERATIONS: usize = 1 << 13;
const PIECES: usize = 1 << 16;
/// Longest time after the first operation: 100 days. Later operations are moved there.
const SPAN_NS: u64 = 100 * 86_400 * 1_000_000_000;
/// Memory for mappings whose place the trace does not tell: odd pages, so that they take single
/// pages as scattered memory does.
const UNKNOWN_AT: u64 = 0x1000_1000;

/// An operation of the trace, with its memory among the chunk's.
pub(super) struct ReplayOp {
    /// Line of the trace.
    pub(super) line: u64,
    /// Nanoseconds since the first operation.
    pub(super) at_ns: u64,
    /// Index of its device.
    pub(super) device: u32,
    /// Name of its mapping.
    pub(super) id: u64,
    pub(super) kind: ReplayOpKind,
}

/// Work of an operation.
pub(super) enum ReplayOpKind {
    Map(ReplayMap),
    Unmap,
}

/// A map.
pub(super) struct ReplayMap {
    pub(super) class: Class,
    pub(super) direction: Direction,
    /// Bytes that it moves.
    pub(super) bytes: u64,
    /// Bytes of its pages.
    pub(super) padded: u64,
    /// Index of its first piece in the chunk; equal to `after` if no policy can map it.
    first: usize,
    after: usize,
    /// Policies that have carried it out.
    pub(super) taken: AtomicU32,
}

/// Some operations.
#[derive(Default)]
pub(super) struct Chunk {
    ops: Vec<ReplayOp>,
    pieces: Vec<PhysRange>,
    /// Operations of each virtual CPU.
    by_cpu: Vec<Vec<usize>>,
    /// Time of the trace's first operation.
    begin_ns: Option<u64>,
    /// Nanoseconds from there to the last one.
    pub(super) end_ns: u64,
}

impl Chunk {
    /// Makes an empty chunk for `cpus` virtual CPUs, over which the trace's CPUs are spread.
    pub(super) fn new(cpus: usize) -> Self {
        Self { by_cpu: vec![Vec::new(); cpus], ..Self::default() }
    }

    /// Adds an operation at `at`; the bytes of its pages if it is a map that can be carried out.
    pub(super) fn push(&mut self, op: &trace::Op<'_>, at: At, granule: PageSize) -> Option<u64> {
        let begin_ns = *self.begin_ns.get_or_insert(at.now_ns);
        self.end_ns = (at.now_ns - begin_ns).min(SPAN_NS);
        let (id, kind) = match op.kind {
            OpKind::Unmap { id, .. } => (id, ReplayOpKind::Unmap),
            OpKind::Map { id, bytes, offset, pieces, class, direction, .. } => {
                let first = self.pieces.len();
                let padded = pad(pieces, offset.into(), bytes, granule, &mut self.pieces);
                if padded.is_none() {
                    self.pieces.truncate(first);
                }
                let map = ReplayMap {
                    class,
                    direction: direction.unwrap_or(Direction::Bidirectional),
                    bytes,
                    padded: padded.unwrap_or(0),
                    first,
                    after: self.pieces.len(),
                    taken: AtomicU32::new(0),
                };
                (id, ReplayOpKind::Map(map))
            }
        };
        let cpus = self.by_cpu.len();
        self.by_cpu[usize::from(at.cpu) % cpus].push(self.ops.len());
        let padded = match &kind {
            ReplayOpKind::Map(map) if map.padded > 0 => Some(map.padded),
            _ => None,
        };
        self.ops.push(ReplayOp {
            line: op.line,
            at_ns: self.end_ns,
            device: op.device.0,
            id: id.0,
            kind,
        });
        padded
    }

    /// Makes an empty chunk for the operations that follow.
    pub(super) fn successor(&self) -> Self {
        Self { begin_ns: self.begin_ns, ..Self::new(self.by_cpu.len()) }
    }

    pub(super) fn is_full(&self) -> bool {
        self.ops.len() >= OPERATIONS || self.pieces.len() >= PIECES
    }

    /// All operations.
    pub(super) fn ops(&self) -> &[ReplayOp] {
        &self.ops
    }

    /// Operations of a virtual CPU.
    pub(super) fn of(&self, cpu: usize) -> impl Iterator<Item = &ReplayOp> {
        self.by_cpu[cpu].iter().map(|index| &self.ops[*index])
    }

    /// The memory of a map, to the byte.
    pub(super) fn pieces(&self, map: &ReplayMap) -> &[PhysRange] {
        &self.pieces[map.first..map.after]
    }

    /// Lines of the maps that no policy carried out.
    pub(super) fn rejected(&self) -> impl Iterator<Item = u64> {
        self.ops.iter().filter_map(|op| match &op.kind {
            ReplayOpKind::Map(map) if map.taken.load(Ordering::Relaxed) == 0 => Some(op.line),
            _ => None,
        })
    }

    /// Makes room for the next operations.
    pub(super) fn clear(&mut self) {
        self.ops.clear();
        self.pieces.clear();
        self.by_cpu.iter_mut().for_each(Vec::clear);
    }
}

/// Bytes of the pages of a map; `None` if it is an unmap, or cannot be carried out.
pub(crate) fn padded(
    kind: &OpKind<'_>,
    granule: PageSize,
    scratch: &mut Vec<PhysRange>,
) -> Option<u64> {
    scratch.clear();
    match *kind {
        OpKind::Map { bytes, offset, pieces, .. } => {
            pad(pieces, offset.into(), bytes, granule, scratch)
        }
        OpKind::Unmap { .. } => None,
    }
}

/// Adds `pieces` to `list`, and pages of unknown place for the bytes that no piece accounts for. The
/// sum of their pages, or `None` if that is nothing or too large for the window.
fn pad(
    pieces: &[Piece],
    offset: u64,
    bytes: u64,
    granule: PageSize,
    list: &mut Vec<PhysRange>,
) -> Option<u64> {
    let mask = granule.bytes() - 1;
    let mut told = 0u64;
    let mut padded = 0u64;
    for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
        let range = PhysRange::from_len(piece.pa, piece.bytes)?;
        range.last().get().checked_add(1)?.checked_add(mask)?;
        list.push(range);
        padded = padded.checked_add(range.pages(granule) << granule.lg2())?;
        told = told.checked_add(piece.bytes)?;
    }
    let wanted = bytes.checked_add(if told == 0 { offset } else { 0 })?;
    if told < wanted {
        let missing = (wanted - told).checked_add(mask)? & !mask;
        let pa = PhysAddr::new((UNKNOWN_AT + mask) & !mask);
        list.push(PhysRange::from_len(pa, missing)?);
        padded = padded.checked_add(missing)?;
    }
    (padded > 0 && padded < 1 << WINDOW_LG2).then_some(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(pieces: &[(u64, u64)], offset: u64, bytes: u64) -> Option<(u64, usize)> {
        let pieces: Vec<_> =
            pieces.iter().map(|&(pa, bytes)| Piece { pa: PhysAddr::new(pa), bytes }).collect();
        let mut list = Vec::new();
        let sum = pad(&pieces, offset, bytes, PageSize::SIZE_4K, &mut list)?;
        Some((sum, list.len()))
    }

    #[test]
    fn pieces_are_counted_in_pages() {
        assert_eq!(padded(&[(0x1840, 1522)], 0x840, 1522), Some((4096, 1)));
        assert_eq!(padded(&[(0x1fff, 2)], 0xfff, 2), Some((8192, 1)));
        assert_eq!(padded(&[(0x1000, 4096), (0x9000, 100)], 0, 4196), Some((8192, 2)));
        // Whole pages told by table events, for an operation of fewer bytes.
        assert_eq!(padded(&[(0x1000, 4096)], 0x10, 20), Some((4096, 1)));
    }

    #[test]
    fn what_is_not_told_is_made_up_and_what_overflows_is_refused() {
        assert_eq!(padded(&[], 0x800, 4096), Some((8192, 1)));
        assert_eq!(padded(&[(0x1000, 4096)], 0, 12288), Some((12288, 2)));
        assert_eq!(padded(&[(u64::MAX - 10, 20)], 0, 20), None);
        assert_eq!(padded(&[], 0, u64::MAX), None);
        assert_eq!(padded(&[], 0, 1 << 32), None);
        assert_eq!(padded(&[], 0, 0), None);
    }
}
