//! Memory that stays mapped, in slots that go to and fro between the CPU and a device.
//!
//! A network card's receive pool, a block layer's pool: one mapping for all of it. While a slot moves nothing is
//! mapped, unmapped, invalidated or allocated, and nothing is copied unless the mapping is. A device that does
//! not snoop costs the maintenance of the lines that are used.
//!
//! The device reaches all slots at all times, also those that the CPU has: so it has to be trusted to keep to
//! those that it was given, or be one that reaches copies only.
//!
//! Not supported: [shared](super::Sharing::Shared) memory, whose bytes are never lent; slots of several segments.

mod cut;

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use spin::Once;

use super::error::{BufferPoolError, Failed};
use super::mapping::Mapping;
use super::policy::Direction;
use super::reach::{BufferBytes, DeviceContext, Stretch};
use crate::addr::Iova;
use crate::platform::atomic::{AtomicUsize, Ordering, fence};
use crate::platform::contract::{Buffer, KeepsBuffer, OwnedSlot, Slotted};
use crate::platform::{Cpus, Guarded, Item, LeftBehind};
use cut::SlotPlace;

/// A mapping in slots of one length, each of which either the CPU or the device has.
///
/// [`BufferPool::take`] gives a slot to the CPU, whose bytes it lends; [`CpuSlot::post`] hands it to the device,
/// and [`DeviceSlot::take_back`] takes it back. Each moves a value, so that no slot is in two hands, and knows its
/// pool, so that it returns to no other. From any number of threads; a pool for each queue of a device keeps them
/// out of each other's way.
///
/// ```no_run
/// # use portolan::dma::{Buffer, BufferPool, Device, DeviceSlot, Direction};
/// # use portolan::platform::Platform;
/// /// A card's receive ring: a slot for each descriptor.
/// fn fill<P: Platform, B: Buffer>(card: &Device<P>, memory: B) -> Option<(BufferPool<P, B>, Vec<DeviceSlot<P, B>>)> {
///     let mapping = card.map(memory, Direction::FromDevice).ok()?;
///     let pool = BufferPool::new(mapping, 2048).ok()?;
///     let posted = (0..256).map_while(|_| Some(pool.take()?.post())).collect();
///     Some((pool, posted))
/// }
/// /// The handler: the card has written so many bytes.
/// fn received<P: Platform, B: Buffer>(slot: DeviceSlot<P, B>, bytes: usize) -> DeviceSlot<P, B> {
///     let packet = slot.take_back_first(bytes);
///     // ... packet[..bytes] ...
///     packet.post()
/// }
/// ```
///
/// *Context.* Interrupt, but for making and ending one.
///
/// *Drop.* Task. Slots that are out stay valid, and the last of them drops the mapping, in a task
/// ([`Cpus::drop_later`]).
pub struct BufferPool<P: Cpus + Clone, B: Buffer> {
    /// There until it ends.
    slots: Option<Arc<PoolSlots<P, B>>>,
}

type PoolSlots<P, B> = Slotted<PoolKeeper<P, B>>;

/// The mapping of a pool.
struct PoolKeeper<P: Cpus + Clone, B: Buffer> {
    /// Under a lock since a buffer is one CPU's at a time. It is taken for nothing but to make and to end the pool.
    mapping: Guarded<P, Mapping<P, B>>,
    context: Arc<DeviceContext<P>>,
    direction: Direction,
    bytes: BufferBytes,
    places: Box<[SlotPlace]>,
    lost: AtomicUsize,
    /// Itself, once there is no pool: its memory stays when the last slot is gone.
    me: Once<Weak<PoolSlots<P, B>>>,
    /// Box in which it is handed on then.
    parcel: Guarded<P, Option<Box<PoolParcel<P, B>>>>,
}

/// A pool that is not used any more, on its way to a task that drops it.
struct PoolParcel<P: Cpus + Clone, B: Buffer> {
    slots: Option<PoolSlots<P, B>>,
    next: Option<LeftBehind>,
}

impl<P: Cpus + Clone, B: Buffer> Item for PoolParcel<P, B> {
    fn next(&mut self) -> &mut Option<LeftBehind> {
        &mut self.next
    }
}

impl<P: Cpus + Clone, B: Buffer> KeepsBuffer for PoolKeeper<P, B> {
    fn view(&self) -> Option<NonNull<[u8]>> {
        self.mapping.with(|mapping| mapping.buffer().view())
    }
}

