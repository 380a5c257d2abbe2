//! `virtio_drivers::Hal` for all devices of an address space.
//!
//! `Hal` has no `self`, and its functions are not told for which device they are called. So memory is shared
//! with all devices of one [`VirtioMemory`], a `static` of the kernel's that a type names ([`HalMemory`]).
//!
//! `unsafe` is allowed here, in `dma_api`, in `viommu` and in `lent::promise`.
//!
//! *Context.* Task; [`SpaceHal`] says where its functions may be called.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use portolan::addr::{PhysAddr, PhysRange};
use portolan::dma::{Device, Direction, MapError};
use portolan::platform::{Guarded, Platform};
use spin::Once;
use thiserror::Error;
use virtio_drivers::transport::Transport;
use virtio_drivers::{BufferDirection, Hal};

use crate::lent::Lent;
use crate::shared::Shares;
use crate::short_slots::SHORT;
use crate::transport::{AccessPlatform, NotTranslated};

/// Devices that one memory is shared with, at most.
const MOST_DEVICES: usize = 64;

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

/// Reason why a device was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddError {
    /// The device goes past the IOMMU that translates for it.
    #[error(transparent)]
    NotTranslated(#[from] NotTranslated),
    /// The device is in another address space than those before it: it would not reach the memory.
    #[error("the device is in another address space than those before it")]
    OtherSpace,
    /// The device has other limits than those before it.
    #[error("the device has other limits than those before it")]
    OtherLimits,
    /// There are as many devices as can be.
    #[error("there are {MOST_DEVICES} devices already")]
    Full,
    /// No memory for short buffers.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Reason why a device was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// It was not added.
    #[error("the device was not added")]
    Unknown,
    /// It is the last one, and drivers share memory with it.
    #[error("drivers share {rings} rings and {buffers} buffers with the last device")]
    InUse {
        /// Rings, which drivers keep.
        rings: usize,
        /// Buffers of requests.
        buffers: usize,
    },
}

/// Devices, and the memory that is shared with all of them.
struct Members<P: Platform> {
    devices: ArrayVec<Arc<Device<P>>, MOST_DEVICES>,
    shares: Option<Arc<Shares<P>>>,
}

impl<P: Platform> Members<P> {
    /// Takes `device` in, and `made` if there is nothing shared yet. What it does not take is left to the
    /// caller, who drops it without the lock.
    fn add(
        &mut self,
        device: &mut Option<Arc<Device<P>>>,
        made: &mut Option<Arc<Shares<P>>>,
    ) -> Result<(), AddError> {
        if let (Some(first), Some(device)) = (self.devices.first(), &*device) {
            let same = match (first.space(), device.space()) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (None, None) => true,
                _ => false,
            };
            if !same {
                return Err(AddError::OtherSpace);
            }
            if first.constraints() != device.constraints() {
                return Err(AddError::OtherLimits);
            }
        }
        if self.devices.is_full() {
            return Err(AddError::Full);
        }
        if self.shares.is_none() {
            self.shares = made.take();
        }
        self.devices.extend(device.take());
        Ok(())
    }

    /// Removes `device`, and with the last one what is shared with them.
    fn remove(&mut self, device: &Arc<Device<P>>) -> Result<Left<P>, RemoveError> {
        let found = self.devices.iter().position(|one| Arc::ptr_eq(one, device));
        let at = found.ok_or(RemoveError::Unknown)?;
        let mut shares = None;
        if self.devices.len() == 1 {
            // Locks of its tables, under which nothing else is locked.
            match self.shares.as_ref().map_or((0, 0), |shares| shares.in_use()) {
                (0, 0) => shares = self.shares.take(),
                (rings, buffers) => return Err(RemoveError::InUse { rings, buffers }),
            }
        }
        Ok(Left { _device: self.devices.remove(at), _shares: shares })
    }
}

/// The device for which memory is mapped now, and what is shared with all devices.
struct Lender<P: Platform> {
    device: Arc<Device<P>>,
    shares: Arc<Shares<P>>,
}

/// Parts that were removed. The caller drops them without the lock, since that may wait for hardware.
struct Left<P: Platform> {
    _device: Arc<Device<P>>,
    _shares: Option<Arc<Shares<P>>>,
}

