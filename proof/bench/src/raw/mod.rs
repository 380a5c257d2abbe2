//! Code that the compiler cannot check: buffers without an owner, instructions that write cache lines
//! back, and calls into Linux's code and into objects of our own.
//!
//! The only module of the crate in which `unsafe` is allowed.
#![allow(unsafe_code)]

mod buffers;
mod cpus;
mod generic_pt;
mod heap;
mod lines;
mod linux;
mod no_sse;
mod process;
mod viommu;

pub(crate) use buffers::{Scattered, no_device, promised, unowned};
pub(crate) use generic_pt::{GenericPt, LinuxFormat, LinuxTables};
pub(crate) use heap::heap_in_use;
pub(crate) use lines::{WrittenBack, barrier, write_back_words as write_back};
pub(crate) use linux::{Bounced, Domain, Linux, LinuxDomainKind, List, OnCpu, SharedDomain, Space};
pub(crate) use no_sse::ObjectRow;
pub(crate) use process::{Tables, tables};
pub(crate) use viommu::{Endpoint, May, Unit};
