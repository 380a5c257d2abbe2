//! Memory that is shared with a device whose addresses are those of memory: a virtio-iommu, which
//! translates for others.

use alloc::collections::BTreeMap;
use core::alloc::Layout;
use core::sync::atomic::{AtomicUsize, Ordering};

use portolan::addr::{PageSize, PhysAddr};
use portolan::dma::{Buffer, Direction};
use portolan::platform::Platform;
use spin::Mutex;

use crate::shared::{Lent, Sharing};

/// Memory that is shared now.
pub(super) struct Untranslated<P: Platform> {
    platform: P,
    rings: Mutex<BTreeMap<u64, Layout>>,
    buffers: AtomicUsize,
}

impl<P: Platform> Untranslated<P> {
    pub(super) fn new(platform: P) -> Self {
        Self { platform, rings: Mutex::default(), buffers: AtomicUsize::new(0) }
    }
}

impl<P: Platform> Sharing for Untranslated<P> {
    fn alloc(&self, pages: usize) -> Option<(u64, usize)> {
        let page = PageSize::SIZE_4K.bytes() as usize;
        let layout = Layout::from_size_align(pages.checked_mul(page)?, page).ok()?;
        let at = self.platform.alloc(layout)?;
        self.rings.lock().insert(at.get(), layout);
        // SAFETY: the platform has just allocated it.
        let seen = unsafe { self.platform.virt(at) };
        Some((at.get(), seen.as_ptr().expose_provenance()))
    }

    fn free(&self, at: u64) {
        let layout = self.rings.lock().remove(&at);
        if let Some(layout) = layout {
            // SAFETY: it was allocated with this layout, and the driver has stopped its device.
            unsafe { self.platform.free(PhysAddr::new(at), layout) }
        }
    }

    fn share(&self, buffer: Lent, _direction: Direction) -> Option<u64> {
        let pieces = buffer.pieces();
        let [piece] = pieces.as_slice() else {
            return None;
        };
        self.buffers.fetch_add(1, Ordering::Relaxed);
        Some(piece.start().get())
    }

    fn unshare(&self, _at: u64) -> Option<()> {
        self.buffers.fetch_sub(1, Ordering::Relaxed);
        Some(())
    }

    fn in_use(&self) -> (usize, usize) {
        let buffers = self.buffers.load(Ordering::Relaxed);
        (self.rings.lock().len(), buffers)
    }
}
