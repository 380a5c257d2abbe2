//! Identification registers of real chips, as logs and data sheets that were published have them.
//!
//! Each list has one entry for each set of values that behaves differently; a chip that is older, or sold under
//! another name, often has the same. `docs/real-machines.md` says what came of them.

mod amd;
mod smmuv2;
mod smmuv3;
mod vtd;

pub use amd::AMD;
pub use smmuv2::SMMU_V2;
pub use smmuv3::{SMMU_V3, SMMU_V3_OPEN};
pub use vtd::VTD;

/// The identification registers of a chip.
#[derive(Clone, Copy, Debug)]
pub struct RealChip<I> {
    /// What it is in, and which of its units.
    pub name: &'static str,
    /// Where its values were published.
    pub source: &'static str,
    /// The registers.
    pub identification: I,
}
