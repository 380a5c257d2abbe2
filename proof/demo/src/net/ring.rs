//! A queue of a virtio device whose buffers are slots of a pool.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 2.7 (split virtqueues) and 3.1 (initialisation). Not supported: chains of
//! descriptors, event indices.

use core::array;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use portolan::addr::{Iova, PhysRange};
use portolan::dma::{
    BufferPool, Coherent, CpuSlot, Device, DeviceSlot, Direction, Mapping, SharedData,
};
use portolan::platform::{Nanos, poll};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Pages};
use portolan_virtio::{AccessPlatform, SpaceHal};
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::{DeviceStatus, Transport};

use crate::Outcome;
use crate::virtio::{self, Disks};

/// Descriptors of a queue.
pub const ENTRIES: usize = 16;
/// Bytes of a slot, which hold the longest packet with its header.
const SLOT_BYTES: usize = 2048;
/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;
/// `VIRTQ_DESC_F_WRITE`: the device writes.
pub const WRITES: u16 = 2;
/// A reset takes no longer.
const LIMIT: Nanos = Nanos::from_millis(1000);

/// `struct virtq_desc`.
#[repr(C)]
pub struct Descriptor {
    pub address: AtomicU64,
    pub bytes: AtomicU32,
    pub flags: AtomicU16,
    pub next: AtomicU16,
}

/// `struct virtq_avail`.
#[repr(C)]
pub struct Available {
    pub flags: AtomicU16,
    pub index: AtomicU16,
    pub ring: [AtomicU16; ENTRIES],
}

/// `struct virtq_used_elem`.
#[repr(C)]
pub struct UsedEntry {
    pub id: AtomicU32,
    pub bytes: AtomicU32,
}

/// `struct virtq_used`.
#[repr(C)]
pub struct Used {
    pub flags: AtomicU16,
    pub index: AtomicU16,
    pub ring: [UsedEntry; ENTRIES],
}

/// The parts of a queue that its device reads and writes.
#[repr(C)]
pub struct Parts {
    pub descriptors: [Descriptor; ENTRIES],
    pub available: Available,
    pub used: Used,
}

// SAFETY: its fields are atomics, and structs and arrays of those.
unsafe impl SharedData for Parts {}

type Slot = DeviceSlot<Machine, Pages>;
/// A slot that the kernel has.
pub type KernelSlot = CpuSlot<Machine, Pages>;

/// Starts a virtio device with one queue, whose [`Parts`] it sees at `parts`.
pub fn start(
    machine: Machine,
    function: &Function,
    device: &Device<Machine>,
    number: u16,
    parts: Iova,
) -> Outcome<AccessPlatform<PciTransport>> {
    function.start();
    let transport = virtio::transport::<SpaceHal<Disks>>(machine, function.at());
    let transport = transport.ok_or("the device is no virtio device")?;
    let mut transport = AccessPlatform::new(transport, device)?;
    transport.set_status(DeviceStatus::empty());
    let reset = || transport.get_status().is_empty().then_some(());
    poll(&machine, LIMIT, reset).map_err(|_| "the device is stuck")?;
    let known = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
    transport.set_status(known);
    transport.write_driver_features(VERSION_1);
    transport.set_status(known | DeviceStatus::FEATURES_OK);
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        return Err("the device does not take the features that it has".into());
    }
    let at = parts.get();
    let [available, used] =
        [core::mem::offset_of!(Parts, available), core::mem::offset_of!(Parts, used)];
    let [available, used] = [at + available as u64, at + used as u64];
    transport.queue_set(number, ENTRIES as u32, at, available, used);
    transport.finish_init();
    Ok(transport)
}

/// A queue, the pool of its buffers, and the slots that the device has, by descriptor.
pub struct PoolQueue {
    // Dropped first, which resets the device.
    transport: AccessPlatform<PciTransport>,
    number: u16,
    direction: Direction,
    parts: Coherent<Machine, Parts>,
    pool: BufferPool<Machine, Pages>,
    memory: PhysRange,
    posted: [Option<Slot>; ENTRIES],
    /// Buffers that the device was given, and has returned.
    given: u16,
    returned: u16,
}

