//! What every scenario is made of: an operation, and what has to be done before it can be repeated.

use portolan::iommu::DomainError;
use portolan::platform::OutOfTableMemory;
use portolan::table::format::Armv8ConfigError;
use portolan::table::{MapError, UnmapError};
use thiserror::Error;

/// An operation that is measured.
pub trait Workload {
    /// How many units (pages, operations) one [`Workload::run`] does.
    fn units(&self) -> u64;

    /// Brings about the state that the operation starts from. Not measured.
    ///
    /// # Errors
    /// If the library refuses.
    fn prepare(&mut self) -> Result<(), Failure>;

    /// The operation.
    ///
    /// # Errors
    /// If the library refuses.
    fn run(&mut self) -> Result<(), Failure>;
}

/// State of the processor's caches when an operation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// As the preparation leaves them.
    Hot,
    /// Filled with other data.
    Cold,
}

/// The library refused what a scenario asked for.
#[derive(Clone, Copy, Debug, Error)]
pub enum Failure {
    /// Of a map.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Of a map through a domain.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// Of an unmap.
    #[error(transparent)]
    Unmap(#[from] UnmapError),
    /// Of table memory.
    #[error(transparent)]
    Memory(#[from] OutOfTableMemory),
    /// Of a format.
    #[error(transparent)]
    Format(#[from] Armv8ConfigError),
    /// The invalidation queue of the scenario failed.
    #[error("the invalidation queue failed")]
    Queue,
    /// The allocator of addresses had none, or ended.
    #[error("the allocator had no addresses")]
    Addresses,
    /// The system had no memory.
    #[error("the system had no memory")]
    HostMemory,
    /// The operation was run twice without being prepared.
    #[error("the operation was not prepared")]
    NotPrepared,
}
