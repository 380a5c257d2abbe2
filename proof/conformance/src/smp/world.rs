//! Memory, its use, and the accesses that devices may make.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr, PhysRange};
use portolan::demand::{Frames, Pager, PopulateError, Unreached};
use portolan::platform::Clock as _;
use portolan::table::Access;
use portolan_sim::cpus::VirtualCpus;

use crate::promise::{Lent, promised};

pub(super) const PAGE: u64 = 4096;
/// First address of memory.
const MEMORY: u64 = 1 << 40;
/// Frames of a block.
const BLOCK: u64 = 512;
/// One of so many pages cannot be populated.
const ABSENT: u64 = 97;
/// Longest time that it takes to populate pages, in nanoseconds.
const POPULATE_NS: f64 = 1500.0;

/// Use of a frame, which is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameUse {
    /// Never given to a device.
    Unused,
    /// Behind this device page.
    Behind(u64),
    /// Being taken back from this page since this time in nanoseconds.
    Leaving(u64, u64),
    /// Its owner's again; it began to leave this page at this time.
    Back(u64, u64),
}

#[derive(Debug)]
struct FrameLedger {
    frames: Vec<FrameUse>,
    /// The frame that was last behind each device page.
    pages: BTreeMap<u64, usize>,
    /// Buffers that their drivers do not have.
    lent: u64,
    rng: Rng,
}

/// All memory.
#[derive(Debug)]
pub(super) struct FrameWorld {
    cpus: VirtualCpus,
    ledger: Mutex<FrameLedger>,
}

/// Memory that a device reached by an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameReached {
    /// The memory behind the address.
    Own,
    /// The memory that was last behind it, which its owner does not have back yet.
    Leaving,
    /// Memory that is leaving it, while other memory is already behind it.
    Superseded,
    /// The memory that was last behind it, which its owner has back; it began to leave at this time in nanoseconds.
    Exposed(u64),
    /// Anything else.
    Wrong,
}

/// A buffer, which is its driver's again when it is dropped.
pub(super) type Block = Lent<LentFrames>;

/// Place of a buffer in its world.
#[derive(Debug)]
pub(crate) struct LentFrames {
    world: Arc<FrameWorld>,
    memory: PhysRange,
}

impl Drop for LentFrames {
    fn drop(&mut self) {
        let mut ledger = self.world.ledger();
        ledger.lent -= 1;
        for frame in frames(self.memory) {
            ledger.back(frame);
        }
    }
}

/// Frames that leave pages.
#[derive(Debug)]
pub(super) struct LeavingFrames(Vec<usize>);

/// Frames of `memory`.
fn frames(memory: PhysRange) -> impl Iterator<Item = usize> {
    let frame = |at: PhysAddr| ((at.get() - MEMORY) / PAGE) as usize;
    frame(memory.start())..=frame(memory.last())
}

impl FrameWorld {
    /// Memory of which nothing is used.
    pub(super) fn new(cpus: VirtualCpus, seed: u64) -> Arc<Self> {
        let ledger = FrameLedger {
            frames: Vec::new(),
            pages: BTreeMap::new(),
            lent: 0,
            rng: Rng::with_seed(seed),
        };
        Arc::new(Self { cpus, ledger: Mutex::new(ledger) })
    }

    fn ledger(&self) -> MutexGuard<'_, FrameLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `bytes` bytes, `offset` bytes into a page.
    pub(super) fn block(self: &Arc<Self>, offset: u64, bytes: u64) -> Option<Block> {
        let mut ledger = self.ledger();
        let start = MEMORY + ledger.frames.len() as u64 * PAGE + offset;
        let range = PhysRange::from_len(PhysAddr::new(start), bytes)?;
        let end = frames(range).last()? + 1;
        ledger.frames.resize(end, FrameUse::Unused);
        ledger.lent += 1;
        Some(Lent { range, owner: LentFrames { world: self.clone(), memory: range } })
    }

    /// Notes that `memory` is behind the pages from `iova` on.
    pub(super) fn map(&self, iova: Iova, memory: PhysRange) {
        let mut ledger = self.ledger();
        for (frame, page) in frames(memory).zip(iova.get() / PAGE..) {
            ledger.frames[frame] = FrameUse::Behind(page);
            ledger.pages.insert(page, frame);
        }
    }

