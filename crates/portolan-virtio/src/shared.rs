//! Memory that drivers share with the devices of one address space, or with those that no IOMMU serves.
//!
//! *Context.* Atomic: unmapping waits for hardware. Rings and making it: task.

use core::ptr::NonNull;

use portolan::dma::{Coherent, Device, Direction, MapError, Mapping};
use portolan::platform::Platform;

use crate::address_table::AddressTable;
use crate::lent::{Lent, PAGE};
use crate::short_slots::{SHORT, ShortSlots};

/// Entries of tables for rings and for buffers that are there from the start.
const RINGS: usize = 16;
const BUFFERS: usize = 128;

/// Memory that is shared now, by its address for the devices.
pub(crate) struct Shares<P: Platform> {
    rings: AddressTable<P, Coherent<P>>,
    buffers: AddressTable<P, Mapping<P, Lent>>,
    short: Option<ShortSlots<P>>,
}

impl<P: Platform> Shares<P> {
    /// Nothing.
    pub fn new() -> Self {
        Self { rings: AddressTable::new(RINGS), buffers: AddressTable::new(BUFFERS), short: None }
    }

    /// Nothing, with memory for short buffers.
    pub fn with_short_slots(device: &Device<P>) -> Result<Self, MapError> {
        let short = Some(ShortSlots::new(device)?);
        Ok(Self { short, ..Self::new() })
    }

    /// Memory that is shared for good: its address for the device, and where the CPU sees it.
    pub fn alloc(&self, device: &Device<P>, pages: usize) -> Option<(u64, NonNull<u8>)> {
        let bytes = PAGE.checked_mul(pages as u64)?;
        let ring = device.coherent(bytes).ok()?;
        let (at, seen) = (ring.iova().get(), ring.view().cast());
        self.rings.insert(at, ring);
        Some((at, seen))
    }

    /// Takes it back.
    pub fn free(&self, at: u64) {
        // Dropped without the lock: it waits for hardware.
        let ring = self.rings.remove(at);
        drop(ring);
    }

    /// Copies a short buffer to memory that devices reach already: its address for them; `None` if there is no
    /// room.
    pub fn lend_slot(&self, bytes: &[u8; SHORT]) -> Option<u64> {
        self.short.as_ref()?.take(bytes)
    }

    /// Takes a short buffer's copy back: its bytes; `None` if the address is no copy's.
    pub fn take_slot(&self, at: u64) -> Option<[u8; SHORT]> {
        self.short.as_ref()?.give(at)
    }

    /// Shares a buffer: its address for the device.
    pub fn share(&self, device: &Device<P>, buffer: Lent, direction: Direction) -> Option<u64> {
        let mapping = device.map(buffer, direction).ok()?;
        let at = mapping.iova().get();
        // One stretch of addresses is all that a driver takes.
        let mut segments = mapping.segments();
        if segments.next().is_none() || segments.next().is_some() {
            drop(segments);
            let _ = mapping.unmap();
            return None;
        }
        drop(segments);
        self.buffers.insert(at, mapping);
        Some(at)
    }

    /// Takes it back; false if none is there, or a device may still reach it.
    pub fn unshare(&self, at: u64) -> bool {
        // A debt that the unit does not complete breaks the space, which blocks the devices.
        self.buffers.remove(at).is_some_and(|mapping| mapping.unmap().is_ok())
    }

    /// Has `work` done with the mapping of the buffer at `at`, if there is one.
    #[cfg(feature = "dma-api")]
    pub fn with(&self, at: u64, work: impl FnOnce(&mut Mapping<P, Lent>)) {
        self.buffers.with(at, work);
    }

    /// Number of rings, and of buffers.
    pub fn in_use(&self) -> (usize, usize) {
        let short = self.short.as_ref().map_or(0, ShortSlots::used);
        (self.rings.len(), self.buffers.len() + short)
    }
}
