//! A pool that stays mapped: one map for all buffers of a device, which are copied.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use portolan::addr::PageSize;
use portolan::bounce::{PoolError, PoolMemory, PoolOptions};
use portolan::dma::{Buffer as _, CopyWhen, Copying, Device, PremapError, Unowned};
use thiserror::Error;

use super::{Pages, Process};

/// Reason why a device got no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DevicePoolError {
    /// There is no memory of that size.
    #[error("there is no memory for a pool of {bytes} bytes")]
    NoMemory {
        /// The size.
        bytes: usize,
    },
    /// The pool itself.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// It was not mapped.
    #[error(transparent)]
    Premap(#[from] PremapError),
}

/// Slots that a pool's areas are made of.
const SLOTS: usize = 64;

/// `device`, whose buffers are copied through a pool of its own of at least `bytes` bytes, which stays
/// mapped: a map and an unmap of a buffer are then no system calls. For trusted devices; a buffer that
/// finds no room in the pool is mapped in place. The memory stays with the process for good.
///
/// *Context.* Task.
///
/// # Errors
/// See [`DevicePoolError`]; the device is gone then.
pub fn with_device_pool(
    device: Device<Process>,
    bytes: usize,
) -> Result<Device<Process>, DevicePoolError> {
    let slot = PageSize::SIZE_4K;
    let options = PoolOptions { slot, ..PoolOptions::for_cpus(&Process) };
    let area = SLOTS << slot.lg2();
    let areas = area.checked_mul((options.areas as usize).next_power_of_two());
    let whole = areas.and_then(|areas| bytes.checked_next_multiple_of(areas));
    let pages = whole.and_then(Pages::new);
    let pages = pages.ok_or(DevicePoolError::NoMemory { bytes })?;
    let memory = pages.pieces().as_slice().first().copied();
    let memory = memory.ok_or(DevicePoolError::NoMemory { bytes })?;
    // The owner of the pool or the mapping may have it for as long as it likes.
    let _ = ManuallyDrop::new(pages);
    // SAFETY: the memory is never freed, and the pool and the device alone reach it, by copies.
    let slots = unsafe { Unowned::shared(memory, None) };
    let pool = PoolMemory::of(Process, slots, options).map_err(|refused| refused.error)?;
    let copying = Copying { pool: Arc::new(pool), when: CopyWhen::Always };
    Ok(device.with_copies(copying).with_premapped_pool()?)
}
