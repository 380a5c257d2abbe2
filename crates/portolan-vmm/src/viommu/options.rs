//! Properties of a virtio-iommu that the monitor chooses, and errors of its endpoints.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.3 and 5.13.4.

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use portolan::addr::{Iova, IovaRange, PageSize, PageSizes};

use crate::StillHeld;
use crate::endpoint::EndpointId;

/// Properties of a virtio-iommu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViommuOptions {
    /// Sizes of pages; mappings are aligned to the smallest.
    pub pages: PageSizes,
    /// Addresses that can be mapped.
    pub input: IovaRange,
    /// The last number of a domain.
    pub last_domain: u32,
    /// Mappings of all domains at most: without a limit, the guest would decide their number.
    pub mappings: usize,
    /// Translations that an endpoint's IOTLB keeps at most.
    pub capacity: NonZeroUsize,
    /// Longest time that a request waits for guards on the translations that it takes away.
    pub invalidation_limit: Duration,
    /// Set if endpoints without a domain pass through when the machine starts: firmware without a driver reads its
    /// disk then. The guest reads and writes it as the field `bypass`.
    pub bypass: bool,
    /// Set if the guest may mark mappings as device memory (`VIRTIO_IOMMU_F_MMIO`).
    pub device_memory: bool,
}

impl Default for ViommuOptions {
    /// Pages of 4 KiB, all of 48 bits, 65,536 domains, a million mappings, 4,096 translations, 5 seconds; no bypass
    /// and no device memory.
    fn default() -> Self {
        Self {
            pages: PageSizes::from_bits(0).with(PageSize::SIZE_4K),
            input: const { IovaRange::new(Iova::new(0), Iova::new((1 << 48) - 1)).unwrap() },
            last_domain: 0xffff,
            mappings: 1 << 20,
            capacity: const { NonZeroUsize::new(4096).unwrap() },
            invalidation_limit: Duration::from_secs(5),
            bypass: false,
            device_memory: false,
        }
    }
}

/// Reason why an endpoint was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// There is one of this number.
    #[error("there is an endpoint {} already", .0.get())]
    Taken(EndpointId),
    /// More doorbells than the answer to a probe has room for.
    #[error("{found} doorbells are too many")]
    Doorbells {
        /// Their number.
        found: usize,
    },
}

/// Reason why an endpoint has not got a listener.
#[derive(Debug, thiserror::Error)]
pub enum NotListening {
    /// There is no endpoint of this number.
    #[error("there is no endpoint {}", .0.get())]
    NoEndpoint(EndpointId),
    /// The endpoint has one.
    #[error("endpoint {} has a listener already", .0.get())]
    Taken(EndpointId),
    /// The listener refused a mapping that the endpoint's domain has; those before it were undone.
    #[error("the listener refused a mapping")]
    Refused(#[source] io::Error),
}

/// Reason why a device may still reach memory that was taken from it. All else was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTakenAway {
    /// There is no endpoint of this number.
    #[error("there is no endpoint {}", .0.get())]
    NoEndpoint(EndpointId),
    /// Listeners failed, in so many calls.
    #[error("listeners failed in {failed} calls")]
    Listeners {
        /// Number of calls that failed.
        failed: usize,
    },
    /// A guard was held until the time was over.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
}

/// Kind of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The driver resets the device, as a kernel does that another one started (kexec). The field `bypass` stays.
    Device,
    /// The machine starts again. The field `bypass` is that of [`ViommuOptions`] again.
    System,
}
