//! Devices passed through to a guest or a process without pinning all of its memory.
//!
//! * [`Ioas`]: the memory that the devices of one domain may use, in regions. What is
//!   [`Residency::Pinned`] is mapped at once; the rest when a device faults on it, by the page, the block
//!   or a [`Window`] ahead.
//! * [`Pager`]: whose memory that is. It populates, and takes back what it likes at any time
//!   through [`Ioas::invalidate`], which returns once no device reaches it.
//! * A container is a fault [`Handler`](crate::iopf::Handler): for devices without PASIDs, for one
//!   PASID (shared virtual addressing: a domain with a process's addresses), or as the second stage
//!   of [`Nested`] address spaces.
//!
//! *Order.* A fault notes the slot's sequence, has the owner populate without any lock held, and
//! claims the granules only if the sequence is still the same; then it maps them, without the lock.
//! Taking back steps the sequence first and waits for what is claimed. So memory that the owner
//! hands over before it takes it back is never mapped afterwards. While memory is being taken back,
//! faults in its slots wait, for a bounded time.
//!
//! *Failing hardware.* What was taken back and is not quiet remembers the generation of its debt. The
//! slot opens again once somebody takes it back with success, which takes that the very debt was paid,
//! by whoever it was.
//!
//! *Context.* Interrupt, where nothing else is said: most things here are values.
//!
//! Not here: copies of guest memory, and devices that cannot wait for a fault: those need
//! everything pinned that they may touch.

mod account;
mod ahead;
mod attempt;
mod bits;
mod debt;
mod dirty;
mod error;
mod fill;
mod handler;
mod nested;
mod notifier;
mod owner;
mod pin;
pub mod premap;
mod region;
mod space;
#[cfg(test)]
mod tests;

pub use account::{LimitReached, Limited, Limits, Usage};
pub use dirty::DirtyDomain;
pub use error::{
    FaultError, InvalidateError, ReadDirtyError, RecoverError, RegionError, RemoveError,
};
pub use fill::{Already, Mapped, Request};
pub use nested::{FirstStage, Guest, Nested};
pub use owner::{Frames, FramesFull, PIECES, Pager, PopulateError};
pub use premap::Window;
pub use region::{RegionOptions, Residency};
pub use space::{Ioas, IoasOptions};
