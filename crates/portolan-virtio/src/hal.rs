//! `virtio_drivers::Hal` by numbered slots, one for each device.
//!
//! `Hal` has no `self`: a driver names its device by a type, [`SlotHal<N>`](SlotHal).
//!
//! `unsafe` is allowed here, in `dma_api`, in `viommu` and in `shared::promise`.
//!
//! *Context.* Task, all functions: they take heap memory, and unmapping waits for hardware.
#![allow(unsafe_code)]

mod untranslated;

use alloc::sync::Arc;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PhysAddr, PhysRange};
use portolan::dma::{Device, Direction};
use portolan::platform::Platform;
use spin::Mutex;
use thiserror::Error;
use virtio_drivers::{BufferDirection, Hal};

use self::untranslated::Untranslated;
use crate::shared::{GRANULE, Shares, Sharing, lend};

/// Number of slots.
pub const SLOTS: usize = 16;

/// Translations of addresses, both ways, that `virtio-drivers` asks of a kernel beyond [`Platform`].
///
/// *Context.* Interrupt, all methods.
///
/// # Safety
/// * [`phys`](Self::phys) returns where the byte is as long as its owner does not free it.
/// * [`mmio`](Self::mmio) returns where registers are mapped, all of the window, for good; never
///   memory of the program.
pub unsafe trait Addresses: Send + Sync + 'static {
    /// The physical address of the byte that the CPU sees at `at`: on the heap, on a stack, or static.
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr>;

    /// Address at which the CPU sees the registers at `window`.
    fn mmio(&self, window: PhysRange) -> Option<NonNull<u8>>;
}

/// Reason why a device has no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BindError {
    /// There is no slot of that number.
    #[error("there are slots 0 to {most}", most = SLOTS - 1)]
    NoSlot,
    /// It is another device's.
    #[error("the slot is another device's")]
    Taken,
    /// The device does not go through tables with pages of 4 KiB, or of less.
    #[error("the device is not translated by pages of 4 KiB")]
    NotTranslated,
}

/// Reason why a slot was not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReleaseError {
    /// Its driver is there still.
    #[error("the driver shares {rings} rings and {buffers} buffers")]
    InUse {
        /// Rings, which drivers keep.
        rings: usize,
        /// Buffers of requests.
        buffers: usize,
    },
}

#[derive(Clone)]
struct Bound {
    sharing: Arc<dyn Sharing>,
    addresses: Arc<dyn Addresses>,
}

struct Slot {
    bound: Mutex<Option<Bound>>,
    refused: AtomicU64,
}

static ALL: [Slot; SLOTS] =
    [const { Slot { bound: Mutex::new(None), refused: AtomicU64::new(0) } }; SLOTS];

/// An address at which no device reaches anything: address spaces leave out the lowest.
const NOWHERE: u64 = 0;

/// The `Hal` of the device in slot `N`.
///
/// A buffer that cannot be shared, for want of addresses or memory, is given an address at which
/// the device reaches nothing: the request fails, and [`SlotHal::refused`] counts it.
pub struct SlotHal<const N: usize>;

