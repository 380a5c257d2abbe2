//! Memory that the driver of one device shares with it.
//!
//! *Context.* Task: it takes heap memory, and unmapping waits for hardware.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Coherent, Device, Direction, Mapping, Pieces};
use portolan::platform::Platform;
use spin::Mutex;

/// Operations of the slot of a device, on any platform.
pub(crate) trait Sharing: Send + Sync {
    /// Memory that is shared for good: its address for the device, and where the CPU sees it.
    fn alloc(&self, pages: usize) -> Option<(u64, usize)>;

    /// Takes it back.
    fn free(&self, at: u64);

    /// Shares a buffer: its address for the device.
    fn share(&self, buffer: Lent, direction: Direction) -> Option<u64>;

    /// Takes it back; `None` if a device may still reach it.
    fn unshare(&self, at: u64) -> Option<()>;

    /// Amount of memory that is shared now: memory for good, and buffers.
    fn in_use(&self) -> (usize, usize);
}

/// Pages of the driver's memory.
const PAGE: u64 = 4096;

/// A buffer of a driver: pieces of memory that follow each other for the CPU.
pub(crate) struct Lent {
    pieces: Vec<PhysRange>,
}

impl Lent {
    /// The buffer of these pages' parts, of which neighbours become one piece.
    pub(crate) fn new(parts: impl Iterator<Item = Option<PhysRange>>) -> Option<Self> {
        let mut pieces: Vec<PhysRange> = Vec::new();
        for part in parts {
            let part = part?;
            match pieces.last_mut() {
                Some(last) if last.last().checked_add(1) == Some(part.start()) => {
                    *last = last.hull(part);
                }
                _ => pieces.push(part),
            }
        }
        Some(Self { pieces })
    }
}

/// The parts of `bytes` bytes from `start` that lie in one page each: their addresses and lengths.
fn parts(start: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
    let page = PAGE as usize;
    let mut at = start;
    let end = start.saturating_add(bytes);
    core::iter::from_fn(move || {
        let next = (at | (page - 1)).saturating_add(1).min(end);
        let part = (at, next.checked_sub(at)? as u64);
        at = next;
        (part.1 != 0).then_some(part)
    })
}

mod promise {
    //! Promises of `virtio-drivers` about the buffers that it shares.
    #![allow(unsafe_code)]

    use super::{Buffer, Lent, Pieces};

    // SAFETY: the caller of `Hal::share` keeps the buffer where it is, and lets no other code reach
    // it, until `Hal::unshare`. It is then that the value is dropped, or kept for good with its
    // mapping.
    unsafe impl Buffer for Lent {
        fn pieces(&self) -> Pieces<'_> {
            match self.pieces.as_slice() {
                [one] => Pieces::One(*one),
                list => Pieces::List(list),
            }
        }

        fn device_may_write(&self) -> bool {
            true
        }
    }
}

/// A device, and the memory that is shared with it, by the address that it has there.
pub(crate) struct Shares<P: Platform> {
    device: Arc<Device<P>>,
    rings: Mutex<BTreeMap<u64, Coherent<P>>>,
    buffers: Mutex<BTreeMap<u64, Mapping<P, Lent>>>,
}

impl<P: Platform> Shares<P> {
    pub(crate) fn new(device: Arc<Device<P>>) -> Self {
        Self { device, rings: Mutex::default(), buffers: Mutex::default() }
    }

    /// The device.
    #[cfg(feature = "dma-api")]
    pub(crate) fn device(&self) -> &Device<P> {
        &self.device
    }

    /// Has `work` done with the mapping of the buffer at `at`, if there is one.
    #[cfg(feature = "dma-api")]
    pub(crate) fn with(&self, at: u64, work: impl FnOnce(&mut Mapping<P, Lent>)) {
        if let Some(mapping) = self.buffers.lock().get_mut(&at) {
            work(mapping);
        }
    }
}

impl<P: Platform> Sharing for Shares<P> {
    fn alloc(&self, pages: usize) -> Option<(u64, usize)> {
        let bytes = PAGE.checked_mul(pages as u64)?;
        let ring = self.device.coherent(bytes).ok()?;
        let (at, seen) = (ring.iova().get(), ring.words().as_ptr().expose_provenance());
        self.rings.lock().insert(at, ring);
        Some((at, seen))
    }

    fn free(&self, at: u64) {
        // Dropped without the lock: it waits for hardware.
        let ring = self.rings.lock().remove(&at);
        drop(ring);
    }

    fn share(&self, buffer: Lent, direction: Direction) -> Option<u64> {
        let mapping = self.device.map(buffer, direction).ok()?;
        let at = mapping.iova().get();
        // One stretch of addresses is all that a driver takes.
        let mut segments = mapping.segments();
        if segments.next().is_none() || segments.next().is_some() {
            let _ = mapping.unmap();
            return None;
        }
        self.buffers.lock().insert(at, mapping);
        Some(at)
    }

    fn unshare(&self, at: u64) -> Option<()> {
        let mapping = self.buffers.lock().remove(&at)?;
        // A debt that the unit does not complete breaks the space, which blocks the device.
        mapping.unmap().is_ok().then_some(())
    }

    fn in_use(&self) -> (usize, usize) {
        (self.rings.lock().len(), self.buffers.lock().len())
    }
}

/// The buffer that the CPU sees at `start`; `phys` says where its pages are, one by one.
pub(crate) fn lend(
    phys: impl Fn(NonNull<u8>) -> Option<PhysAddr>,
    start: NonNull<u8>,
    bytes: usize,
) -> Option<Lent> {
    let parts = parts(start.addr().get(), bytes);
    Lent::new(parts.map(|(at, bytes)| {
        let at = phys(start.with_addr(at.try_into().ok()?))?;
        PhysRange::from_len(at, bytes)
    }))
}

/// The granule that a shared page needs.
pub(crate) const GRANULE: PageSize = PageSize::SIZE_4K;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_cut_at_pages() {
        let of = |start, bytes| parts(start, bytes).collect::<Vec<_>>();
        assert_eq!(of(0x1ff8, 16), [(0x1ff8, 8), (0x2000, 8)]);
        assert_eq!(of(0x1000, 0x1000), [(0x1000, 0x1000)]);
        assert_eq!(of(0x1001, 0x1000), [(0x1001, 0xfff), (0x2000, 1)]);
        assert_eq!(of(0x1001, 0), []);
        assert_eq!(of(usize::MAX - 1, 8), [(usize::MAX - 1, 1)]);
    }

    #[test]
    fn pages_that_follow_each_other_are_one_piece() {
        let range = |start, bytes| PhysRange::from_len(PhysAddr::new(start), bytes);
        let lent = |parts: &[Option<PhysRange>]| {
            let lent = Lent::new(parts.iter().copied())?;
            Some(lent.pieces().into_iter().collect::<Vec<_>>())
        };
        let together = [range(0x1ff8, 8), range(0x2000, 0x1000), range(0x3000, 4)];
        assert_eq!(lent(&together), range(0x1ff8, 0x100c).map(|all| alloc::vec![all]));
        let apart = [range(0x1ff8, 8), range(0x9000, 0x1000), range(0x8000, 4)];
        assert_eq!(lent(&apart).map(|pieces| pieces.len()), Some(3));
        assert_eq!(lent(&[range(0x1ff8, 8), None]), None);
    }
}
