//! Memory for short buffers, which devices reach as long as they are there.
//!
//! A request of a driver has a header and a status of a few bytes beside its data. Each would be a mapping of
//! its own, and owe an invalidation; so they are copied here instead, where nothing has to be invalidated. They
//! may lie where the device does not reach them in one piece, such as over two pages of a stack. A device that
//! goes on with a slot after its request is done reads or changes later headers and statuses, which are those
//! of this memory's devices.
//!
//! *Context.* Interrupt, but for [`ShortSlots::new`] (task).

use core::sync::atomic::{AtomicU64, Ordering};

use portolan::dma::{Coherent, Device, MapError};
use portolan::platform::{Guarded, Platform};

/// Bytes of a slot: the longest header of a network card, or a list of four indirect descriptors.
pub(crate) const SHORT: usize = 64;
const WORDS: usize = SHORT / size_of::<u64>();

/// Slots that a word counts, and so many words.
const IN_A_WORD: usize = u64::BITS as usize;
const BITMAP: usize = 4;

/// Slots that are free, as bits that are set.
struct FreeSlots([u64; BITMAP]);

impl FreeSlots {
    fn take(&mut self) -> Option<usize> {
        let at = self.0.iter().position(|word| *word != 0)?;
        let word = self.0.get_mut(at)?;
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(at * IN_A_WORD + bit)
    }

    /// Frees the slot of that number; false if it was not taken.
    fn give(&mut self, slot: usize) -> bool {
        let Some(word) = self.0.get_mut(slot / IN_A_WORD) else {
            return false;
        };
        let bit = 1 << (slot % IN_A_WORD);
        let taken = *word & bit == 0;
        *word |= bit;
        taken
    }

    fn used(&self) -> usize {
        self.0.iter().map(|word| word.count_zeros() as usize).sum()
    }
}

/// The memory.
pub(crate) struct ShortSlots<P: Platform> {
    memory: Coherent<P>,
    free: Guarded<P, FreeSlots>,
}

impl<P: Platform> ShortSlots<P> {
    pub fn new(device: &Device<P>) -> Result<Self, MapError> {
        let memory = device.coherent((BITMAP * IN_A_WORD * SHORT) as u64)?;
        Ok(Self { memory, free: Guarded::new(FreeSlots([u64::MAX; BITMAP])) })
    }

    /// Copies `bytes` to a slot: its address for the device; `None` if there is none left.
    pub fn take(&self, bytes: &[u8; SHORT]) -> Option<u64> {
        let slot = self.free.with(FreeSlots::take)?;
        let (bytes, _) = bytes.as_chunks();
        for (word, bytes) in self.words(slot)?.iter().zip(bytes) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        Some(self.memory.iova().get() + (slot * SHORT) as u64)
    }

    /// Frees the slot at the address, and returns its bytes.
    pub fn give(&self, at: u64) -> Option<[u8; SHORT]> {
        let slot = self.slot(at)?;
        let mut bytes = [0; SHORT];
        let (chunks, _) = bytes.as_chunks_mut();
        for (word, bytes) in self.words(slot)?.iter().zip(chunks) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        self.free.with(|free| free.give(slot)).then_some(bytes)
    }

    /// Number of slots in use.
    pub fn used(&self) -> usize {
        self.free.with(|free| free.used())
    }

    fn slot(&self, at: u64) -> Option<usize> {
        let inside = at.checked_sub(self.memory.iova().get())?;
        let slot = usize::try_from(inside).ok()? / SHORT;
        (slot < BITMAP * IN_A_WORD && inside.is_multiple_of(SHORT as u64)).then_some(slot)
    }

    fn words(&self, slot: usize) -> Option<&[AtomicU64]> {
        self.memory.words().get(slot * WORDS..)?.get(..WORDS)
    }
}
