//! Requests of a virtio disk that go on through an update.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 2.7 (split virtqueues) and 5.2.6 (requests of a disk).

use core::mem::{self, ManuallyDrop};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use portolan::addr::Iova;
use portolan::dma::{Direction, SharedData};
use portolan::platform::{Nanos, poll};
use portolan_bare::Machine;
use portolan_bare::pci::Function;
use portolan_hw::topology::Iommus;
use portolan_virtio::SpaceHal;
use virtio_drivers::transport::Transport;
use virtio_drivers::transport::pci::PciTransport;

use super::kept::{Kept, KeptPage, VIRTIO_BATCH};
use crate::batch::{Disk, PAGE, inverted, original};
use crate::net::ring::{self, ENTRIES, Parts, WRITES};
use crate::virtio::{self, Disks};
use crate::{Outcome, say};

/// Pages of a batch that are read; as many are written.
const HALF: usize = VIRTIO_BATCH / 2;
/// Page of the disk that receives the copy of page 0.
const COPIES: u64 = 16;
/// Descriptors of a request: its header, its data and its status.
const CHAIN: usize = 3;
/// `VIRTQ_DESC_F_NEXT`.
const NEXT: u16 = 1;
/// `VIRTIO_BLK_T_IN` and `VIRTIO_BLK_T_OUT`.
const READ: u32 = 0;
const WRITE: u32 = 1;
const HEADER_BYTES: u32 = 16;
/// Value of a status that the disk has not written.
const PENDING: u8 = 0xff;
/// A request takes no longer.
const LIMIT: Nanos = Nanos::from_millis(10_000);

/// `struct virtio_blk_req`, up to its data.
#[repr(C)]
struct Header {
    kind: AtomicU32,
    reserved: AtomicU32,
    sector: AtomicU64,
}

/// A queue, and the headers and statuses of its requests.
#[repr(C)]
struct Shared {
    parts: Parts,
    headers: [Header; VIRTIO_BATCH],
    statuses: [AtomicU8; VIRTIO_BATCH],
}

const _: () = assert!(VIRTIO_BATCH * CHAIN <= ENTRIES);

// SAFETY: its fields are atomics, and structs and arrays of those.
unsafe impl SharedData for Shared {}

/// The disk's queue.
pub struct VirtioDisk {
    machine: Machine,
    // Dropped, it would reset the disk.
    transport: ManuallyDrop<PciTransport>,
    kept: KeptPage,
    shared: &'static Shared,
}

/// First page of the batch of a kernel.
fn first(number: u64) -> u64 {
    number * HALF as u64 % COPIES
}

impl VirtioDisk {
    /// Starts the disk with one queue, which stays mapped.
    pub fn start(
        machine: Machine,
        function: &Function,
        disk: &Disk,
        kept: &mut Kept,
    ) -> Outcome<Self> {
        let shared = disk.device.coherent_of::<Shared>(1)?;
        kept.virtio = kept.lend(shared.iova().get(), shared.memory());
        let started = ring::start(machine, function, &disk.device, 0, shared.iova())?;
        // The disk has the memory for as long as the machine runs.
        mem::forget((shared, started));
        Self::resume(machine, function, kept)
    }

    /// Goes on with the queue of the former kernel.
    pub fn resume(machine: Machine, function: &Function, kept: &Kept) -> Outcome<Self> {
        let transport = virtio::transport::<SpaceHal<Disks>>(machine, function.at());
        let transport = ManuallyDrop::new(transport.ok_or("the disk is no virtio device")?);
        let at = core::ptr::with_exposed_provenance::<Shared>(kept.virtio.at as usize);
        // SAFETY: the memory is the queue's for good, aligned, and mapped one to one; its fields are atomics.
        let shared = unsafe { &*at };
        Ok(Self { machine, transport, kept: kept.virtio, shared })
    }

    /// Number of requests that were made and are not completed.
    pub fn under_way(&self) -> usize {
        let Parts { available, used, .. } = &self.shared.parts;
        let made = available.index.load(Ordering::Relaxed);
        made.wrapping_sub(used.index.load(Ordering::Acquire)).into()
    }

