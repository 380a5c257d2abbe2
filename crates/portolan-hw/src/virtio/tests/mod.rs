//! The driver on a device that answers as it is told to, and remembers what it was asked.

mod domain;
mod kit;
mod settle;
mod unit;
