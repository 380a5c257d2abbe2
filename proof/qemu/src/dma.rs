//! Parts that the device drivers here share: memory that both sides see, and waits that end.

use std::time::{Duration, Instant};

use portolan::addr::{Iova, PhysAddr};

use crate::qtest::QtestError;
use crate::ram::OutsideRam;

/// A contiguous piece of guest RAM, and where the device sees it.
///
/// Without translation both addresses are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaArea {
    /// Address for the driver.
    pub phys: PhysAddr,
    /// Address for the device.
    pub iova: Iova,
}

impl DmaArea {
    /// An area behind a mapping.
    pub const fn new(phys: PhysAddr, iova: Iova) -> Self {
        Self { phys, iova }
    }

    /// An area that the device reaches by its guest-physical address.
    pub const fn identity(phys: PhysAddr) -> Self {
        let iova = Iova::new(phys.get());
        Self { phys, iova }
    }

    /// The guest-physical address `bytes` bytes further on.
    pub(crate) fn phys_at(self, bytes: u64) -> Result<PhysAddr, OutsideRam> {
        let address = self.phys;
        self.phys.checked_add(bytes).ok_or(OutsideRam { address, bytes })
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The device reads guest RAM.
    ToDevice,
    /// The device writes guest RAM.
    FromDevice,
}

/// Looks again and again until there is something, an error, or `limit` is over (`None`).
pub(crate) fn poll<T, E: From<QtestError>>(
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let start = Instant::now();
    loop {
        // The time is taken first, so that the last look comes after the limit.
        let late = start.elapsed() > limit;
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if late {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}
