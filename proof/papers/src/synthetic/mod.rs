//! Loads that are made up from descriptions, not recorded.
//!
//! [`camera`]: buffers of a camera on a board with Tegra's SMMU or Qualcomm's.

pub mod camera;
mod text;
mod waits;

pub(crate) use text::answer;
pub use text::{COLUMNS_IN_WORDS, text};
pub use waits::Waits;

use clap::ValueEnum;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SyntheticLoad {
    /// 100 MB/s of 4 MiB buffers, each mapped, filled and unmapped, on a Tegra or a SM8150.
    Camera,
}

impl SyntheticLoad {
    /// The machine that it runs on if none is named.
    pub const fn machine(self) -> &'static str {
        match self {
            Self::Camera => camera::MACHINE,
        }
    }
}
