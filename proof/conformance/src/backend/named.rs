//! Backends by name, as they are written on a command line.

use std::fmt;

use portolan_hw::interrupt::ApicMode;
use portolan_hw::tegra_smmu::Chip;
use portolan_qemu::config::Iommu;

use super::seam::Seam;
use super::vtd::VtdKind;
use super::{amd, riscv, smmuv2, smmuv3, tegra, virtio, vtd};
use crate::conformance::{Line, run};

macro_rules! backends {
    ($($(#[$doc:meta])* $name:ident = $text:literal: $run:expr;)*) => {
        /// A machine that the scenarios can run on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BackendName {$($(#[$doc])* $name,)*}

        impl BackendName {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name.
            pub const fn as_str(self) -> &'static str {
                match self {$(Self::$name => $text,)*}
            }

            /// Runs all scenarios, and tells `progress` of each.
            pub fn run(self, progress: &mut dyn FnMut(&Line)) -> Vec<Line> {
                self.run_behind(Seam::Bare, progress)
            }

            /// Runs the scenarios with a driver behind `seam`, if the backend has one.
            pub fn run_behind(self, seam: Seam, progress: &mut dyn FnMut(&Line)) -> Vec<Line> {
                match self {$(Self::$name => run(|| $run(seam), progress),)*}
            }
        }
    };
}

backends! {
    /// The model's SMMUv2.
    ModelSmmuv2 = "model:smmuv2": |seam| smmuv2::first_on_model(smmuv2::SmmuV2Kind::Plain, seam);
    /// The same, not snooping.
    ModelSmmuv2NotCoherent = "model:smmuv2-not-coherent":
        |seam| smmuv2::first_on_model(smmuv2::SmmuV2Kind::NotCoherent, seam);
    /// The model's SMMUv2, second stage.
    ModelSmmuv2Stage2 = "model:smmuv2-stage2":
        |seam| smmuv2::second_on_model(smmuv2::SmmuV2Kind::Plain, seam);
    /// The model's SMMUv2 as Qualcomm builds it.
    ModelSmmuv2Qcom = "model:smmuv2-qcom":
        |seam| smmuv2::first_on_model(smmuv2::SmmuV2Kind::Qualcomm, seam);
    /// The model's SMMUv3.
    ModelSmmuv3 = "model:smmuv3": |seam| smmuv3::first_on_model(smmuv3::SmmuV3Kind::Plain, seam);
    /// The same, not snooping.
    ModelSmmuv3NotCoherent = "model:smmuv3-not-coherent":
        |seam| smmuv3::first_on_model(smmuv3::SmmuV3Kind::NotCoherent, seam);
    /// The same as an MMU-700 with its errata.
    ModelSmmuv3Mmu700 = "model:smmuv3-mmu700": |seam| smmuv3::first_on_model(smmuv3::SmmuV3Kind::Mmu700, seam);
    /// The same with enhanced command queues.
    ModelSmmuv3EnhancedQueues = "model:smmuv3-enhanced-queues":
        |seam| smmuv3::first_on_model(smmuv3::SmmuV3Kind::EnhancedQueues, seam);
    /// The model's SMMUv3, second stage.
    ModelSmmuv3Stage2 = "model:smmuv3-stage2":
        |seam| smmuv3::second_on_model(smmuv3::SmmuV3Kind::Plain, seam);
    /// The same, with a guest's first stage on top.
    ModelSmmuv3Nested = "model:smmuv3-nested": smmuv3::nested_on_model;
    /// The model's VT-d in legacy mode.
    ModelVtd = "model:vtd": |seam| vtd::second_on_model(VtdKind::Plain, seam);
    /// The same, caching absence.
    ModelVtdCachingMode = "model:vtd-caching-mode": |seam| vtd::second_on_model(VtdKind::CachingMode, seam);
    /// The same, with a write buffer.
    ModelVtdWriteBuffer = "model:vtd-write-buffer": |seam| vtd::second_on_model(VtdKind::WriteBuffer, seam);
    /// The same, not snooping.
    ModelVtdNotCoherent = "model:vtd-not-coherent": |seam| vtd::second_on_model(VtdKind::NotCoherent, seam);
    /// The same, invalidated through registers.
    ModelVtdRegisters = "model:vtd-registers": |seam| vtd::second_on_model(VtdKind::Registers, seam);
    /// The model's VT-d in scalable mode, second stage.
    ModelVtdScalable = "model:vtd-scalable": |seam| vtd::second_on_model(VtdKind::Scalable, seam);
    /// The model's VT-d in scalable mode, first stage.
    ModelVtdFirstStage = "model:vtd-first-stage": vtd::first_on_model;
    /// The model's AMD-Vi.
    ModelAmd = "model:amd": |seam| amd::on_model(amd::AmdKind::Plain, seam);
    /// The same, caching absence.
    ModelAmdCachesAbsence = "model:amd-caches-absence":
        |seam| amd::on_model(amd::AmdKind::CachesAbsence, seam);
    /// The same with interrupts for CPUs with identifiers of 32 bits.
    ModelAmdX2Apic = "model:amd-x2apic": |seam| amd::on_model(amd::AmdKind::X2Apic, seam);
    /// The same unit as [`BackendName::ModelAmd`], with guest tables.
    ModelAmdGuest = "model:amd-guest": |seam| amd::guests_on_model(amd::AmdKind::Guests, seam);
    /// The same, caching absence.
    ModelAmdGuestCachesAbsence = "model:amd-guest-caches-absence":
        |seam| amd::guests_on_model(amd::AmdKind::GuestsCacheAbsence, seam);
    /// The same unit as [`BackendName::ModelAmd`], with a guest's tables over each domain.
    ModelAmdNested = "model:amd-nested": |seam| amd::nested_on_model(amd::AmdKind::Nested, seam);
    /// The same, caching absence.
    ModelAmdNestedCachesAbsence = "model:amd-nested-caches-absence":
        |seam| amd::nested_on_model(amd::AmdKind::NestedCachesAbsence, seam);
    /// The model's RISC-V IOMMU, first stage.
    ModelRiscv = "model:riscv": |seam| riscv::first_on_model(riscv::RiscvKind::Plain, seam);
    /// The same with contexts in extended format, ranges, and entries above the leaves.
    ModelRiscvExtended = "model:riscv-extended":
        |seam| riscv::first_on_model(riscv::RiscvKind::Extended, seam);
    /// The model's RISC-V IOMMU, second stage.
    ModelRiscvStage2 = "model:riscv-stage2": |seam| riscv::second_on_model(riscv::RiscvKind::Plain, seam);
    /// The same with contexts in extended format, and interrupts through MSI page tables.
    ModelRiscvInterrupts = "model:riscv-interrupts":
        |seam| riscv::second_on_model(riscv::RiscvKind::Interrupts, seam);
    /// The model's SMMU of a Tegra 3.
    ModelTegra30 = "model:tegra30": |seam| tegra::on_model(Chip::Tegra30, seam);
    /// The same of a Tegra 4.
    ModelTegra114 = "model:tegra114": |seam| tegra::on_model(Chip::Tegra114, seam);
    /// The same of a Tegra K1.
    ModelTegra124 = "model:tegra124": |seam| tegra::on_model(Chip::Tegra124, seam);
    /// The same of a Tegra X1.
    ModelTegra210 = "model:tegra210": |seam| tegra::on_model(Chip::Tegra210, seam);
    /// QEMU's SMMUv3.
    QemuSmmuv3 = "qemu:smmuv3": smmuv3::first_on_qemu;
    /// The same, second stage, which takes version 10.0.
    QemuSmmuv3Stage2 = "qemu:smmuv3-stage2": smmuv3::second_on_qemu;
    /// The same, with a guest's first stage on top.
    QemuSmmuv3Nested = "qemu:smmuv3-nested": smmuv3::nested_on_qemu;
    /// QEMU's VT-d in legacy mode, caching mode on.
    QemuVtd = "qemu:vtd": vtd::legacy_on_qemu;
    /// QEMU's VT-d in scalable mode, second stage.
    QemuVtdScalable = "qemu:vtd-scalable": vtd::scalable_on_qemu;
    /// QEMU's VT-d in scalable mode, first stage.
    QemuVtdFirstStage = "qemu:vtd-first-stage": vtd::first_on_qemu;
    /// QEMU's AMD-Vi.
    QemuAmd = "qemu:amd": |_| amd::on_qemu(ApicMode::XApic);
    /// The same with interrupts for CPUs with identifiers of 32 bits, which takes version 10.0.
    QemuAmdX2Apic = "qemu:amd-x2apic": |_| amd::on_qemu(ApicMode::X2Apic);
    /// QEMU's RISC-V IOMMU as a platform device, first stage. This and the next two take version 10.0.
    QemuRiscv = "qemu:riscv": |_| riscv::first_on_qemu(Iommu::Riscv);
    /// The same as a PCI function.
    QemuRiscvPci = "qemu:riscv-pci": |_| riscv::first_on_qemu(Iommu::RiscvPci);
    /// The same, second stage.
    QemuRiscvStage2 = "qemu:riscv-stage2": |_| riscv::second_on_qemu();
    /// QEMU's virtio-iommu.
    QemuVirtio = "qemu:virtio-iommu": |_| virtio::on_qemu();
}

impl BackendName {
    /// The backend with this name.
    pub fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.as_str() == name)
    }

    /// Backends whose names begin with `kind` and a colon: `model`, which needs nothing installed, or `qemu`.
    pub fn of_kind(kind: &str) -> Vec<Self> {
        let all = Self::ALL.iter().copied();
        let fits = |one: &Self| one.as_str().split_once(':').map(|(of, _)| of) == Some(kind);
        all.filter(fits).collect()
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
