//! The driver on a device that answers as it is told to, and remembers its requests.

mod domain;
mod kit;
mod settle;
mod suspend;
mod unit;
