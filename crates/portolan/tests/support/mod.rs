//! What several tests here share.

pub mod broken_words;
pub mod loom_cpus;
