//! The `portolan` command as a library: traces, machine profiles, replay, reproduction, reports.
//!
//! * [`trace`]: reads DMA traces of Linux and pairs maps with unmaps.
//! * [`record`]: records one, with the machine's [`facts`].
//! * [`replay`]: drives the library against the model with a trace, once per policy.
//! * [`fleet`]: replays many traces, and adds them up.
//! * [`compare`]: puts two replays side by side.
//! * [`linux`]: counts the commands that Linux would have submitted for the same operations.
//! * [`reproduce`]: recomputes published results.
//! * [`scale`]: computes throughput by number of CPUs.
//! * [`synthetic`]: loads that are generated, not recorded.
//! * [`explain`]: reasons for a machine's default policy.
//! * [`firmware`]: reads the tables of a machine's firmware.
//! * [`calibrate`]: prices of a machine, from a latency trace of its kernel.
//! * [`machines`]: lists the machine profiles, and the library's table format for each.
//! * [`report`]: replays, reproductions and curves, as pages to look at.
//! * [`counts`]: numbers that reports count.
//! * [`cli`]: the command line.
#![deny(unsafe_code)]

pub mod advice;
mod buffers;
pub mod calibrate;
pub mod cli;
pub mod compare;
pub mod counts;
mod csv;
pub mod explain;
pub mod facts;
pub mod firmware;
mod fixture;
pub mod fleet;
mod least_squares;
pub mod linux;
pub mod machines;
mod measure;
mod parallel;
pub mod record;
pub mod replay;
pub mod report;
pub mod reproduce;
pub mod scale;
mod smmu_v2_board;
pub mod synthetic;
mod tegra_board;
pub mod trace;
