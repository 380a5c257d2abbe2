//! Memory that the CPU and a device share as long as it lives: descriptor rings, status blocks.
//!
//! Both see at once what the other has written, and nothing is synced. It is data of one type, made of atomics
//! ([`SharedData`]), or 64-bit words; [`Coherent::view`] is the way to any other.

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use super::device::{Device, DeviceTranslation};
use super::error::MapError;
use super::flush_queue::UnmapOutcome;
use super::policy::{Coherency, Constraints, MayBlock};
use super::reach::DeviceContext;
use super::space::{Placement, UnmapPaid};
use super::trace::coherent;
use crate::addr::{Iova, IovaRange, PageSize, PhysRange};
use crate::platform::TraceKind;
use crate::platform::contract::{HostVisibility, OwnedMemory, Platform, SharedData, Wanted};
use crate::table::Access;

/// Memory for descriptor rings and the like, mapped for reading and writing: items of a type `T`.
///
/// ```no_run
/// # use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
/// # use portolan::dma::{Coherent, Device, MapError, SharedData};
/// # use portolan::platform::Platform;
/// #[repr(C)]
/// struct Descriptor {
///     address: AtomicU64,
///     bytes: AtomicU32,
///     flags: AtomicU16,
///     status: AtomicU16,
/// }
/// // SAFETY: its fields are atomics.
/// unsafe impl SharedData for Descriptor {}
///
/// /// A ring of 256 descriptors, all of them the driver's.
/// fn ring<P: Platform>(card: &Device<P>) -> Result<Coherent<P, Descriptor>, MapError> {
///     let ring = card.coherent_of::<Descriptor>(256)?;
///     for descriptor in ring.items() {
///         descriptor.flags.store(1, Ordering::Relaxed);
///     }
///     // ... ring.iova() goes into the card's register ...
///     Ok(ring)
/// }
/// ```
///
/// *Context.* Interrupt, but for making and dropping it.
///
/// *Drop.* Task. It is unmapped, waited for under every policy, and freed; if the hardware does not
/// complete, the memory is never freed and [`Device::quarantine`] counts it.
pub struct Coherent<P: Platform, T: SharedData = AtomicU64> {
    context: Arc<DeviceContext<P>>,
    memory: OwnedMemory<P>,
    /// There if it is mapped in the device's space.
    range: Option<IovaRange>,
    /// Number of items.
    count: usize,
    items: PhantomData<fn() -> T>,
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
    /// See [`MapError`]; [`MapError::NoMemory`], [`MapError::NoUncached`] and [`MapError::NoShared`] if the platform
    /// has none of the kind.
    pub fn coherent(&self, bytes: u64) -> Result<Coherent<P>, MapError> {
        let (memory, range) = self.shared_memory(bytes)?;
        let count = memory.items::<AtomicU64>().len();
        Ok(Coherent::new(self.own_context(), memory, range, count))
    }

