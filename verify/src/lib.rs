//! Naive oracles and the conformance scenarios: what referees the library.
//!
//! * [`oracle`], [`audit`], [`subject`]: what should be mapped, and the comparison with a whole table.
//! * [`faults`]: table memory whose n-th allocation fails.
//! * [`mod@format`]: the formats by name.
//! * [`contract`]: the same questions to every format.
//! * [`backend`]: machines to run those on.
//! * [`command`]: the command line.
//! * [`conformance`]: scenarios for every unit, whoever made it.
//! * [`mappings`]: buffers through the DMA layer, by many CPUs in virtual time.
//! * [`mutate`]: what a driver must not leave out, left out.
//! * [`torture`]: random operations against an adversarial IOMMU, and several CPUs at once.
//!
//! Functions that check panic where the library is wrong, as tests do.
#![deny(unsafe_code)]

pub mod audit;
pub mod backend;
pub mod command;
pub mod conformance;
pub mod contract;
pub mod faults;
pub mod format;
pub mod mappings;
pub mod mutate;
pub mod oracle;
pub mod paging;
pub mod subject;
pub mod torture;
