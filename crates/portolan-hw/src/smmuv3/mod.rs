//! Arm SMMU architecture v3.
pub mod command;
pub mod context;
pub mod features;
mod machine;
#[cfg(test)]
mod mock;
mod queue;
pub mod spec;
pub mod update;