    /// Makes request `id`, which the disk sees after [`VirtioDisk::announce`].
    fn put(&self, id: usize, kind: u32, page: u64, at: Iova) {
        let Shared { parts, headers, statuses } = self.shared;
        headers[id].kind.store(kind, Ordering::Relaxed);
        headers[id].sector.store(page * 8, Ordering::Relaxed);
        statuses[id].store(PENDING, Ordering::Relaxed);
        let place = |offset: usize| self.kept.iova + offset as u64;
        let header = mem::offset_of!(Shared, headers) + id * HEADER_BYTES as usize;
        let status = mem::offset_of!(Shared, statuses) + id;
        let reads = if kind == READ { WRITES } else { 0 };
        let chain = [
            (place(header), HEADER_BYTES, NEXT),
            (at.get(), PAGE as u32, NEXT | reads),
            (place(status), 1, WRITES),
        ];
        for (number, (address, bytes, flags)) in (id * CHAIN..).zip(chain) {
            let descriptor = &parts.descriptors[number];
            descriptor.address.store(address, Ordering::Relaxed);
            descriptor.bytes.store(bytes, Ordering::Relaxed);
            descriptor.flags.store(flags, Ordering::Relaxed);
            descriptor.next.store(number as u16 + 1, Ordering::Relaxed);
        }
        let made = parts.available.index.load(Ordering::Relaxed);
        let entry = &parts.available.ring[usize::from(made) % ENTRIES];
        entry.store((id * CHAIN) as u16, Ordering::Relaxed);
        parts.available.index.store(made.wrapping_add(1), Ordering::Release);
    }

    /// Tells the disk of the requests that were made.
    fn announce(&mut self) {
        fence(Ordering::SeqCst);
        self.transport.notify(0);
    }

    /// Waits for all requests, of which there are `count`.
    fn wait(&self, count: usize) -> Outcome<()> {
        let done = || (self.under_way() == 0).then_some(());
        poll(&self.machine, LIMIT, done).map_err(|_| "the virtio disk is stuck")?;
        let mut statuses = self.shared.statuses.iter().take(count);
        match statuses.all(|status| status.load(Ordering::Relaxed) == 0) {
            true => Ok(()),
            false => Err("the virtio disk did not do a request".into()),
        }
    }

    /// Waits for the requests of the former kernel, compares each byte that was read, and reads by mappings of this
    /// kernel what was written.
    pub fn reap(&mut self, disk: &Disk, kept: &Kept) -> Outcome<()> {
        self.wait(VIRTIO_BATCH)?;
        let first = first(kept.done - 1);
        for (page, number) in kept.virtio_batch.iter().step_by(2).zip(first..) {
            // SAFETY: the former kernel filled it in, and the disk has completed the request.
            if unsafe { page.bytes() } != original(number) {
                return Err("the virtio disk read something else than it has".into());
            }
        }
        let mut mappings = alloc::vec::Vec::new();
        for id in 0..HALF {
            let pages = self.machine.pages(PAGE).ok_or("no memory")?;
            let mapped = disk.device.map(pages, Direction::FromDevice);
            let mapping = mapped.map_err(|failed| failed.error)?;
            self.put(id, READ, COPIES + first + id as u64, mapping.iova());
            mappings.push(mapping);
        }
        self.announce();
        self.wait(HALF)?;
        let found = disk.take_back(mappings)?;
        match found.iter().zip(first..).all(|(page, number)| page.bytes() == inverted(number)) {
            true => Ok(()),
            false => Err("the virtio disk did not write what it was asked for".into()),
        }
    }

    /// Has the disk begin what the next kernel takes over.
    pub fn leave(&mut self, disk: &Disk, kept: &mut Kept) -> Outcome<()> {
        let first = first(kept.done);
        // QEMU joins requests of one kind that follow each other.
        for id in 0..VIRTIO_BATCH {
            let page = first + id as u64 / 2;
            let mut pages = self.machine.pages(PAGE).ok_or("no memory")?;
            let (kind, direction, number) = match id % 2 == 0 {
                true => (READ, Direction::FromDevice, page),
                false => {
                    pages.bytes_mut().copy_from_slice(&inverted(page));
                    (WRITE, Direction::ToDevice, COPIES + page)
                }
            };
            let memory = pages.memory();
            let mapping = disk.device.map(pages, direction).map_err(|failed| failed.error)?;
            kept.virtio_batch[id] = kept.lend(mapping.iova().get(), memory);
            self.put(id, kind, number, mapping.iova());
            // It is the next kernel's to look at.
            mem::forget(mapping);
        }
        self.announce();
        Ok(())
    }
}

/// Opens the disk under the policy of kernel `number`.
pub fn open(iommus: &Iommus<Machine>, function: &Function, number: u64) -> Outcome<Disk> {
    let (disk, policy) = Disk::open(iommus, function, number)?;
    say!("kernel {number}, virtio: {policy}");
    Ok(disk)
}
