//! Dispatchers whose responder writes down its responses, on locks for which no caller may wait.

extern crate std;

mod bad;
mod bounded;
mod ended;
mod insists;
mod queued;
mod random;
mod rig;
