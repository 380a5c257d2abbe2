//! One policy at work: the library's table and plan against one model IOMMU.
//!
//! Each lane allocates its own device addresses, since a lazy policy holds them longer. Nothing is
//! allocated from the heap per operation once the maps have grown to the trace's depth.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use portolan::addr::IovaRange;
use portolan::inval::{Capabilities, Gather, Quiesced, Quirks};
use portolan::platform::SlabTables;
use portolan::table::{Access, Format, MapError, PageTable, Segment};
use portolan_model::profile::Profile;

use super::combine::Batches;
use super::policy::{Fill, LazyBounds, LazyQueue, Policy};
use super::report::PolicyReport;
use super::tally::Tally;

use crate::iova::{Block, Space};
use crate::rig::Rig;
use crate::trace::{Class, Direction, Piece};

/// Device addresses are handed out below 2^32, as Linux does first.
pub(super) const WINDOW_LG2: u32 = 32;

/// With more commands than this in a batch of several CPUs, one for the context instead, as the
/// library combines them.
const BATCH_CONTEXT_ABOVE: u64 = 16;

/// Where the trace is.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The trace's time, which never steps back.
    pub now_ns: u64,
    /// The CPU.
    pub cpu: u16,
}

/// Whether a map was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// No room for it, or beyond what the format can express.
    Rejected,
}

/// What an operation is about to move, to the byte.
pub(super) struct Moved<'o> {
    pub(super) class: Class,
    pub(super) direction: Direction,
    pub(super) bytes: u64,
    pub(super) pieces: &'o [Piece],
}

/// A policy, whatever its machine's table format.
pub(super) trait Lane {
    /// Tells what the map after this moves; a policy that copies wants to know.
    fn moves(&mut self, moved: &Moved<'_>) {
        let _ = moved;
    }

    /// Maps `pieces`, whole pages of `bytes` bytes in all, as operation `id`, and lets the device
    /// touch each page once.
    fn map(&mut self, at: At, id: u64, pieces: &[Segment], bytes: u64) -> Result<Taken>;

    /// Unmaps operation `id`; one that was rejected is passed over.
    fn unmap(&mut self, at: At, id: u64) -> Result<()>;

    /// Pays what is still owed and reports.
    fn finish(&mut self) -> Result<PolicyReport>;
}

#[derive(Debug)]
struct Live {
    block: Block,
    range: IovaRange,
    /// Entries that translate it.
    entries: u64,
}

/// Spreads consecutive numbers; the order of the map is never looked at.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

/// A lane over table format `F`.
pub(super) struct FormatLane<F: Format> {
    policy: Policy,
    table: PageTable<F, Arc<SlabTables<F::Word>>>,
    rig: Rig<F>,
    caps: Capabilities,
    map_quirks: Quirks,
    unmap_quirks: Quirks,
    space: Space,
    live: HashMap<u64, Live, BuildHasherDefault<IdHasher>>,
    lazy: LazyQueue,
    batches: Batches,
    tally: Tally,
}

/// Table pages that a lane can need at most: every table below the window's top, those that wait
/// for quiet beside those that replace them, and the levels above.
pub(super) fn table_pages<F: Format>() -> u32 {
    let leaf_span_lg2 = F::GRANULE.lg2() + F::INDEX_LG2;
    2 * (1 << WINDOW_LG2.saturating_sub(leaf_span_lg2)) + 64
}

impl<F: Format> FormatLane<F> {
    pub(super) fn new(
        policy: Policy,
        profile: &Profile,
        format: F,
        memory: Arc<SlabTables<F::Word>>,
    ) -> Result<Self> {
        let table = PageTable::new(format, memory.clone())?;
        let rig = Rig::new(profile, memory, table.root())?;
        let caps = profile.capabilities();
        let window = WINDOW_LG2.min(format.input_lg2());
        Ok(Self {
            policy,
            rig,
            table,
            caps,
            map_quirks: policy.map_quirks(&caps, profile.quirks()),
            unmap_quirks: policy.unmap_quirks(&caps, profile.quirks()),
            space: Space::new(F::GRANULE, window),
            live: HashMap::default(),
            lazy: LazyQueue::new(LazyBounds::default()),
            batches: Batches::default(),
            tally: Tally::default(),
        })
    }

