//! The `portolan-papers` command as a library: published results, computed again from the library's code on models of
//! the hardware.
//!
//! * [`reproduce`]: recomputes published tables row by row.
//! * [`scale`]: computes throughput by number of CPUs.
//! * [`synthetic`]: loads that are generated, not recorded.
//! * [`report`]: these results, as pages to look at.
//! * [`cli`]: the command line.
//!
//! Traces, machine profiles and the fixture in virtual time are those of `portolan-tune`.
#![deny(unsafe_code)]

mod buffers;
pub mod cli;
mod csv;
mod measure;
pub mod report;
pub mod reproduce;
pub mod scale;
mod smmu_v2_board;
pub mod synthetic;
mod tegra_board;