    /// Notes that `memory` is about to leave the pages from `iova` on.
    pub(super) fn unmap(&self, iova: Iova, memory: PhysRange) {
        let since_ns = self.cpus.now().get();
        let mut ledger = self.ledger();
        for (frame, page) in frames(memory).zip(iova.get() / PAGE..) {
            ledger.frames[frame] = FrameUse::Leaving(page, since_ns);
        }
    }

    /// Buffers that their drivers do not have.
    pub(super) fn lent(&self) -> u64 {
        self.ledger().lent
    }

    /// Tells if the page at `iova` cannot be populated.
    fn is_absent(iova: Iova) -> bool {
        iova.get() / PAGE % ABSENT == ABSENT - 1
    }

    /// Takes pages out of the owner's tables: their frames are given to no device any more.
    pub(super) fn take(&self, range: IovaRange) -> LeavingFrames {
        let since_ns = self.cpus.now().get();
        let mut ledger = self.ledger();
        let FrameLedger { frames, pages, .. } = &mut *ledger;
        let mut leaving = Vec::new();
        for (&page, &frame) in pages.range(range.start().get() / PAGE..=range.last().get() / PAGE) {
            if frames[frame] == FrameUse::Behind(page) {
                frames[frame] = FrameUse::Leaving(page, since_ns);
                leaving.push(frame);
            }
        }
        LeavingFrames(leaving)
    }

    /// Notes that no device reaches frames which were taken out.
    pub(super) fn free(&self, leaving: LeavingFrames) {
        let mut ledger = self.ledger();
        for frame in leaving.0 {
            ledger.back(frame);
        }
    }

    /// Judges an access of a device that reached `pa` by `iova`.
    pub(super) fn judge(&self, iova: Iova, pa: PhysAddr) -> FrameReached {
        let ledger = self.ledger();
        let frame = pa.get().checked_sub(MEMORY).map(|above| (above / PAGE) as usize);
        let page = iova.get() / PAGE;
        let last = ledger.pages.get(&page).copied() == frame;
        match frame.and_then(|frame| ledger.frames.get(frame)) {
            Some(FrameUse::Behind(behind)) if *behind == page => FrameReached::Own,
            Some(FrameUse::Leaving(behind, _)) if *behind == page => match last {
                true => FrameReached::Leaving,
                false => FrameReached::Superseded,
            },
            Some(FrameUse::Back(behind, since_ns)) if last && *behind == page => {
                FrameReached::Exposed(*since_ns)
            }
            _ => FrameReached::Wrong,
        }
    }
}

impl FrameLedger {
    /// Gives a frame back to its owner.
    fn back(&mut self, frame: usize) {
        self.frames[frame] = match self.frames[frame] {
            FrameUse::Leaving(page, since_ns) => FrameUse::Back(page, since_ns),
            FrameUse::Behind(page) => FrameUse::Back(page, 0),
            other => other,
        };
    }

    /// The frame behind `page`; a new one if it has none.
    fn frame(&mut self, page: u64) -> usize {
        let last = self.pages.get(&page).copied();
        if let Some(frame) = last.filter(|&frame| self.frames[frame] == FrameUse::Behind(page)) {
            return frame;
        }
        // Blocks begin aligned, so that they can be mapped as such.
        if page.is_multiple_of(BLOCK) {
            let aligned = self.frames.len().next_multiple_of(BLOCK as usize);
            self.frames.resize(aligned, FrameUse::Unused);
        }
        let frame = self.frames.len();
        self.frames.push(FrameUse::Behind(page));
        self.pages.insert(page, frame);
        frame
    }
}

impl Pager for FrameWorld {
    fn populate(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let pause = {
            let mut ledger = self.ledger();
            for page in range.start().get() / PAGE..=range.last().get() / PAGE {
                let iova = Iova::new(page * PAGE);
                if Self::is_absent(iova) {
                    if iova == range.start() {
                        return Err(PopulateError::Absent { iova });
                    } else {
                        break;
                    }
                }
                let pa = MEMORY + ledger.frame(page) as u64 * PAGE;
                if frames.push(promised(PhysAddr::new(pa), PAGE)).is_err() {
                    break;
                }
            }
            ledger.rng.f64() * POPULATE_NS
        };
        // Others run here, with the found frames in this one's hands.
        self.cpus.sleep_until(self.cpus.now().get() as f64 + pause);
        Ok(())
    }

    fn pin(
        &self,
        range: IovaRange,
        access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        self.populate(range, access, frames)
    }

    fn unpin(&self, _pinned: &Unreached) {}
}
