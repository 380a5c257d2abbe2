//! Devices passed through to a guest or a process without pinning all of its memory.
//!
//! * [`Ioas`]: the memory that the devices of one domain may use, in regions. A
//!   [`Residency::Pinned`] region is mapped at once; the rest when a device faults on it, by the
//!   page, the block or a [`Window`] ahead.
//! * [`Pager`]: the owner of that memory. It populates, and takes memory back at any time through
//!   [`Ioas::invalidate`], which returns once no device reaches it.
//! * A container is a fault [`Handler`](crate::iopf::Handler): for devices without PASIDs, for one
//!   PASID (shared virtual addressing: a domain with a process's addresses), or as the second stage
//!   of [`Nested`] address spaces.
//!
//! *Order.* A fault notes the slot's sequence, has the owner populate without any lock held, and
//! claims the granules only if the sequence is still the same; then it maps them, without the lock.
//! Taking back steps the sequence first and waits for the claimed granules. So memory that the
//! owner hands over before it takes it back is never mapped afterwards. While memory is being taken
//! back, faults in its slots wait, for a bounded time.
//!
//! *Failing hardware.* A slot whose memory was taken back and is not quiet remembers the generation
//! of the debt. It opens again once a caller takes it back with success, for which that debt has to
//! be paid, by any caller.
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
pub use error::{
    DomainClaimed, FaultError, InvalidateError, ReadDirtyError, RecoverError, RegionError,
    RemoveError,
};
pub use fill::{Already, FaultRequest, Mapped};
pub use nested::{FirstStage, Guest, Nested};
pub use owner::{Frames, FramesFull, PIECES, Pager, PopulateError, Unreached};
pub use premap::Window;
pub use region::{RegionOptions, Residency};
pub use space::{Ioas, IoasOptions};