/// Memory that drivers of `virtio-drivers` share with devices: all devices of one address space, or
/// devices that no IOMMU serves, and none at first.
///
/// Each of the devices reaches what any of their drivers shares. Disks that must not reach each other's
/// buffers have address spaces of their own, a [`VirtioMemory`] each, and types of their own.
///
/// A buffer of up to 64 bytes, such as a request's header and its status, is copied to memory that stays
/// mapped: it may lie on any stack, and owes no invalidation. So a strict request owes one, for its data.
///
/// [`open`](Self::open) opens a device for it. A kernel that opens devices itself chooses `Buffers::Kept`, since
/// drivers of `virtio-drivers` keep their buffers, and
/// [`SpaceScope::Unit`](portolan_hw::topology::SpaceScope) if there are several
/// ([`DeviceOptions`](portolan_hw::topology::DeviceOptions)). Their policy is strict or, if that was asked for
/// and they are trusted, lazy.
pub struct VirtioMemory<P: Platform> {
    addresses: &'static dyn Addresses,
    members: Once<Guarded<P, Members<P>>>,
    refused: AtomicU64,
}

impl<P: Platform> VirtioMemory<P> {
    /// Memory without devices.
    pub const fn new(addresses: &'static dyn Addresses) -> Self {
        Self { addresses, members: Once::new(), refused: AtomicU64::new(0) }
    }

    /// Adds `device`, whose driver is to use the transport that it returns.
    ///
    /// # Errors
    /// See [`AddError`].
    pub fn add<T: Transport>(
        &self,
        device: Arc<Device<P>>,
        transport: T,
    ) -> Result<AccessPlatform<T>, AddError> {
        let transport = AccessPlatform::new(transport, &device)?;
        let members = self.members.call_once(|| {
            let devices = ArrayVec::new_const();
            Guarded::new(Members { devices, shares: None })
        });
        let mut made = match members.with(|members| members.shares.is_some()) {
            true => None,
            false => Some(Arc::new(Shares::with_short_slots(&device)?)),
        };
        let mut device = Some(device);
        members.with(|members| members.add(&mut device, &mut made))?;
        Ok(transport)
    }

    /// Removes a device, whose driver is gone. The last one has to have given all back.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove(&self, device: &Arc<Device<P>>) -> Result<(), RemoveError> {
        let members = self.members.get().ok_or(RemoveError::Unknown)?;
        let left = members.with(|members| members.remove(device));
        left.map(drop)
    }

    /// Number of times that a buffer could not be shared, or was not taken back in time.
    ///
    /// *Context.* Interrupt.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Some device, and what is shared with all of them.
    fn now(&self) -> Option<Lender<P>> {
        self.members.get()?.with(|members| {
            let device = members.devices.first()?.clone();
            Some(Lender { device, shares: members.shares.clone()? })
        })
    }

    fn share(&self, buffer: NonNull<[u8]>, direction: Direction) -> Option<u64> {
        let Lender { device, shares } = self.now()?;
        if buffer.len() <= SHORT {
            let mut bytes = [0; SHORT];
            // SAFETY: the caller of `Hal::share` lets no other code change the buffer meanwhile, and it is no
            // longer than `bytes`.
            unsafe {
                buffer
                    .cast()
                    .copy_to_nonoverlapping(NonNull::from(&mut bytes).cast::<u8>(), buffer.len())
            }
            if let Some(at) = shares.lend_slot(&bytes) {
                return Some(at);
            }
        }
        let lent = Lent::new(|at| self.addresses.phys(at), buffer.cast(), buffer.len())?;
        shares.share(&device, lent, direction)
    }

    fn unshare(&self, at: u64, buffer: NonNull<[u8]>, direction: Direction) -> bool {
        let Some(Lender { shares, .. }) = self.now() else {
            return false;
        };
        let Some(bytes) = shares.take_slot(at) else {
            return shares.unshare(at);
        };
        if direction.device_writes() {
            let Some(bytes) = bytes.get(..buffer.len()) else {
                return false;
            };
            // SAFETY: the caller of `Hal::unshare` lets no other code reach the buffer meanwhile; it is as long
            // as `bytes`.
            unsafe {
                NonNull::from(bytes).cast().copy_to_nonoverlapping(buffer.cast::<u8>(), bytes.len())
            }
        }
        true
    }
}

