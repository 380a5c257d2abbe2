//! Dispatchers whose responder writes down what it sends, on locks that nobody may wait for.

extern crate std;

mod bad;
mod bounded;
mod ended;
mod insists;
mod queued;
mod random;
mod rig;