    fn pay(&self, quirks: &Quirks, gather: Gather) -> Result<Quiesced> {
        self.rig.pay(self.table.id(), &self.caps, quirks, gather)
    }

    /// Pays for all that the lazy queue holds, at trace time `now_ns`.
    fn flush(&mut self, now_ns: u64) -> Result<()> {
        let waited = self.lazy.age_ns(now_ns) as f64;
        let before = self.rig.now_ns();
        let gather = std::mem::take(&mut self.lazy.gather);
        let quiet = self.pay(&self.unmap_quirks, gather)?;
        let bytes = self.lazy.bytes();
        self.tally
            .exposed(bytes, waited + self.rig.now_ns() - before);
        self.tally.reusable_bytes = self.tally.reusable_bytes.max(bytes);
        for block in self.lazy.drain() {
            self.space.free(block, &quiet);
        }
        self.table.reclaim(quiet).expect("a proof of this table");
        Ok(())
    }

    /// Lets the lazy queue's timer fire if its time has come.
    fn tick(&mut self, now_ns: u64) -> Result<()> {
        match self.lazy.due_ns() {
            Some(due) if due <= now_ns => self.flush(due),
            _ => Ok(()),
        }
    }

    fn note_pages(&mut self) {
        self.tally.pages_peak = self.tally.pages_peak.max(self.table.pages());
    }

    fn block(&mut self, now_ns: u64, granules: u64) -> Result<Option<Block>> {
        if let Some(block) = self.space.alloc(granules) {
            return Ok(Some(block));
        }
        if self.lazy.due_ns().is_some() {
            self.flush(now_ns)?;
        }
        Ok(self.space.alloc(granules))
    }

    /// Entries that translate `range`; fewer than its pages where there is room for blocks.
    fn entries(&self, range: IovaRange) -> u64 {
        let pages = range.pages(F::GRANULE);
        if pages >> F::INDEX_LG2 == 0 {
            return pages;
        }
        self.table.mappings(range).count() as u64
    }

    /// Lets what is to be submitted together by `ns` be submitted.
    fn submit_due(&mut self, ns: f64) -> Result<()> {
        let Some(batch) = self.batches.due(ns) else {
            return Ok(());
        };
        let quirks = match batch.callers {
            0 | 1 => self.unmap_quirks,
            _ => Quirks {
                context_above: self.unmap_quirks.context_above.min(BATCH_CONTEXT_ABOVE),
                ..self.unmap_quirks
            },
        };
        let (begin, first_ns) = batch.times();
        let before = self.rig.now_ns();
        let quiet = self.pay(&quirks, batch.gather)?;
        let took = self.rig.now_ns() - before;
        let waited = self.batches.submitted(begin, first_ns, took);
        self.tally.exposed(batch.bytes, waited);
        for block in batch.blocks {
            self.space.free(block, &quiet);
        }
        self.table.reclaim(quiet).expect("a proof of this table");
        Ok(())
    }

    fn unmap_combined(&mut self, at: At, block: Block, range: IovaRange) -> Result<()> {
        let mut ns = at.now_ns as f64;
        self.submit_due(ns)?;
        while let Some(until) = self.batches.waits_until(at.cpu, ns) {
            ns = until;
            self.submit_due(ns)?;
        }
        let before = self.batches.gather.table_pages();
        self.table.unmap(range, &mut self.batches.gather)?;
        self.note_tables(self.batches.gather.table_pages().saturating_sub(before));
        let bytes = range.len_minus_one() + 1;
        self.batches.push(ns, at.cpu, block, bytes);
        self.submit_due(ns)
    }
}

