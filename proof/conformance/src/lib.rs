//! Naive oracles and the conformance scenarios: the referees of the library.
//!
//! * [`oracle`], [`audit`], [`subject`]: the expected mappings, and their comparison with a whole table.
//! * [`faults`]: table memory whose n-th allocation fails.
//! * [`mod@format`]: the formats by name.
//! * [`contract`]: the same questions to every format.
//! * [`backend`]: machines to run those on.
//! * [`command`]: the command line.
//! * [`conformance`]: scenarios for every unit, of every vendor.
//! * [`devices`]: devices of this machine to run those on, over the kernel's interfaces.
//! * [`mappings`]: buffers through the DMA layer, by many CPUs in virtual time.
//! * [`mutate`]: mutants of drivers, each without a part that it needs.
//! * [`torture`]: random operations against an adversarial IOMMU, and several CPUs at once.
//!
//! Without the feature `units` there are the scenarios and [`devices`] alone.
//!
//! Functions that check panic where the library is wrong, as tests do.
#![deny(unsafe_code)]

#[cfg(feature = "units")]
pub mod audit;
#[cfg(feature = "units")]
pub mod backend;
pub mod command;
pub mod conformance;
#[cfg(feature = "units")]
pub mod contract;
pub mod devices;
#[cfg(feature = "units")]
pub mod faults;
#[cfg(feature = "units")]
pub mod format;
#[cfg(feature = "units")]
pub mod mappings;
#[cfg(feature = "units")]
pub mod mutate;
mod nvme;
#[cfg(feature = "units")]
pub mod oracle;
#[cfg(feature = "units")]
pub mod paging;
mod promise;
#[cfg(feature = "units")]
pub mod subject;
#[cfg(feature = "units")]
pub mod torture;
