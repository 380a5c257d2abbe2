//! The owner's memory: which frame each page is in, and which frames devices may still reach.

use crate::promise::promised;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::demand::{Frames, Pager, PopulateError, Unreached};
use portolan::platform::Clock as _;
use portolan::table::Access;
use portolan_sim::cpus::VirtualCpus;

pub(super) const PAGE: u64 = 4096;
/// The first address of the region.
pub(super) const BASE: u64 = 1 << 30;
/// Pages of the region.
pub(super) const PAGES: u64 = 2048;
/// First address of the frames.
const MEMORY: u64 = 1 << 40;
/// Frames of a block.
const BLOCK: u64 = 512;
/// One of so many pages cannot be populated.
const ABSENT: u64 = 97;

/// State of a frame. None is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Unused,
    /// Behind a page.
    Behind(u64),
    /// Being taken back from a page.
    Leaving(u64),
    Freed,
}

/// Use of each frame, and the frame of each page.
#[derive(Debug)]
struct FrameLedger {
    /// Frame of each page.
    pages: Vec<Option<u64>>,
    frames: Vec<Life>,
    rng: fastrand::Rng,
}

/// The owner.
#[derive(Debug)]
pub(super) struct FrameWorld {
    cpus: VirtualCpus,
    ledger: Mutex<FrameLedger>,
}

/// Memory that a device reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameReached {
    /// The page's memory.
    Own,
    /// Memory that is being taken back and is not quiet yet.
    Leaving,
    /// Anything else.
    Wrong,
}

/// Frames that are being taken back.
#[derive(Debug)]
pub(super) struct Taken(Vec<u64>);

impl FrameWorld {
    pub(super) fn new(cpus: VirtualCpus, seed: u64) -> Self {
        let ledger = FrameLedger {
            pages: vec![None; PAGES as usize],
            frames: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
        };
        Self { cpus, ledger: Mutex::new(ledger) }
    }

    fn ledger(&self) -> MutexGuard<'_, FrameLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells if `page` cannot be populated.
    pub(super) fn absent(page: u64) -> bool {
        page % ABSENT == ABSENT - 1
    }

    /// Takes pages out of the owner's tables: their frames are not given to devices any more.
    pub(super) fn take(&self, first: u64, pages: u64) -> Taken {
        let mut ledger = self.ledger();
        let mut taken = Vec::new();
        for page in first..(first + pages).min(PAGES) {
            if let Some(frame) = ledger.pages[page as usize].take() {
                ledger.frames[frame as usize] = Life::Leaving(page);
                taken.push(frame);
            }
        }
        Taken(taken)
    }

    /// Frees frames that were taken out: no device reaches them.
    pub(super) fn free(&self, taken: Taken) {
        let mut ledger = self.ledger();
        for frame in taken.0 {
            ledger.frames[frame as usize] = Life::Freed;
        }
    }

    /// Judges an access of a device that reached `pa` through `page`.
    pub(super) fn judge(&self, page: u64, pa: PhysAddr) -> FrameReached {
        let ledger = self.ledger();
        let frame = pa.get().checked_sub(MEMORY).map(|above| above / PAGE);
        let life = frame.and_then(|frame| ledger.frames.get(frame as usize));
        match life {
            Some(Life::Behind(behind)) if *behind == page => FrameReached::Own,
            Some(Life::Leaving(behind)) if *behind == page => FrameReached::Leaving,
            _ => FrameReached::Wrong,
        }
    }
}

impl FrameLedger {
    /// The frame of `page`; a new one if it has none.
    fn frame(&mut self, page: u64) -> u64 {
        if let Some(frame) = self.pages[page as usize] {
            return frame;
        }
        // Blocks begin aligned, so that they can be mapped as such.
        while page.is_multiple_of(BLOCK) && !(self.frames.len() as u64).is_multiple_of(BLOCK) {
            self.frames.push(Life::Unused);
        }
        let frame = self.frames.len() as u64;
        self.frames.push(Life::Behind(page));
        self.pages[page as usize] = Some(frame);
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
        let first = (range.start().get() - BASE) / PAGE;
        let last = (range.last().get() - BASE) / PAGE;
        let pause = {
            let mut ledger = self.ledger();
            for page in first..=last {
                if Self::absent(page) {
                    let iova = Iova::new(BASE + page * PAGE);
                    if page == first { return Err(PopulateError::Absent { iova }) } else { break }
                }
                let frame = ledger.frame(page);
                if frames.push(promised(PhysAddr::new(MEMORY + frame * PAGE), PAGE)).is_err() {
                    break;
                }
            }
            ledger.rng.f64() * 1500.0
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
