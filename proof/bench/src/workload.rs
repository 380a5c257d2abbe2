//! Scenarios: an operation, and the preparation that it needs before it can be repeated.

use std::time::Instant;

use portolan::iommu::{DomainError, DomainUnmapError};
use portolan::platform::OutOfTableMemory;
use portolan::table::format::Armv8ConfigError;
use portolan::table::{TableMapError, TableUnmapError};
use thiserror::Error;

/// An operation that is measured.
pub trait Workload {
    /// Number of units (pages, operations) that one [`Workload::run`] does.
    fn units(&self) -> u64;

    /// Brings about the state that the operation starts from. Not measured.
    ///
    /// # Errors
    /// If the library refuses.
    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The operation.
    ///
    /// # Errors
    /// If the library refuses.
    fn run(&mut self) -> Result<(), Failure>;

    /// Runs the operation and times it: nanoseconds of wall time, or of processor time with several threads, so that
    /// a busy machine does not distort the figure.
    ///
    /// # Errors
    /// If the library refuses.
    fn run_timed(&mut self) -> Result<f64, Failure> {
        let start = Instant::now();
        self.run()?;
        Ok(start.elapsed().as_nanos() as f64)
    }
}

/// State of the processor's caches when an operation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Caches as the preparation leaves them.
    Hot,
    /// Filled with other data.
    Cold,
}

/// The library refused a scenario.
#[derive(Clone, Copy, Debug, Error)]
pub enum Failure {
    /// Failed map.
    #[error(transparent)]
    Map(#[from] TableMapError),
    /// Failed map through a domain.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// Marks of pages that are not those that were set.
    #[error("the marks are not those that were set")]
    Marks,
    /// Failed unmap.
    #[error(transparent)]
    Unmap(#[from] TableUnmapError),
    /// Failed unmap through a domain.
    #[error(transparent)]
    DomainUnmapError(#[from] DomainUnmapError),
    /// Not enough table memory.
    #[error(transparent)]
    Memory(#[from] OutOfTableMemory),
    /// Format that cannot be made.
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
    /// Linux's code is not here.
    #[error("{0}")]
    NoLinux(&'static str),
    /// Linux's code is here and cannot be used.
    #[error("no figures beside Linux's code: {0}")]
    BrokenLinux(&'static str),
    /// A call of Linux's code failed, or it warned.
    #[error("Linux's code refused, or warned")]
    Linux,
    /// The operation was run twice without being prepared.
    #[error("the operation was not prepared")]
    NotPrepared,
}
