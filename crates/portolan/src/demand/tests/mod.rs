//! Containers over real tables, with an owner and hardware that do as the tests say.

extern crate std;

mod dirty;
mod failures;
mod faults;
mod nested;
mod pinned;
mod premapping;
mod reclaimed;
mod rig;
mod taken_back;
