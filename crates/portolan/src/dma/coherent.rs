//! Memory that the CPU and a device share as long as it lives.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use super::constraints::{Coherency, Constraints};
use super::device::{Device, Translation};
use super::error::MapError;
use super::settings::Settings;
use super::trace::coherent;
use super::waiting::Outcome;
use crate::addr::{Iova, IovaRange, PageSize, PhysRange};
use crate::platform::TraceKind;
use crate::platform::contract::{HostVisibility, OwnedMemory, Platform, Wanted};
use crate::table::Access;

/// Memory for descriptor rings and the like, mapped for reading and writing.
///
/// ```no_run
/// # use core::sync::atomic::Ordering;
/// # use portolan::dma::{Coherent, Device, MapError};
/// # use portolan::platform::Platform;
/// /// A ring of 256 descriptors, all of them the driver's.
/// fn ring<P: Platform>(card: &Device<P>) -> Result<Coherent<P>, MapError> {
///     let ring = card.coherent(256 * 16)?;
///     ring.words()[0].store(1, Ordering::Release);
///     // ... ring.iova() goes into the card's register ...
///     Ok(ring)
/// }
/// ```
///
/// *Context.* Interrupt, but for [`Device::coherent`] and dropping it.
///
/// *Drop.* Task. It is unmapped, waited for under every policy, and freed; if the hardware does not
/// complete, the memory is never freed and [`Device::quarantine`] counts it.
pub struct Coherent<P: Platform> {
    settings: Arc<Settings<P>>,
    memory: OwnedMemory<P>,
    /// There if it is mapped in the device's space.
    range: Option<IovaRange>,
}

impl<P: Platform> Device<P> {
    /// Zeroed memory of at least `bytes` bytes, whole pages, that the device and the CPU share.
    /// It does not need to be synced: for a device that does not snoop it comes from
    /// [`Platform::alloc_uncached`], and for one that reaches shared memory alone from
    /// [`Platform::alloc_shared`].
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::NoMemory`] if the platform has none.
    pub fn coherent(&self, bytes: u64) -> Result<Coherent<P>, MapError> {
        let settings = self.settings.clone();
        let constraints = settings.constraints;
        let (space, page) = match (self.translation, &settings.space) {
            (Translation::Space(_), Some(space)) => (Some(space), space.granule()),
            (Translation::Identity(_), _) => (None, PageSize::SIZE_4K),
            (Translation::Blocked | Translation::Space(_), _) => return Err(MapError::Blocked),
        };
        let wanted = match (constraints.reach, constraints.coherency) {
            (HostVisibility::Shared, _) => Wanted::Shared,
            (HostVisibility::Private, Coherency::Coherent) => Wanted::Any,
            (HostVisibility::Private, Coherency::NotCoherent) => Wanted::Uncached,
        };
        let pages = bytes.div_ceil(page.bytes());
        if pages == 0 {
            return Err(MapError::Empty);
        }
        let memory = OwnedMemory::new(settings.platform.clone(), pages, page, wanted);
        let mut memory = memory.ok_or(MapError::NoMemory { bytes })?;
        let piece = memory.range();
        let Some(space) = space else {
            let limit = constraints.dma_mask;
            if piece.last().get() > limit.get() {
                return Err(MapError::AboveLimit { piece, limit });
            }
            let range = None;
            return Ok(Coherent::new(settings, memory, range));
        };
        // The memory fills its pages.
        let limits = Constraints {
            align: constraints.align.max(constraints.min_align_mask),
            min_align_mask: page,
            ..constraints
        };
        match space.place_one(piece, Access::READ_WRITE, &limits) {
            Ok((range, _)) => Ok(Coherent::new(settings.clone(), memory, Some(range))),
            Err(failed) => {
                if let Some(wait) = failed.held {
                    // A device may have reached it.
                    space.keep(&wait);
                    space.count_dropped(piece.len_minus_one().saturating_add(1));
                    memory.keep();
                }
                Err(failed.error)
            }
        }
    }
}

impl<P: Platform> Coherent<P> {
    fn new(settings: Arc<Settings<P>>, memory: OwnedMemory<P>, range: Option<IovaRange>) -> Self {
        let made = Self { settings, memory, range };
        made.trace(TraceKind::Alloc);
        made
    }

    #[inline]
    fn trace(&self, kind: TraceKind) {
        let Settings { platform, requester, .. } = &*self.settings;
        coherent(platform, kind, *requester, (self.iova(), self.memory()));
    }

    /// Address of the memory for the device.
    pub fn iova(&self) -> Iova {
        match self.range {
            Some(range) => range.start(),
            None => Iova::new(self.memory.range().start().get()),
        }
    }

    /// The memory as the CPU sees it: words that the device may change at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// The memory.
    pub fn memory(&self) -> PhysRange {
        self.memory.range()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.memory().len_minus_one().saturating_add(1)
    }
}

impl<P: Platform> Drop for Coherent<P> {
    fn drop(&mut self) {
        self.trace(TraceKind::Free);
        if let (Some(range), Some(space)) = (self.range.take(), &self.settings.space) {
            if let Err((_, left)) = space.take_down(range) {
                if let Outcome::Waits(wait) = left {
                    space.keep(&wait);
                }
                space.count_dropped(self.bytes());
                self.memory.keep();
            }
        }
    }
}
