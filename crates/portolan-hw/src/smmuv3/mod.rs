//! Arm SMMU architecture v3.
pub mod features;
pub mod spec;
pub mod update;
