//! The CPU's data caches, for devices that do not snoop.
//!
//! *Context.* Interrupt, all methods.

use crate::addr::{PageSize, PhysRange};

/// Maintenance of data caches by physical address.
///
/// *Implementer's duties.* When a call returns, it has taken effect for all CPUs. Lines that a CPU has changed
/// are written back before they are dropped.
pub trait DataCache: Send + Sync {
    /// Writes lines back to memory.
    fn clean(&self, memory: PhysRange);

    /// Drops lines, so that the next read comes from memory.
    fn invalidate(&self, memory: PhysRange);

    /// The longest line of any cache between a CPU and memory. A device that does not snoop and
    /// CPUs must not write in the same one: the line that is written back last would overwrite the
    /// other.
    fn line(&self) -> PageSize;
}
