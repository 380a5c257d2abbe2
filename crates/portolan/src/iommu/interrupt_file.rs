//! Memory-resident interrupt file: interrupts that devices raised for a virtual hart, which its monitor takes.
//!
//! RISC-V Advanced Interrupt Architecture, version 1.0, chapter "IOMMU Support for MSIs to Virtual Machines", sections
//! on the format of a memory-resident interrupt file and on its use with atomic update. The unit sets the bit of an
//! interrupt's identity by an atomic operation, and then sends the notice, also for an interrupt that is not enabled.
//! Identity 0 and those that the monitor's guest does not have may be set by any device, and are never enabled.
//!
//! Not supported: units that update files without atomic operations, big-endian CPUs.
//!
//! *Context.* Interrupt, all methods: none waits.

use crate::platform::atomic::{AtomicU64, Ordering, fence};

/// Pairs of a file.
const PAIRS: usize = 32;

/// Number of an interrupt in a file, 1 to 2,047.
///
/// ```
/// use portolan::iommu::InterruptIdentity;
/// assert_eq!(InterruptIdentity::new(2047).map(|of| of.get()), Some(2047));
/// assert_eq!([0, 2048].map(InterruptIdentity::new), [None; 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterruptIdentity(u16);

impl InterruptIdentity {
    /// The identity of that number; `None` if files have none.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number as usize >= 64 * PAIRS { None } else { Some(Self(number)) }
    }

    /// Its number.
    pub const fn get(self) -> u16 {
        self.0
    }

    const fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// Bits of 64 interrupts.
#[derive(Debug, Default)]
#[repr(C)]
struct FilePair {
    pending: AtomicU64,
    enabled: AtomicU64,
}

/// File of a virtual hart, in memory that the unit reaches.
///
/// A monitor has the unit post to it ([`RemapInterrupts::post`]) while the hart has no interrupt file of the machine,
/// and takes what is pending at each notice. To give the hart one, it [retargets](super::RemapInterrupts::retarget)
/// the interrupts first and then takes all that is pending, so that none is lost.
///
/// ```
/// use portolan::iommu::{InterruptIdentity, MemoryInterruptFile};
/// let file = MemoryInterruptFile::default();
/// let [first, second] = [70, 71].map(|number| InterruptIdentity::new(number).unwrap());
/// // What was pending in the interrupt file of the machine; the first is enabled.
/// file.raise(first);
/// file.raise(second);
/// file.enable(first, true);
/// assert!(file.take().identities().eq([first]));
/// assert!(file.take_all().identities().eq([second]));
/// ```
///
/// [`RemapInterrupts::post`]: super::RemapInterrupts::post
#[derive(Debug, Default)]
#[repr(C, align(512))]
pub struct MemoryInterruptFile {
    pairs: [FilePair; PAIRS],
}

/// Interrupts that were taken from a file, a bit for each identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiledInterrupts([u64; PAIRS]);

impl FiledInterrupts {
    /// Their words, the lowest identities first: for the `eip` array of an interrupt file. Identity 0 is never set.
    pub const fn words(&self) -> &[u64; PAIRS] {
        &self.0
    }

    /// Their identities, the lowest first.
    pub fn identities(&self) -> impl Iterator<Item = InterruptIdentity> + '_ {
        let all = (0u16..).step_by(64).zip(&self.0);
        let set = all.flat_map(|(first, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| first + bit)
        });
        set.filter_map(InterruptIdentity::new)
    }
}

impl MemoryInterruptFile {
    fn pair(&self, identity: InterruptIdentity) -> Option<&FilePair> {
        self.pairs.get(usize::from(identity.get()) / 64)
    }

    /// Enables an interrupt or disables it. One that is enabled and came before is pending when this returns
    /// ([`MemoryInterruptFile::is_pending`]), or taken by a notice.
    pub fn enable(&self, identity: InterruptIdentity, enabled: bool) {
        let Some(pair) = self.pair(identity) else { return };
        match enabled {
            true => pair.enabled.fetch_or(identity.bit(), Ordering::Relaxed),
            false => pair.enabled.fetch_and(!identity.bit(), Ordering::Relaxed),
        };
        // The notice comes once all CPUs see the bit: `is_pending` finds it, or the `take` of the notice finds this.
        fence(Ordering::SeqCst);
    }

    /// Makes an interrupt pending: one that was in the interrupt file that this one replaces.
    pub fn raise(&self, identity: InterruptIdentity) {
        if let Some(pair) = self.pair(identity) {
            pair.pending.fetch_or(identity.bit(), Ordering::AcqRel);
        }
    }

    /// Takes the interrupts that are pending and enabled. Others stay pending.
    pub fn take(&self) -> FiledInterrupts {
        self.take_of(|pair| pair.enabled.load(Ordering::Relaxed))
    }

    /// Takes all interrupts that are pending, enabled or not: for the interrupt file that replaces this one.
    pub fn take_all(&self) -> FiledInterrupts {
        self.take_of(|_| u64::MAX)
    }

    fn take_of(&self, which: impl Fn(&FilePair) -> u64) -> FiledInterrupts {
        let mut taken = [0; PAIRS];
        for (word, pair) in taken.iter_mut().zip(&self.pairs) {
            let which = which(pair);
            // Most words have no interrupt.
            if pair.pending.load(Ordering::Relaxed) & which != 0 {
                // The unit sets bits meanwhile.
                *word = pair.pending.fetch_and(!which, Ordering::AcqRel) & which;
            }
        }
        if let Some(first) = taken.first_mut() {
            *first &= !1;
        }
        FiledInterrupts(taken)
    }

    /// Tells if an interrupt is pending and enabled.
    pub fn is_pending(&self) -> bool {
        self.pairs.iter().any(|pair| {
            let enabled = pair.enabled.load(Ordering::Relaxed);
            pair.pending.load(Ordering::Relaxed) & enabled != 0
        })
    }

    /// Words of the first pair: for a test that plays the unit.
    #[cfg(test)]
    pub fn words(&self) -> [&AtomicU64; 2] {
        let [first, ..] = &self.pairs;
        [&first.pending, &first.enabled]
    }
}
