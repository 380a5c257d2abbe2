//! Naive oracles and the conformance scenarios: the referees of the library.
//!
//! * [`oracle`], [`audit`], [`subject`]: the expected mappings, and their comparison with a whole table.
//! * [`memory`]: table memory that fails when told, and checks what is given back.
//! * [`mod@format`]: the formats by name.
//! * [`contract`]: the same questions to every format.
//! * [`backend`]: machines to run those on.
//! * [`command`]: the command line.
//! * [`conformance`]: scenarios for every unit, of every vendor.
//! * [`devices`]: devices of this machine to run those on, over the kernel's interfaces.
//! * [`mutate`]: mutants of drivers, each without a part that it needs.
//!
//! Two harnesses do random operations, and make a [`record`] of each run:
//!
//! * [`torture`]: on one table of any format, against the oracle and an adversarial IOMMU.
//! * [`smp`]: by many CPUs in virtual time, on buffers and on memory that devices fault on.
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
pub mod format;
#[cfg(feature = "units")]
pub mod memory;
#[cfg(feature = "units")]
pub mod mutate;
mod nvme;
#[cfg(feature = "units")]
pub mod oracle;
mod promise;
#[cfg(feature = "units")]
pub mod record;
#[cfg(feature = "units")]
pub mod smp;
#[cfg(feature = "units")]
pub mod subject;
#[cfg(feature = "units")]
pub mod torture;
