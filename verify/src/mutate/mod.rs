//! Drivers that leave something out, and the scenarios that notice.
//!
//! A [`Mutant`] is an unchanged driver behind a seam that drops or bends what it does: a command as
//! it is submitted, a register as it is written or read, a cache line as it is cleaned. It has to
//! fail the scenarios that it names.

mod edits;
mod list;
mod list_amd;
mod list_riscv;
mod list_smmuv2;
mod registers;

pub use list::MUTANTS;
pub use list_amd::AMD_MUTANTS;
pub use list_riscv::RISCV_MUTANTS;
pub use list_smmuv2::SMMUV2_MUTANTS;
pub use registers::TEGRA_MUTANTS;

use portolan_hw::tegra_smmu::Chip;

use crate::backend::seam::{Sabotage, Seam};
use crate::backend::{Line, amd, riscv, run, smmuv2, smmuv3, tegra, vtd};
use crate::conformance::Outcome;

/// Where a mutant runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// The model's SMMUv2.
    Smmuv2(smmuv2::Kind),
    /// The model's SMMUv2, second stage.
    Smmuv2Stage2,
    /// The model's SMMUv3.
    Smmuv3(smmuv3::Kind),
    /// The model's SMMUv3, second stage.
    Smmuv3Stage2,
    /// The model's SMMUv3, a guest's first stage on a second.
    Smmuv3Nested,
    /// The model's VT-d, second stage.
    Vtd(vtd::Kind),
    /// The model's VT-d, first stage.
    VtdFirst,
    /// The model's AMD-Vi.
    Amd(amd::Kind),
    /// The model's RISC-V IOMMU, first stage; second stage with interrupts.
    Riscv(riscv::Kind),
    /// The model's RISC-V IOMMU, second stage.
    RiscvStage2,
    /// The model's SMMU of a Tegra.
    Tegra(Chip),
    /// QEMU's SMMUv3.
    QemuSmmuv3,
    /// QEMU's VT-d in legacy mode.
    QemuVtd,
    /// QEMU's VT-d in scalable mode, second stage.
    QemuVtdScalable,
}

impl Ground {
    /// Its backend's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smmuv2(smmuv2::Kind::Plain) => "model:smmuv2",
            Self::Smmuv2(smmuv2::Kind::NotCoherent) => "model:smmuv2-not-coherent",
            Self::Smmuv2(smmuv2::Kind::Qualcomm) => "model:smmuv2-qcom",
            Self::Smmuv2Stage2 => "model:smmuv2-stage2",
            Self::Smmuv3(smmuv3::Kind::Plain) => "model:smmuv3",
            Self::Smmuv3(smmuv3::Kind::NotCoherent) => "model:smmuv3-not-coherent",
            Self::Smmuv3(smmuv3::Kind::Mmu700) => "model:smmuv3-mmu700",
            Self::Smmuv3Stage2 => "model:smmuv3-stage2",
            Self::Smmuv3Nested => "model:smmuv3-nested",
            Self::Vtd(vtd::Kind::Plain) => "model:vtd",
            Self::Vtd(vtd::Kind::CachingMode) => "model:vtd-caching-mode",
            Self::Vtd(vtd::Kind::WriteBuffer) => "model:vtd-write-buffer",
            Self::Vtd(vtd::Kind::NotCoherent) => "model:vtd-not-coherent",
            Self::Vtd(vtd::Kind::Registers) => "model:vtd-registers",
            Self::Vtd(vtd::Kind::Scalable) => "model:vtd-scalable",
            Self::VtdFirst => "model:vtd-first-stage",
            Self::Amd(amd::Kind::Plain) => "model:amd",
            Self::Amd(amd::Kind::CachesAbsence) => "model:amd-caches-absence",
            Self::Riscv(riscv::Kind::Plain) => "model:riscv",
            Self::Riscv(riscv::Kind::Extended) => "model:riscv-extended",
            Self::Riscv(riscv::Kind::Interrupts) => "model:riscv-interrupts",
            Self::RiscvStage2 => "model:riscv-stage2",
            Self::Tegra(Chip::Tegra30) => "model:tegra30",
            Self::Tegra(Chip::Tegra114) => "model:tegra114",
            Self::Tegra(Chip::Tegra124) => "model:tegra124",
            Self::Tegra(Chip::Tegra210) => "model:tegra210",
            Self::QemuSmmuv3 => "qemu:smmuv3",
            Self::QemuVtd => "qemu:vtd",
            Self::QemuVtdScalable => "qemu:vtd-scalable",
        }
    }

    /// Runs all scenarios with a sabotaged driver.
    pub fn run(self, sabotage: Sabotage) -> Vec<Line> {
        let seam = Seam::Of(sabotage);
        let quiet = &mut |_: &Line| {};
        match self {
            Self::Smmuv2(kind) => run(|| smmuv2::first_on_model(kind, seam), quiet),
            Self::Smmuv2Stage2 => {
                let kind = smmuv2::Kind::Plain;
                run(|| smmuv2::second_on_model(kind, seam), quiet)
            }
            Self::Smmuv3(kind) => run(|| smmuv3::first_on_model(kind, seam), quiet),
            Self::Smmuv3Stage2 => {
                let kind = smmuv3::Kind::Plain;
                run(|| smmuv3::second_on_model(kind, seam), quiet)
            }
            Self::Smmuv3Nested => run(|| smmuv3::nested_on_model(seam), quiet),
            Self::Vtd(kind) => run(|| vtd::second_on_model(kind, seam), quiet),
            Self::VtdFirst => run(|| vtd::first_on_model(seam), quiet),
            Self::Amd(kind) => run(|| amd::on_model(kind, seam), quiet),
            Self::Riscv(kind @ riscv::Kind::Interrupts) => {
                run(|| riscv::second_on_model(kind, seam), quiet)
            }
            Self::Riscv(kind) => run(|| riscv::first_on_model(kind, seam), quiet),
            Self::RiscvStage2 => {
                let kind = riscv::Kind::Plain;
                run(|| riscv::second_on_model(kind, seam), quiet)
            }
            Self::Tegra(chip) => run(|| tegra::on_model(chip, seam), quiet),
            Self::QemuSmmuv3 => run(|| smmuv3::first_on_qemu(seam), quiet),
            Self::QemuVtd => run(|| vtd::legacy_on_qemu(seam), quiet),
            Self::QemuVtdScalable => run(|| vtd::scalable_on_qemu(seam), quiet),
        }
    }
}

/// One thing left out.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What.
    pub without: &'static str,
    /// Where.
    pub ground: Ground,
    /// How.
    pub sabotage: Sabotage,
    /// Scenarios that have to fail.
    pub noticed_by: &'static [&'static str],
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The scenarios that failed.
    Noticed(Vec<&'static str>),
    /// None failed.
    Survived,
    /// There is no such machine, and why.
    Skipped(String),
}

impl Mutant {
    /// Runs all scenarios.
    pub fn run(&self) -> Fate {
        let lines = self.ground.run(self.sabotage);
        let failed: Vec<_> = lines
            .iter()
            .filter(|line| matches!(line.outcome, Outcome::Fail(_)))
            .map(|line| line.name)
            // Edited commands are not those that the driver counted.
            .filter(|name| *name != crate::backend::COUNTS)
            .collect();
        if !failed.is_empty() {
            return Fate::Noticed(failed);
        }
        let passed = lines.iter().any(|line| line.outcome == Outcome::Pass);
        match lines.into_iter().next().map(|line| line.outcome) {
            Some(Outcome::Skip(why)) if !passed => Fate::Skipped(why),
            _ => Fate::Survived,
        }
    }
}
