//! Identification registers of real chips, as logs and data sheets that were published have them.
//!
//! Each list has one entry for each set of values that behaves differently; a chip that is older, or sold under
//! another name, often has the same. `docs/real-machines.md` says what came of them. Without an identification
//! of its own, a unit of the model is the narrowest of its list: a test that needs more names its chip.

mod amd;
mod riscv;
mod smmuv2;
mod smmuv3;
mod vtd;

pub use amd::{AMD, AMD_990FX, RAVEN_RIDGE, ROME};
pub use riscv::{RISCV, ZERO_DAY};
pub use smmuv2::{LS1088A, MSM8998_MULTIMEDIA, SMMU_V2, SMMU_V2_OPEN};
pub use smmuv3::{SMMU_V3, SMMU_V3_OPEN, THUNDER_X2};
pub use vtd::{ARRANDALE_GRAPHICS, SKYLAKE_SP, VTD};

/// The identification registers of a chip.
#[derive(Clone, Copy, Debug)]
pub struct RealChip<I> {
    /// Chip or machine, and unit of it.
    pub name: &'static str,
    /// Address at which its values were published.
    pub source: &'static str,
    /// The registers.
    pub identification: I,
}

/// Variants of the words in which open fields are filled, each by its register: none, each alone, all.
pub fn filled<const N: usize>(words: [u32; N], open: &[(usize, u32)]) -> Vec<[u32; N]> {
    let with = |fields: &[(usize, u32)]| {
        let mut filled = words;
        for (register, field) in fields {
            if let Some(word) = filled.get_mut(*register) {
                *word |= field;
            }
        }
        filled
    };
    let each = open.iter().map(|one| with(std::slice::from_ref(one)));
    each.chain([with(&[]), with(open)]).collect()
}
