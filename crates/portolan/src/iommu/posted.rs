//! Posted-interrupt descriptor: interrupts that devices raised for a virtual CPU, which its monitor takes.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 9.11 (descriptor) and 5.2.3
//! (posting). The unit sets the bit of an interrupt's vector, and notifies a CPU unless a notification is outstanding
//! or suppressed.
//!
//! Not supported: descriptors of other architectures; interrupts of devices that are posted without an IOMMU.
//!
//! *Context.* Interrupt, all methods: none waits.

use super::interrupt::Vector;
use crate::platform::atomic::{AtomicU64, Ordering, fence};

/// Outstanding notification (ON), in word 4.
const ON: u64 = 1;
/// Suppression of notifications (SN), in word 4.
const SN: u64 = 1 << 1;
/// Lowest bit of the notification vector (NV) and destination (NDST), in word 4.
const NV: u32 = 16;
const NDST: u32 = 32;

/// Descriptor of a virtual CPU, in memory that the unit reaches.
///
/// A monitor has one for each virtual CPU, has the unit post to it ([`RemapInterrupts::post`]), and takes what is
/// pending before it enters the guest and at each notification.
///
/// ```
/// use portolan::iommu::{PostedDescriptor, Vector};
/// let descriptor = PostedDescriptor::default();
/// // Notified by vector 0xf2, at the CPU whose x2APIC identifier is 3.
/// descriptor.notify(Vector::new(0xf2).unwrap(), 3);
/// let pending = descriptor.take();
/// assert_eq!(pending.vectors().count(), 0);
/// ```
///
/// [`RemapInterrupts::post`]: super::RemapInterrupts::post
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PostedDescriptor {
    /// A bit for each vector (PIR).
    requests: [AtomicU64; 4],
    control: AtomicU64,
    reserved: [AtomicU64; 3],
}

/// Interrupts that were taken from a descriptor, a bit for each vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingInterrupts([u64; 4]);

impl PendingInterrupts {
    /// Those of these words.
    pub(super) const fn new(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// Their words, the lowest vectors first: for a virtual controller's request register.
    pub const fn words(self) -> [u64; 4] {
        self.0
    }

    /// Their vectors, the lowest first.
    pub fn vectors(self) -> impl Iterator<Item = u8> {
        let is_set = move |vector: &u8| {
            let word = self.0.get(usize::from(*vector) / 64).copied().unwrap_or(0);
            word >> (*vector % 64) & 1 != 0
        };
        (0..=u8::MAX).filter(is_set)
    }
}

impl PostedDescriptor {
    /// Sets the notification: the vector, and the CPU that gets it, as NDST has it: an x2APIC identifier, or an
    /// xAPIC identifier in bits 15:8. Called as the virtual CPU moves; what is pending stays.
    pub fn notify(&self, vector: Vector, destination: u32) {
        let wanted = u64::from(vector.get()) << NV | u64::from(destination) << NDST;
        self.change(|now| now & (ON | SN) | wanted);
    }

    /// Suppresses notifications, or ends that: while the virtual CPU does not run, and is looked at before it does.
    /// Urgent interrupts notify all the same. What came meanwhile is pending when this returns, and is taken
    /// ([`PostedDescriptor::take`]), as it notified no one.
    pub fn suppress(&self, suppressed: bool) {
        self.change(|now| if suppressed { now | SN } else { now & !SN });
        // A unit that found them suppressed has set its bit before, where `is_pending` finds it.
        fence(Ordering::SeqCst);
    }

    /// Takes all that is pending. An interrupt that is posted from now on notifies again.
    pub fn take(&self) -> PendingInterrupts {
        // First: one that comes between is taken below, or notifies.
        self.control.fetch_and(!ON, Ordering::AcqRel);
        PendingInterrupts([0, 1, 2, 3].map(|word: usize| match self.requests.get(word) {
            Some(requests) => requests.swap(0, Ordering::AcqRel),
            None => 0,
        }))
    }

    /// First word of the requests, and the control word: for a test that plays the unit.
    #[cfg(test)]
    pub fn words(&self) -> [&AtomicU64; 2] {
        let [first, ..] = &self.requests;
        [first, &self.control]
    }

    /// Tells if an interrupt is pending.
    pub fn is_pending(&self) -> bool {
        self.requests.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// The unit changes the word as well.
    fn change(&self, change: impl Fn(u64) -> u64) {
        let mut now = self.control.load(Ordering::Relaxed);
        // Each turn that fails is one in which the unit notified, which it does once until the next `take`.
        while let Err(found) =
            self.control.compare_exchange(now, change(now), Ordering::Relaxed, Ordering::Relaxed)
        {
            now = found;
        }
    }
}