impl PoolQueue {
    /// Starts the device with one queue, whose buffers are slots of `pages`, which are mapped here and stay so.
    pub fn start(
        machine: Machine,
        function: &Function,
        device: &Device<Machine>,
        pages: Pages,
        (number, direction): (u16, Direction),
    ) -> Outcome<Self> {
        let memory = pages.memory();
        let parts = device.coherent_of::<Parts>(1)?;
        let mapping = device.map(pages, direction).map_err(|failed| failed.error)?;
        if mapping.is_copied() {
            return Err("a pool is copied".into());
        }
        let pool = BufferPool::new(mapping, SLOT_BYTES).map_err(|failed| failed.error)?;

        let transport = start(machine, function, device, number, parts.iova())?;
        let posted = array::from_fn(|_| None);
        let (given, returned) = (0, 0);
        Ok(Self { transport, number, direction, parts, pool, memory, posted, given, returned })
    }

    fn parts(&self) -> Outcome<&Parts> {
        Ok(self.parts.items().first().ok_or("a queue has no memory")?)
    }

    /// Memory of the pool.
    pub fn memory(&self) -> PhysRange {
        self.memory
    }

    /// A slot that is free.
    pub fn take(&self) -> Option<KernelSlot> {
        self.pool.take()
    }

    /// Hands the first `bytes` bytes of a slot to the device.
    pub fn post(&mut self, slot: KernelSlot, bytes: usize) -> Outcome<()> {
        let id = self.posted.iter().position(Option::is_none).ok_or("the queue is full")?;
        let slot = slot.post_first(bytes);
        let parts = self.parts()?;
        let descriptor = &parts.descriptors[id];
        descriptor.address.store(slot.iova().get(), Ordering::Relaxed);
        descriptor.bytes.store(slot.bytes() as u32, Ordering::Relaxed);
        let flags = if self.direction.device_writes() { WRITES } else { 0 };
        descriptor.flags.store(flags, Ordering::Relaxed);
        parts.available.ring[usize::from(self.given) % ENTRIES].store(id as u16, Ordering::Relaxed);
        self.given = self.given.wrapping_add(1);
        self.parts()?.available.index.store(self.given, Ordering::Release);
        self.posted[id] = Some(slot);
        // The device is told after it can see the index.
        fence(Ordering::SeqCst);
        self.transport.notify(self.number);
        Ok(())
    }

    /// The next slot that the device has returned, and the bytes that it says to have written there.
    pub fn returned(&mut self) -> Outcome<Option<(KernelSlot, usize)>> {
        let used = &self.parts()?.used;
        if used.index.load(Ordering::Acquire) == self.returned {
            return Ok(None);
        }
        let entry = &used.ring[usize::from(self.returned) % ENTRIES];
        let id = entry.id.load(Ordering::Relaxed) as usize;
        let bytes = entry.bytes.load(Ordering::Relaxed) as usize;
        let slot = self.posted.get_mut(id).and_then(Option::take);
        let slot = slot.ok_or("the card returned a slot that it does not have")?;
        self.returned = self.returned.wrapping_add(1);
        Ok(Some((slot.take_back_first(bytes), bytes)))
    }

    /// Ends the pool while the card runs, and still knows the addresses of its slots: a driver's mistake, from which
    /// the unit has to keep memory.
    pub fn end_pool(self) -> Outcome<(RunningCard, Mapping<Machine, Pages>)> {
        let Self { transport, parts, pool, posted, .. } = self;
        posted.into_iter().flatten().for_each(|slot| drop(slot.take_back()));
        let mapping = pool.into_mapping().map_err(|failed| failed.error)?;
        Ok((RunningCard { _transport: transport, _parts: parts }, mapping))
    }
}

/// A card that runs without a pool. It is reset when it is dropped.
pub struct RunningCard {
    _transport: AccessPlatform<PciTransport>,
    _parts: Coherent<Machine, Parts>,
}