impl<const N: usize> SlotHal<N> {
    /// Gives the slot to `device`, until it is released.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind<P: Platform>(
        device: Arc<Device<P>>,
        addresses: Arc<dyn Addresses>,
    ) -> Result<(), BindError> {
        let small = device.space().filter(|space| space.granule() <= GRANULE);
        small.ok_or(BindError::NotTranslated)?;
        Self::give(Arc::new(Shares::new(device)), addresses)
    }

    /// Gives the slot to a device that no IOMMU serves, until it is released: a virtio-iommu, whose own
    /// addresses are those of memory. Nothing keeps it from memory that was not shared with it.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_untranslated<P: Platform>(
        platform: P,
        addresses: Arc<dyn Addresses>,
    ) -> Result<(), BindError> {
        Self::give(Arc::new(Untranslated::new(platform)), addresses)
    }

    fn give(sharing: Arc<dyn Sharing>, addresses: Arc<dyn Addresses>) -> Result<(), BindError> {
        let slot = ALL.get(N).ok_or(BindError::NoSlot)?;
        let mut bound = slot.bound.lock();
        if bound.is_some() {
            return Err(BindError::Taken);
        }
        *bound = Some(Bound { sharing, addresses });
        Ok(())
    }

    /// Takes the slot from its device, once the driver has given back all that it shared.
    ///
    /// # Errors
    /// See [`ReleaseError`]; it is the device's still.
    pub fn release() -> Result<(), ReleaseError> {
        let Some(slot) = ALL.get(N) else {
            return Ok(());
        };
        let mut bound = slot.bound.lock();
        let in_use = bound.as_ref().map(|bound| bound.sharing.in_use());
        match in_use {
            None | Some((0, 0)) => {
                let gone = bound.take();
                drop(bound);
                // It may be the device's last user, and then it waits for hardware.
                drop(gone);
                Ok(())
            }
            Some((rings, buffers)) => Err(ReleaseError::InUse { rings, buffers }),
        }
    }

    /// Number of times that a buffer could not be shared, or was not taken back in time.
    pub fn refused() -> u64 {
        let slot = ALL.get(N);
        slot.map_or(0, |slot| slot.refused.load(Ordering::Relaxed))
    }

    fn bound() -> Option<Bound> {
        ALL.get(N)?.bound.lock().clone()
    }

    fn refuse() {
        if let Some(slot) = ALL.get(N) {
            slot.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

const fn direction(of: BufferDirection) -> Direction {
    match of {
        BufferDirection::DriverToDevice => Direction::ToDevice,
        BufferDirection::DeviceToDriver => Direction::FromDevice,
        BufferDirection::Both => Direction::Bidirectional,
    }
}

// SAFETY: rings come from the platform by `Device::coherent`: pages that are zeroed, aligned and used
// by no other code, until they are freed; a slot is not released before. Registers are where
// `Addresses` promises that they are.
unsafe impl<const N: usize> Hal for SlotHal<N> {
    fn dma_alloc(pages: usize, _way: BufferDirection) -> (u64, NonNull<u8>) {
        let ring = Self::bound().and_then(|bound| bound.sharing.alloc(pages));
        let found = ring.and_then(|(at, seen)| {
            let seen = core::ptr::with_exposed_provenance_mut(seen);
            Some((at, NonNull::new(seen)?))
        });
        found.unwrap_or_else(|| {
            Self::refuse();
            (NOWHERE, NonNull::dangling())
        })
    }

    unsafe fn dma_dealloc(at: u64, _seen: NonNull<u8>, _pages: usize) -> i32 {
        if let Some(bound) = Self::bound() {
            bound.sharing.free(at);
        }
        0
    }

    /// # Panics
    /// If the kernel maps no registers there: a device's own register says where they are, and there is
    /// no other way to say no.
    unsafe fn mmio_phys_to_virt(at: u64, bytes: usize) -> NonNull<u8> {
        let window = PhysRange::from_len(PhysAddr::new(at), bytes as u64);
        let seen = window.and_then(|window| Self::bound()?.addresses.mmio(window));
        seen.expect("the device's registers can be mapped")
    }

    unsafe fn share(buffer: NonNull<[u8]>, way: BufferDirection) -> u64 {
        let shared = Self::bound().and_then(|bound| {
            let lent = lend(|at| bound.addresses.phys(at), buffer.cast(), buffer.len())?;
            bound.sharing.share(lent, direction(way))
        });
        shared.unwrap_or_else(|| {
            Self::refuse();
            NOWHERE
        })
    }

    unsafe fn unshare(at: u64, _buffer: NonNull<[u8]>, _way: BufferDirection) {
        if at == NOWHERE {
            return;
        }
        if Self::bound().and_then(|bound| bound.sharing.unshare(at)).is_none() {
            Self::refuse();
        }
    }
}
