//! Interface for device drivers: they hand buffers over, get addresses, and get the buffers back
//! once they are safe.
//!
//! * [`DmaSpace`]: a domain with addresses to give out, and a [`Policy`] of invalidation.
//! * [`Device`]: a stream with its [`Constraints`], translated, passed through or blocked.
//! * [`Buffer`] → [`Mapping`] → [`Deferred`] → the buffer: the type that a driver holds keeps it
//!   from memory that a device may still reach. [`DmaSpace::map_range`] and
//!   [`DmaSpace::unmap_range`] are for drivers that keep their buffers themselves, which they
//!   promise by [`Unowned`].
//! * [`BufferPool`]: one long mapping in slots that go to and fro between the CPU and the device.
//! * [`Reservation`]: addresses first, given or chosen, buffers later, one sync for all.
//! * [`FormerMapping`]: what a former kernel has mapped, until this one's driver ends it.
//! * [`Coherent`]: memory for rings, of the driver's types ([`SharedData`]), mapped as long as it lives.
//! * [`Copying`]: copies of bytes that must not, or cannot, be reached in place.
//!
//! Handlers call [`Device::try_map`], [`Mapping::defer`] and
//! [`Deferred::try_reclaim`], which wait for
//! nothing; a worker or a timer calls [`DmaSpace::tick`].
//!
//! Not here: I/O page faults.

mod buffer_pool;
mod coherent;
mod device;
mod doorbell;
mod error;
mod flush_queue;
mod former;
mod layout;
mod mapping;
mod policy;
mod reach;
mod reservation;
mod space;
mod trace;

pub use crate::iommu::{Shadowing, Stage, TrapCost};
pub use crate::platform::contract::{
    Buffer, Doorbell, HostVisibility, MappedPart, MemoryKind, Pieces, PiecesIter, SharedData,
    Sharing, SplitBuffer, Unowned,
};
pub use buffer_pool::{BufferPool, CpuSlot, DeviceSlot};
pub use coherent::Coherent;
pub use device::{Device, MapFailed, NotMapped, OldMappings};
pub use error::{
    AccessError, BufferPoolError, DeviceError, DivideError, Failed, MapError, PremapError,
    Quarantine, SpaceDirtyError, SpaceError, UnmapError,
};
pub use former::FormerMapping;
pub use layout::DmaSegment;
pub use mapping::{
    Deferred, DivisibleMapping, Mapping, NotUnmapped, Quiet, UnmapFailed, reclaim_all,
};
pub use policy::{
    Bidirectional, Buffers, Coherency, Constraints, DataDirection, Decision, DeviceTlbPresence,
    Direction, FromDevice, LazyBounds, Policy, PolicyInputs, PolicyPreference, ToDevice, Trust,
    default_policy,
};
pub use reach::{CopyPrices, CopyWhen, Copying, DmaSegments};
pub use reservation::{LinkError, NotLinked, Reservation};
pub use space::{DmaRange, DmaSpace, FormerError, IovaUse, SpaceOptions};

#[cfg(test)]
pub(crate) mod tests;