/// Message for a value that is there until it is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<P: Cpus + Clone, B: Buffer> BufferPool<P, B> {
    /// Cuts `mapping` into slots of `bytes` bytes; a rest that is shorter is not used.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// With the mapping; see [`BufferPoolError`].
    pub fn new(
        mapping: Mapping<P, B>,
        bytes: usize,
    ) -> Result<Self, Failed<Mapping<P, B>, BufferPoolError>> {
        let (places, free) = match cut::places(&mapping, bytes) {
            Ok(cut) => cut,
            Err(error) => return Err(Failed { error, value: mapping }),
        };
        let keeper = PoolKeeper {
            context: mapping.reach().context.clone(),
            direction: mapping.direction(),
            bytes: BufferBytes::of(mapping.buffer()),
            places,
            lost: AtomicUsize::new(0),
            me: Once::new(),
            parcel: Guarded::new(Some(Box::new(PoolParcel { slots: None, next: None }))),
            mapping: Guarded::new(mapping),
        };
        Ok(Self { slots: Some(Slotted::new(keeper, bytes, free)) })
    }

    fn slots(&self) -> &Arc<PoolSlots<P, B>> {
        self.slots.as_ref().expect(PRESENT)
    }

    /// A slot that is free, if there is one. It holds what its last owner has left there.
    #[inline]
    pub fn take(&self) -> Option<CpuSlot<P, B>> {
        let owned = Some(self.slots().take()?);
        Some(CpuSlot { owned })
    }

    /// Number of slots, whether they are free, out or lost.
    pub fn slot_count(&self) -> usize {
        self.slots().keeper().places.len()
    }

    /// Length of a slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slots().bytes()
    }

    /// Number of slots that were dropped while the device had them: they are out of use as long as the pool is
    /// there.
    pub fn lost(&self) -> usize {
        self.slots().keeper().lost.load(Ordering::Relaxed)
    }

    /// Ends the pool, and gives its mapping back. The device has to be done, as for [`Mapping::unmap`].
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// With the pool, as long as slots are out: [`BufferPoolError::InUse`].
    pub fn into_mapping(mut self) -> Result<Mapping<P, B>, Failed<Self, BufferPoolError>> {
        let slots = self.slots.take().expect(PRESENT);
        match Arc::try_unwrap(slots) {
            Ok(slots) => Ok(slots.into_keeper().mapping.into_inner()),
            Err(slots) => {
                let error = BufferPoolError::InUse { slots: Arc::strong_count(&slots) - 1 };
                self.slots = Some(slots);
                Err(Failed { error, value: self })
            }
        }
    }
}

impl<P: Cpus + Clone, B: Buffer> PoolKeeper<P, B> {
    /// The first `bytes` bytes of slot `number`.
    #[inline]
    fn stretch(&self, number: usize, bytes: usize) -> Option<Stretch> {
        let last = (bytes as u64).checked_sub(1)?;
        self.places.get(number)?.stretch.part(0, last)
    }

    /// Hands the first `bytes` bytes of a slot to the device.
    #[inline]
    fn hand_on(&self, number: usize, bytes: usize) {
        if let Some(stretch) = self.stretch(number, bytes) {
            if self.direction != Direction::FromDevice {
                self.context.copy_in_stretch(stretch, self.bytes);
            }
            self.context.clean_stretch(stretch, self.bytes);
        }
        // What the CPU wrote is there before the device is told by a register.
        fence(Ordering::Release);
    }

    /// Brings the first `bytes` bytes of a slot to the CPU.
    #[inline]
    fn take_in(&self, number: usize, bytes: usize) {
        // Bytes are read after the word by which the device says that it has written them.
        fence(Ordering::Acquire);
        if self.direction.device_writes() {
            if let Some(stretch) = self.stretch(number, bytes) {
                self.context.take_in_stretch(stretch, self.bytes);
            }
        }
    }
}

/// Hands a pool on that no slot is of any more, nor any other code.
#[cold]
fn drop_later<P: Cpus + Clone, B: Buffer>(slots: PoolSlots<P, B>) {
    let keeper = slots.keeper();
    let platform = keeper.context.platform.clone();
    let parcel = keeper.parcel.with(Option::take);
    if let Some(mut parcel) = parcel {
        parcel.slots = Some(slots);
        platform.drop_later(LeftBehind::new(parcel));
    }
}