/// A type that names a [`VirtioMemory`], and so the devices of the drivers that use [`SpaceHal`] of it.
///
/// ```no_run
/// # use portolan::platform::Platform;
/// # use portolan_virtio::{Addresses, HalMemory, SpaceHal, VirtioMemory};
/// # use portolan_bare::Machine;
/// # struct Direct; // SAFETY: it finds nothing.
/// # unsafe impl Addresses for Direct {
/// #     fn phys(&self, _: core::ptr::NonNull<u8>) -> Option<portolan::addr::PhysAddr> { None }
/// #     fn mmio(&self, _: portolan::addr::PhysRange) -> Option<core::ptr::NonNull<u8>> { None }
/// # }
/// /// All virtio devices of the kernel.
/// struct Devices;
///
/// static MEMORY: VirtioMemory<Machine> = VirtioMemory::new(&Direct);
///
/// impl HalMemory for Devices {
///     type Platform = Machine;
///     fn memory() -> &'static VirtioMemory<Machine> {
///         &MEMORY
///     }
/// }
/// type KernelHal = SpaceHal<Devices>;
/// ```
pub trait HalMemory: 'static {
    /// The kernel.
    type Platform: Platform;

    /// The memory: the same at each call.
    ///
    /// *Context.* Interrupt.
    fn memory() -> &'static VirtioMemory<Self::Platform>;
}

/// The `Hal` of the devices of `M`.
///
/// A buffer that cannot be shared, for want of addresses or memory, is given an address at which
/// devices reach nothing: the request fails, and [`VirtioMemory::refused`] counts it.
///
/// *Context.* `share` and `unshare`: atomic, since unmapping waits for hardware; locks are the platform's, so
/// handlers may call them that may wait so long. They take heap memory only for a buffer of more than four
/// pieces, and for more than 128 buffers at once. `dma_alloc` and `dma_dealloc`: task.
pub struct SpaceHal<M: HalMemory>(PhantomData<M>);

/// An address at which no device reaches anything, nor for any length of a descriptor behind it.
const NOWHERE: u64 = 1 << 63;

const fn direction(of: BufferDirection) -> Direction {
    match of {
        BufferDirection::DriverToDevice => Direction::ToDevice,
        BufferDirection::DeviceToDriver => Direction::FromDevice,
        BufferDirection::Both => Direction::Bidirectional,
    }
}

// SAFETY: rings come from the platform by `Device::coherent`: pages that are zeroed, aligned and used
// by no other code, until they are freed. Registers are where `Addresses` promises that they are.
unsafe impl<M: HalMemory> Hal for SpaceHal<M> {
    fn dma_alloc(pages: usize, _way: BufferDirection) -> (u64, NonNull<u8>) {
        let memory = M::memory();
        let ring = memory.now().and_then(|of| of.shares.alloc(&of.device, pages));
        ring.unwrap_or_else(|| {
            memory.refuse();
            // The driver's sign that there is none.
            (0, NonNull::dangling())
        })
    }

    unsafe fn dma_dealloc(at: u64, _seen: NonNull<u8>, _pages: usize) -> i32 {
        if let Some(of) = M::memory().now() {
            of.shares.free(at);
        }
        0
    }

    /// # Panics
    /// If the kernel maps no registers there: a device's own register says where they are, and there is
    /// no other way to say no.
    unsafe fn mmio_phys_to_virt(at: u64, bytes: usize) -> NonNull<u8> {
        let window = PhysRange::from_len(PhysAddr::new(at), bytes as u64);
        let seen = window.and_then(|window| M::memory().addresses.mmio(window));
        seen.expect("the device's registers can be mapped")
    }

    unsafe fn share(buffer: NonNull<[u8]>, way: BufferDirection) -> u64 {
        let memory = M::memory();
        memory.share(buffer, direction(way)).unwrap_or_else(|| {
            memory.refuse();
            NOWHERE
        })
    }

    unsafe fn unshare(at: u64, buffer: NonNull<[u8]>, way: BufferDirection) {
        let memory = M::memory();
        if at != NOWHERE && !memory.unshare(at, buffer, direction(way)) {
            memory.refuse();
        }
    }
}
