//! What several tests here share.

pub mod loom_cpus;