    /// The same for `count` items of a type, all zeros.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Device::coherent`]; [`MapError::TooLong`] for more than there can be, and for a type that is aligned to
    /// more than 4 KiB.
    pub fn coherent_of<T: SharedData>(&self, count: usize) -> Result<Coherent<P, T>, MapError> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|_| align_of::<T>() <= PAGE);
        let (memory, range) = self.shared_memory(bytes.ok_or(MapError::TooLong)? as u64)?;
        Ok(Coherent::new(self.own_context(), memory, range, count))
    }

    /// Memory that both reach, and its addresses if it is mapped in a space.
    fn shared_memory(&self, bytes: u64) -> Result<(OwnedMemory<P>, Option<IovaRange>), MapError> {
        let context = &**self.context();
        let constraints = context.constraints;
        let (space, page) = match (self.translation, &context.space) {
            (DeviceTranslation::Space(_), Some(space)) => (Some(space), space.granule()),
            (DeviceTranslation::Identity(_), _) => (None, PageSize::SIZE_4K),
            (DeviceTranslation::Blocked | DeviceTranslation::Space(_), _) => {
                return Err(MapError::Blocked);
            }
        };
        let mut memory = owned(context, bytes, page)?;
        let piece = memory.range();
        let Some(space) = space else {
            let limit = constraints.dma_mask;
            return match piece.last().get() > limit.get() {
                true => Err(MapError::AboveLimit { piece, limit }),
                false => Ok((memory, None)),
            };
        };
        // The memory fills its pages.
        let limits = Constraints {
            align: constraints.align.max(constraints.min_align_mask),
            min_align_mask: page,
            ..constraints
        };
        let access = Access::READ_WRITE;
        let wanted = Placement { access, constraints: &limits, at: None, may_block: MayBlock::Yes };
        match space.place(core::slice::from_ref(&piece), &wanted) {
            Ok(range) => Ok((memory, Some(range))),
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

/// Alignment that all memory has.
const PAGE: usize = 4096;

/// Whole pages of at least `bytes` bytes, of the kind that the device shares with the CPU.
fn owned<P: Platform>(
    context: &DeviceContext<P>,
    bytes: u64,
    page: PageSize,
) -> Result<OwnedMemory<P>, MapError> {
    let constraints = &context.constraints;
    let (wanted, none) = match (context.reach()?, constraints.coherency) {
        (HostVisibility::Shared, _) => (Wanted::Shared, MapError::NoShared { bytes }),
        (HostVisibility::Private, Coherency::Coherent) => {
            (Wanted::Any, MapError::NoMemory { bytes })
        }
        (HostVisibility::Private, Coherency::NotCoherent) => {
            (Wanted::Uncached, MapError::NoUncached { bytes })
        }
    };
    match bytes.div_ceil(page.bytes()) {
        0 => Err(MapError::Empty),
        pages => OwnedMemory::new(context.platform.clone(), pages, page, wanted).ok_or(none),
    }
}

impl<P: Platform, T: SharedData> Coherent<P, T> {
    fn new(
        context: Arc<DeviceContext<P>>,
        memory: OwnedMemory<P>,
        range: Option<IovaRange>,
        count: usize,
    ) -> Self {
        let made = Self { context, memory, range, count, items: PhantomData };
        made.trace(TraceKind::Alloc);
        made
    }

    #[inline]
    fn trace(&self, kind: TraceKind) {
        let DeviceContext { platform, requester, .. } = &*self.context;
        coherent(platform, kind, *requester, self.iova(), self.memory());
    }

    /// Address of the memory for the device.
    pub fn iova(&self) -> Iova {
        match self.range {
            Some(range) => range.start(),
            None => Iova::new(self.memory.range().start().get()),
        }
    }

    /// Address of an item for the device, if there is one of that number.
    pub fn iova_of(&self, number: usize) -> Option<Iova> {
        let offset = number.checked_mul(size_of::<T>()).filter(|_| number < self.count)?;
        self.iova().checked_add(offset as u64)
    }

    /// The items, which the device may change at any time.
    #[inline]
    pub fn items(&self) -> &[T] {
        let items = self.memory.items();
        items.get(..self.count).unwrap_or(items)
    }

    /// All bytes as the CPU sees them, valid for reads and writes as long as the value lives: for accesses of other
    /// kinds, by code that answers for them. The device may change them at any time.
    pub fn view(&self) -> NonNull<[u8]> {
        self.memory.view()
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

impl<P: Platform> Coherent<P> {
    /// The memory as the CPU sees it: words that the device may change at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.items()
    }
}

impl<P: Platform, T: SharedData> fmt::Debug for Coherent<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Coherent");
        shown.field("iova", &self.iova()).field("memory", &self.memory()).finish_non_exhaustive()
    }
}

impl<P: Platform, T: SharedData> Drop for Coherent<P, T> {
    fn drop(&mut self) {
        self.trace(TraceKind::Free);
        if let (Some(range), Some(space)) = (self.range.take(), &self.context.space) {
            if let Err((_, left)) = space.unmap(range, UnmapPaid::Alone) {
                if let UnmapOutcome::Waits(wait) = left {
                    space.keep(&wait);
                }
                space.count_dropped(self.bytes());
                self.memory.keep();
            }
        }
    }
}
