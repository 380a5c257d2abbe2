//! Interface for device drivers: they hand buffers over, get addresses, and get the buffers back
//! once they are safe.
//!
//! * [`DmaSpace`]: a domain with addresses to give out, and a [`Policy`] of invalidation.
//! * [`Device`]: a stream with its [`Constraints`], translated, passed through or blocked.
//! * [`Buffer`] → [`Mapping`] → [`Deferred`] → the buffer: the type that a driver holds keeps it
//!   from memory that a device may still reach. [`DmaSpace::map_range`] and
//!   [`DmaSpace::unmap_range`] are for drivers that keep their buffers themselves, which they
//!   promise by [`Unowned`].
//! * [`Reservation`]: addresses first, given or chosen, pieces later, one sync for all.
//! * [`Coherent`]: memory for rings, mapped as long as it lives.
//! * [`Copying`]: copies of bytes that must not, or cannot, be reached in place.
//!
//! Handlers call [`Device::try_map`], [`Mapping::defer`] and
//! [`Deferred::try_reclaim`], which wait for
//! nothing; a worker or a timer calls [`DmaSpace::tick`].
//!
//! Not here: I/O page faults.

mod beside;
mod coherent;
mod constraints;
mod copies;
mod cpus;
mod default;
mod deferred;
mod device;
mod direction;
mod doorbell;
mod error;
mod failed;
mod find;
mod flush_queue;
mod layout;
mod list;
mod map;
mod mapping;
mod members;
mod policy;
mod premapped;
mod quarantine;
mod quieting;
mod range;
mod regions;
mod reservation;
mod segments;
mod settings;
mod shortage;
mod space;
mod streams;
mod trace;
mod trust;
mod waiting;

pub use crate::iommu::{Shadowing, Stage, TrapCost};
pub use crate::platform::contract::{
    Buffer, Doorbell, HostVisibility, MemoryKind, Pieces, PiecesIter, Sharing, Unowned,
};
pub use coherent::Coherent;
pub use constraints::{Coherency, Constraints, Trust};
pub use copies::{CopyPrices, CopyWhen, Copying};
pub use default::{
    Buffers, Decision, DeviceTlbPresence, PolicyInputs, PolicyPreference, default_policy,
};
pub use deferred::{Deferred, Quiet, reclaim_all};
pub use device::{Device, OldMappings};
pub use direction::{Bidirectional, DataDirection, Direction, FromDevice, ToDevice};
pub use error::{AccessError, DeviceError, MapError, PremapError, SpaceError, UnmapError};
pub use failed::Failed;
pub use find::IovaUse;
pub use flush_queue::LazyBounds;
pub use map::{MapFailed, NotMapped};
pub use mapping::{Mapping, NotUnmapped, UnmapFailed};
pub use policy::Policy;
pub use quarantine::Quarantine;
pub use range::DmaRange;
pub use reservation::{LinkError, Reservation};
pub use segments::{DmaSegment, DmaSegments};
pub use space::{DmaSpace, SpaceOptions};

#[cfg(test)]
pub(crate) mod tests;
