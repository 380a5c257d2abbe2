//! The `portolan` command as a library: traces, machine profiles, replay, reports.
//!
//! * [`trace`]: reads DMA traces of Linux and pairs maps with unmaps.
//! * [`record`]: records one, with the machine's [`facts`].
//! * [`replay`]: drives the library against the model with a trace, once per policy.
//! * [`top`]: shows what each device does at the moment.
//! * [`fleet`]: replays many traces, and adds them up.
//! * [`compare`]: puts two replays side by side.
//! * [`linux`]: counts the commands that Linux would have submitted for the same operations.
//! * [`explain`]: reasons for a machine's default policy.
//! * [`firmware`]: reads the tables of a machine's firmware.
//! * [`calibrate`]: prices of a machine, from a latency trace of its kernel.
//! * [`machines`]: lists the machine profiles, and the library's table format for each.
//! * [`report`]: replays, comparisons and calibrations, as pages to look at.
//! * [`counts`]: numbers that reports count.
//! * [`doctor`]: answers about a Linux machine, by its [`files`].
//! * [`cli`]: the command line.
//!
//! `portolan-papers` uses some modules that no other crate should: [`fixture`], [`buffers`], [`least_squares`],
//! [`parallel`], and the arguments that the two commands share in [`cli`].
#![deny(unsafe_code)]

pub mod advice;
pub mod buffers;
pub mod calibrate;
pub mod cli;
pub mod compare;
pub mod counts;
pub mod doctor;
pub mod explain;
pub mod facts;
pub mod files;
pub mod firmware;
pub mod fixture;
pub mod fleet;
pub mod least_squares;
pub mod linux;
pub mod machines;
pub mod parallel;
pub mod record;
pub mod replay;
pub mod report;
pub mod top;
pub mod trace;