impl<P: Cpus + Clone, B: Buffer> fmt::Debug for BufferPool<P, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone, B: Buffer> Drop for BufferPool<P, B> {
    fn drop(&mut self) {
        if let Some(slots) = self.slots.take() {
            // A handler may drop the last slot from here on.
            slots.keeper().me.call_once(|| Arc::downgrade(&slots));
        }
    }
}

/// A slot of a [`BufferPool`] that the CPU has: its bytes.
///
/// *Context.* Interrupt.
///
/// *Drop.* Interrupt. It is free again.
#[must_use = "a slot that is dropped is free again"]
pub struct CpuSlot<P: Cpus + Clone, B: Buffer> {
    /// There until it is consumed.
    owned: Option<OwnedSlot<PoolKeeper<P, B>>>,
}

impl<P: Cpus + Clone, B: Buffer> CpuSlot<P, B> {
    fn owned(&self) -> &OwnedSlot<PoolKeeper<P, B>> {
        self.owned.as_ref().expect(PRESENT)
    }

    /// Hands all of the slot to the device.
    #[inline]
    pub fn post(self) -> DeviceSlot<P, B> {
        self.post_first(usize::MAX)
    }

    /// Hands its first `bytes` bytes to the device, which must not write behind them: a packet to send, or a
    /// packet's longest length. All of it, if it is shorter.
    #[inline]
    pub fn post_first(mut self, bytes: usize) -> DeviceSlot<P, B> {
        let owned = self.owned.take().expect(PRESENT);
        let bytes = bytes.min(owned.slots().bytes());
        owned.slots().keeper().hand_on(owned.number(), bytes);
        DeviceSlot { owned: Some(owned), bytes }
    }
}

impl<P: Cpus + Clone, B: Buffer> Deref for CpuSlot<P, B> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.owned().as_slice()
    }
}

impl<P: Cpus + Clone, B: Buffer> DerefMut for CpuSlot<P, B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.owned.as_mut().expect(PRESENT).as_mut_slice()
    }
}

impl<P: Cpus + Clone, B: Buffer> fmt::Debug for CpuSlot<P, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuSlot").field("number", &self.owned().number()).finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone, B: Buffer> Drop for CpuSlot<P, B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(last) = self.owned.take().and_then(OwnedSlot::give) {
            drop_later(last);
        }
    }
}

/// A slot of a [`BufferPool`] that the device has: its address.
///
/// *Context.* Interrupt.
///
/// *Drop.* Interrupt. The device may be using it: it stays out of use until the pool has ended, and
/// [`BufferPool::lost`] counts it.
#[must_use = "a slot that is dropped is lost to its pool"]
pub struct DeviceSlot<P: Cpus + Clone, B: Buffer> {
    /// There until it is consumed.
    owned: Option<OwnedSlot<PoolKeeper<P, B>>>,
    bytes: usize,
}

impl<P: Cpus + Clone, B: Buffer> DeviceSlot<P, B> {
    fn owned(&self) -> &OwnedSlot<PoolKeeper<P, B>> {
        self.owned.as_ref().expect(PRESENT)
    }

    /// Address of its first byte for the device. All of it is one segment.
    #[inline]
    pub fn iova(&self) -> Iova {
        let owned = self.owned();
        let place = owned.slots().keeper().places.get(owned.number());
        // There is a place for each number.
        place.map_or(Iova::new(0), |place| place.iova)
    }

    /// Number of bytes that it has been handed.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the slot back, with all bytes that the device was handed. The device is done with it.
    #[inline]
    pub fn take_back(self) -> CpuSlot<P, B> {
        let bytes = self.bytes;
        self.take_back_first(bytes)
    }

    /// The same of its first `bytes` bytes: all that the device says to have written. Of the others the CPU may
    /// see older ones. More than it was handed are as many as it was handed.
    #[inline]
    pub fn take_back_first(mut self, bytes: usize) -> CpuSlot<P, B> {
        let owned = self.owned.take().expect(PRESENT);
        owned.slots().keeper().take_in(owned.number(), bytes.min(self.bytes));
        CpuSlot { owned: Some(owned) }
    }
}

impl<P: Cpus + Clone, B: Buffer> fmt::Debug for DeviceSlot<P, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DeviceSlot");
        shown.field("iova", &self.iova()).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone, B: Buffer> Drop for DeviceSlot<P, B> {
    fn drop(&mut self) {
        let Some(owned) = self.owned.take() else {
            return;
        };
        owned.slots().keeper().lost.fetch_add(1, Ordering::Relaxed);
        if let Some(last) = owned.lose() {
            drop_later(last);
        }
    }
}
