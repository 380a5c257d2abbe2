//! A queue whose hardware costs nothing: commands are built in memory, and all is complete at once.
//!
//! Arm IHI 0070 (SMMUv3) 4.4, commands of invalidation; 4.7.3, `CMD_SYNC`. Linux's side of the benchmarks
//! builds the same words in the same way (`proof/bench/linux-shim/driver.c`). Not supported: second stages.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use portolan::addr::InvalTag;
use portolan::inval::{Command, Depth, InvalidationQueue, Run, Step, TablesLeft};
use portolan::iommu::{IommuError, TagPool};

use crate::threads::{self, CPUS};

const ASID: u64 = 0x11;
const VA: u64 = 0x12;
const EVERYTHING: u64 = 0x30;
const SYNC: u64 = 0x46;
/// Commands that the ring has room for.
const ROOM: usize = 256;

/// The ring of a CPU.
#[derive(Debug)]
#[repr(align(64))]
struct Ring {
    written: AtomicUsize,
    words: [[AtomicU64; 2]; ROOM],
}

/// A ring for each CPU, so that no two write to one line: as Linux's side has them.
#[derive(Debug)]
pub(crate) struct Commands(Box<[Ring; CPUS]>);

impl Commands {
    pub(crate) fn new() -> Self {
        let ring = |_| Ring {
            written: AtomicUsize::new(0),
            words: [const { [const { AtomicU64::new(0) }; 2] }; ROOM],
        };
        Self(Box::new(core::array::from_fn(ring)))
    }

    /// Commands built so far by the calling CPU.
    #[cfg(test)]
    pub(crate) fn written(&self) -> usize {
        self.ring().written.load(Ordering::Relaxed)
    }

    #[inline]
    fn ring(&self) -> &Ring {
        &self.0[threads::cpu() as usize % CPUS]
    }

    /// Builds the command of `step`, if it has one.
    #[inline]
    pub(crate) fn build(&self, step: Step) {
        let command = match step {
            Step::Invalidate(command) => words(command),
            Step::Sync => [SYNC, 0],
            Step::FlushWriteBuffer => return,
        };
        self.ring().write(command);
    }
}

impl Ring {
    #[inline]
    fn write(&self, [first, second]: [u64; 2]) {
        let written = self.written.load(Ordering::Relaxed);
        let place = &self.words[written % ROOM];
        place[0].store(first, Ordering::Relaxed);
        place[1].store(second, Ordering::Relaxed);
        self.written.store(written + 1, Ordering::Relaxed);
    }
}

#[inline]
fn words(command: Command) -> [u64; 2] {
    let tag = |context: InvalTag| u64::from(context.get()) << 48;
    let leaf = |depth| u64::from(depth == Depth::LeafOnly);
    match command {
        Command::Page { context, iova, size, depth } => {
            // The level of the leaf in the architecture's own count, if no table left.
            let level = match depth {
                Depth::LeafOnly => 3 - u64::from((size.lg2() - 12) / 9),
                Depth::AllLevels => 0,
            };
            let second = leaf(depth) | level << 8 | 1 << 10 | iova.get();
            [VA | tag(context), second]
        }
        Command::Range { context, run, granule, depth } => {
            let (start, num, scale) = match run {
                Run::PowerOfTwo { start, lg2_pages } => (start, 1, lg2_pages),
                Run::NumScale { start, num, scale } => (start, num, scale),
            };
            let granule = u64::from((granule.lg2() - 10) / 2);
            let first = VA | u64::from(num - 1) << 12 | u64::from(scale) << 20 | tag(context);
            [first, leaf(depth) | granule << 10 | start.get()]
        }
        Command::Context { context } => [ASID | tag(context), 0],
        Command::Global | Command::Configuration { .. } => [EVERYTHING, 0],
    }
}

impl InvalidationQueue for Commands {
    type Error = IommuError;

    #[inline]
    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        for step in steps {
            self.build(step);
        }
        Ok(())
    }

    #[inline]
    fn pay_by(&self, command: Command, _: TablesLeft) -> Result<(), IommuError> {
        let ring = self.ring();
        ring.write(words(command));
        ring.write([SYNC, 0]);
        Ok(())
    }
}

impl TagPool for Commands {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}