/// Lets the device touch each page of `range` once.
pub(super) fn touch<F: Format>(rig: &Rig<F>, range: IovaRange) {
    let mut at = Some(range.start());
    while let Some(iova) = at.filter(|iova| *iova <= range.last()) {
        rig.touch(iova);
        at = iova.checked_add(F::GRANULE.bytes());
    }
}

impl<F: Format> Lane for FormatLane<F> {
    fn map(&mut self, at: At, id: u64, pieces: &[Segment], bytes: u64) -> Result<Taken> {
        self.tick(at.now_ns)?;
        let granules = bytes.div_ceil(F::GRANULE.bytes());
        let Some(block) = self.block(at.now_ns, granules)? else {
            self.tally.rejected += 1;
            return Ok(Taken::Rejected);
        };
        let mut gather = Gather::new();
        let access = Access::READ | Access::WRITE;
        let list = pieces.iter().copied();
        let range = match self.table.map_sg(block.start(), list, access, &mut gather) {
            Ok(range) => range,
            Err(error @ (MapError::AlreadyMapped { .. } | MapError::Memory(_))) => {
                return Err(anyhow!(error).context("the library refused a map it should take"));
            }
            Err(_) => {
                self.space.put_unused(block);
                self.tally.rejected += 1;
                return Ok(Taken::Rejected);
            }
        };
        self.tally.maps += 1;
        let entries = self.entries(range);
        self.tally.entries_mapped += entries;
        if !gather.is_empty() {
            let quiet = self.pay(&self.map_quirks, gather)?;
            self.table.reclaim(quiet).expect("a proof of this table");
        }
        self.note_pages();
        self.live.insert(
            id,
            Live {
                block,
                range,
                entries,
            },
        );
        self.tally.mapped_peak = self.tally.mapped_peak.max(self.live.len() as u64);
        touch::<F>(&self.rig, range);
        Ok(Taken::Yes)
    }

    fn unmap(&mut self, at: At, id: u64) -> Result<()> {
        self.tick(at.now_ns)?;
        let Some(Live {
            block,
            range,
            entries,
        }) = self.live.remove(&id)
        else {
            return Ok(());
        };
        let bytes = range.len_minus_one() + 1;
        self.tally.unmaps += 1;
        self.tally.entries_unmapped += entries;
        if self.policy == Policy::Lazy {
            let before = self.lazy.gather.table_pages();
            self.table.unmap(range, &mut self.lazy.gather)?;
            self.note_tables(self.lazy.gather.table_pages().saturating_sub(before));
            return match self.lazy.push(block, bytes, at.now_ns) {
                Fill::Room => Ok(()),
                Fill::Full => self.flush(at.now_ns),
            };
        }
        if self.policy == Policy::Combined {
            return self.unmap_combined(at, block, range);
        }
        let mut gather = Gather::new();
        self.table.unmap(range, &mut gather)?;
        self.note_tables(gather.table_pages());
        let before = self.rig.now_ns();
        let quiet = self.pay(&self.unmap_quirks, gather)?;
        self.tally.exposed(bytes, self.rig.now_ns() - before);
        self.space.free(block, &quiet);
        self.table.reclaim(quiet).expect("a proof of this table");
        Ok(())
    }

    fn finish(&mut self) -> Result<PolicyReport> {
        if let Some(due) = self.lazy.due_ns() {
            self.flush(due)?;
        }
        self.submit_due(f64::INFINITY)?;
        Ok(self.tally.report(self.policy.name(), &self.rig))
    }
}

impl<F: Format> FormatLane<F> {
    fn note_tables(&mut self, freed: usize) {
        if freed > 0 {
            self.tally.table_unmaps += 1;
            self.tally.tables_freed += freed as u64;
        }
        self.note_pages();
    }
}
