//! Common code of several tests here.

pub mod broken_words;
pub mod loom_cpus;
