//! Account of pinned memory, which passes from process to process.
//!
//! linux/iommufd.h (`IOMMU_IOAS_CHANGE_PROCESS`), as of Linux 7.3. An iommufd outlives the process that opened it, with
//! all that is mapped, where another one has its file: after an exec, or from a socket. The memory stays on the account
//! of the process that mapped it, until another takes it over.

use portolan::iommu::IommuError;
use rustix::io::Errno;
use thiserror::Error;

use super::error::errno;
use super::unit::UserUnit;
use crate::calls::{locked_memory_limit, refused};

/// Reason why this process was not charged. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChargeError {
    /// A mapping of the iommufd is not of a file in memory: it is by an address, which is the other process's, or of a
    /// dma-buf.
    #[error(
        "something is mapped that is no file in memory: it stays with the process that mapped it"
    )]
    NotOfFiles,
    /// A map or an unmap is under way.
    #[error("a map or an unmap is under way, by another thread or another process")]
    Busy,
    /// More would be pinned than the process may lock.
    #[error(
        "the kernel does not pin more memory for this process: RLIMIT_MEMLOCK is {limit} bytes"
    )]
    LockedMemory {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The kernel has no such call, or the unit is not of an iommufd.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

impl ChargeError {
    pub(super) fn of(error: &std::io::Error) -> Self {
        match errno(error) {
            Some(Errno::INVAL) => Self::NotOfFiles,
            Some(Errno::BUSY) => Self::Busy,
            Some(Errno::NOMEM) => Self::LockedMemory { limit: locked_memory_limit() },
            _ => refused(error).into(),
        }
    }
}

impl UserUnit {
    /// Puts all memory that is mapped in the unit's iommufd on the account of this process: for a monitor that executes
    /// itself anew, or hands its devices to another process, and whose mappings stay.
    ///
    /// It is a duty of the process that goes on: until then the memory is on the account of one that may be gone, and
    /// the limit of this one does not count it. Only memory of files can pass
    /// ([`HostMemory::of_file`](crate::memory::HostMemory::of_file)), and all that is mapped has to be such: other
    /// memory is unmapped before. The former process makes no more calls on the iommufd. Memory that a process with
    /// CAP_IPC_LOCK has mapped is on no account.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// See [`ChargeError`].
    pub fn charge(&self) -> Result<(), ChargeError> {
        let iommufd = self.iommufd().ok_or(IommuError::Unsupported)?;
        iommufd.charge().map_err(|error| ChargeError::of(&error))
    }
}

#[cfg(test)]
mod tests;
