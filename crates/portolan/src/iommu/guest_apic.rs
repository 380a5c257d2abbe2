//! Backing page of a virtual interrupt controller: interrupts that devices raised for a virtual CPU, which the CPU
//! itself delivers.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.2.5.3; AMD64 Architecture
//! Programmer's Manual, volume 2, "Advanced Virtual Interrupt Controller" (backing page), and its chapter on the local
//! APIC (request register at 0x200). The unit sets the bit of an interrupt's vector, and then tells the CPU at which
//! the virtual one runs, or records it for one that sleeps.
//!
//! Not supported: all other registers of the page, which are the monitor's and the CPU's.
//!
//! *Context.* Interrupt, all methods: none waits.

use super::interrupt::Vector;
use super::posted::PendingInterrupts;
use crate::platform::atomic::{AtomicU32, Ordering};
use core::sync::atomic::AtomicU32 as Unread;

/// Words in front of the request register, and behind it.
const BELOW: usize = 0x200 / 4;
const ABOVE: usize = (0x1000 - 0x280) / 4;

/// Bits of 32 vectors; each such register has 16 bytes.
#[derive(Debug, Default)]
#[repr(C)]
struct ApicBits {
    bits: AtomicU32,
    unread: [Unread; 3],
}

/// Request register (IRR).
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct ApicRequests([ApicBits; 8]);

impl ApicRequests {
    pub(super) fn raise(&self, vector: Vector) {
        if let Some(part) = self.0.get(usize::from(vector.get()) / 32) {
            part.bits.fetch_or(1 << (vector.get() % 32), Ordering::Release);
        }
    }

    pub(super) fn take(&self) -> PendingInterrupts {
        let mut words = [0; 4];
        for (word, pair) in words.iter_mut().zip(self.0.chunks(2)) {
            for (part, shift) in pair.iter().zip([0, 32]) {
                // The unit sets bits meanwhile.
                *word |= u64::from(part.bits.swap(0, Ordering::Acquire)) << shift;
            }
        }
        PendingInterrupts::new(words)
    }
}

/// Backing page of a virtual CPU, in memory that the unit reaches.
///
/// A monitor has the unit post to it ([`RemapInterrupts::post`]). The CPU delivers what is pending when it enters the
/// guest. A monitor that delivers interrupts itself takes them.
///
/// ```
/// use portolan::iommu::{GuestApicPage, Vector};
/// let page = GuestApicPage::default();
/// page.raise(Vector::new(0x61).unwrap());
/// assert!(page.is_pending());
/// assert!(page.take().vectors().eq([0x61]));
/// ```
///
/// [`RemapInterrupts::post`]: super::RemapInterrupts::post
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct GuestApicPage {
    below: [Unread; BELOW],
    requests: ApicRequests,
    above: [Unread; ABOVE],
}

impl Default for GuestApicPage {
    fn default() -> Self {
        Self {
            below: core::array::from_fn(|_| Unread::new(0)),
            requests: ApicRequests::default(),
            above: core::array::from_fn(|_| Unread::new(0)),
        }
    }
}

impl GuestApicPage {
    /// Makes an interrupt pending: one of a virtual device, or one that the unit may have refused while its entry
    /// changed.
    pub fn raise(&self, vector: Vector) {
        self.requests.raise(vector);
    }

    /// Takes all that is pending.
    pub fn take(&self) -> PendingInterrupts {
        self.requests.take()
    }

    /// Tells if an interrupt is pending: looked at before the virtual CPU sleeps, after its interrupts were posted as
    /// those of one that sleeps.
    pub fn is_pending(&self) -> bool {
        self.requests.0.iter().any(|part| part.bits.load(Ordering::Relaxed) != 0)
    }
}

/// Number by which a monitor finds a virtual CPU that the unit names (GATag).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestTag(u32);

impl GuestTag {
    /// The tag of that number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}
