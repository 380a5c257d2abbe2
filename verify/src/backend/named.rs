//! Backends by name, as they are written on a command line.

use std::fmt;
use std::str::FromStr;

use portolan_hw::tegra_smmu::Chip;
use portolan_qemu::config::Iommu;

use super::seam::Seam;
use super::vtd::Kind;
use super::{Line, amd, riscv, run, smmuv2, smmuv3, tegra, virtio, vtd};

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
                match self {$(Self::$name => run($run, progress),)*}
            }
        }
    };
}

backends! {
    /// The model's SMMUv2.
    ModelSmmuv2 = "model:smmuv2": || smmuv2::first_on_model(smmuv2::Kind::Plain, Seam::Bare);
    /// The same, not snooping.
    ModelSmmuv2NotCoherent = "model:smmuv2-not-coherent":
        || smmuv2::first_on_model(smmuv2::Kind::NotCoherent, Seam::Bare);
    /// The model's SMMUv2, second stage.
    ModelSmmuv2Stage2 = "model:smmuv2-stage2":
        || smmuv2::second_on_model(smmuv2::Kind::Plain, Seam::Bare);
    /// The model's SMMUv2 as Qualcomm builds it.
    ModelSmmuv2Qcom = "model:smmuv2-qcom":
        || smmuv2::first_on_model(smmuv2::Kind::Qualcomm, Seam::Bare);
    /// The model's SMMUv3.
    ModelSmmuv3 = "model:smmuv3": || smmuv3::first_on_model(smmuv3::Kind::Plain, Seam::Bare);
    /// The same, not snooping.
    ModelSmmuv3NotCoherent = "model:smmuv3-not-coherent":
        || smmuv3::first_on_model(smmuv3::Kind::NotCoherent, Seam::Bare);
    /// The same as an MMU-700 with its errata.
    ModelSmmuv3Mmu700 = "model:smmuv3-mmu700": || smmuv3::first_on_model(smmuv3::Kind::Mmu700, Seam::Bare);
    /// The model's SMMUv3, second stage.
    ModelSmmuv3Stage2 = "model:smmuv3-stage2":
        || smmuv3::second_on_model(smmuv3::Kind::Plain, Seam::Bare);
    /// The same, with a guest's first stage on top.
    ModelSmmuv3Nested = "model:smmuv3-nested": || smmuv3::nested_on_model(Seam::Bare);
    /// The model's VT-d in legacy mode.
    ModelVtd = "model:vtd": || vtd::second_on_model(Kind::Plain, Seam::Bare);
    /// The same, caching absence.
    ModelVtdCachingMode = "model:vtd-caching-mode": || vtd::second_on_model(Kind::CachingMode, Seam::Bare);
    /// The same, with a write buffer.
    ModelVtdWriteBuffer = "model:vtd-write-buffer": || vtd::second_on_model(Kind::WriteBuffer, Seam::Bare);
    /// The same, not snooping.
    ModelVtdNotCoherent = "model:vtd-not-coherent": || vtd::second_on_model(Kind::NotCoherent, Seam::Bare);
    /// The same, invalidated through registers.
    ModelVtdRegisters = "model:vtd-registers": || vtd::second_on_model(Kind::Registers, Seam::Bare);
    /// The model's VT-d in scalable mode, second stage.
    ModelVtdScalable = "model:vtd-scalable": || vtd::second_on_model(Kind::Scalable, Seam::Bare);
    /// The model's VT-d in scalable mode, first stage.
    ModelVtdFirstStage = "model:vtd-first-stage": || vtd::first_on_model(Seam::Bare);
    /// The model's AMD-Vi.
    ModelAmd = "model:amd": || amd::on_model(amd::Kind::Plain, Seam::Bare);
    /// The same, caching absence.
    ModelAmdCachesAbsence = "model:amd-caches-absence":
        || amd::on_model(amd::Kind::CachesAbsence, Seam::Bare);
    /// The model's RISC-V IOMMU, first stage.
    ModelRiscv = "model:riscv": || riscv::first_on_model(riscv::Kind::Plain, Seam::Bare);
    /// The same with contexts in extended format, ranges, and entries above the leaves.
    ModelRiscvExtended = "model:riscv-extended":
        || riscv::first_on_model(riscv::Kind::Extended, Seam::Bare);
    /// The model's RISC-V IOMMU, second stage.
    ModelRiscvStage2 = "model:riscv-stage2": || riscv::second_on_model(riscv::Kind::Plain, Seam::Bare);
    /// The same with contexts in extended format, and interrupts through MSI page tables.
    ModelRiscvInterrupts = "model:riscv-interrupts":
        || riscv::second_on_model(riscv::Kind::Interrupts, Seam::Bare);
    /// The model's SMMU of a Tegra 3.
    ModelTegra30 = "model:tegra30": || tegra::on_model(Chip::Tegra30, Seam::Bare);
    /// The same of a Tegra 4.
    ModelTegra114 = "model:tegra114": || tegra::on_model(Chip::Tegra114, Seam::Bare);
    /// The same of a Tegra K1.
    ModelTegra124 = "model:tegra124": || tegra::on_model(Chip::Tegra124, Seam::Bare);
    /// The same of a Tegra X1.
    ModelTegra210 = "model:tegra210": || tegra::on_model(Chip::Tegra210, Seam::Bare);
    /// QEMU's SMMUv3.
    QemuSmmuv3 = "qemu:smmuv3": || smmuv3::first_on_qemu(Seam::Bare);
    /// The same, second stage, which takes version 10.0.
    QemuSmmuv3Stage2 = "qemu:smmuv3-stage2": || smmuv3::second_on_qemu(Seam::Bare);
    /// The same, with a guest's first stage on top.
    QemuSmmuv3Nested = "qemu:smmuv3-nested": || smmuv3::nested_on_qemu(Seam::Bare);
    /// QEMU's VT-d in legacy mode, caching mode on.
    QemuVtd = "qemu:vtd": || vtd::legacy_on_qemu(Seam::Bare);
    /// QEMU's VT-d in scalable mode, second stage.
    QemuVtdScalable = "qemu:vtd-scalable": || vtd::scalable_on_qemu(Seam::Bare);
    /// QEMU's VT-d in scalable mode, first stage.
    QemuVtdFirstStage = "qemu:vtd-first-stage": || vtd::first_on_qemu(Seam::Bare);
    /// QEMU's AMD-Vi.
    QemuAmd = "qemu:amd": amd::on_qemu;
    /// QEMU's RISC-V IOMMU as a platform device, first stage. This and the next two take version 10.0.
    QemuRiscv = "qemu:riscv": || riscv::first_on_qemu(Iommu::Riscv);
    /// The same as a PCI function.
    QemuRiscvPci = "qemu:riscv-pci": || riscv::first_on_qemu(Iommu::RiscvPci);
    /// The same, second stage.
    QemuRiscvStage2 = "qemu:riscv-stage2": riscv::second_on_qemu;
    /// QEMU's virtio-iommu.
    QemuVirtio = "qemu:virtio-iommu": virtio::on_qemu;
}

impl BackendName {
    /// Those whose names begin with `kind` and a colon: `model`, which needs nothing installed, or
    /// `qemu`.
    fn of_kind(kind: &str) -> Vec<Self> {
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

/// Not the name of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchBackend(String);

impl fmt::Display for NoSuchBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = BackendName::ALL.iter().map(|one| one.as_str()).collect();
        write!(
            f,
            "no backend is called {:?}; there are model, qemu, {}",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for NoSuchBackend {}

impl FromStr for BackendName {
    type Err = NoSuchBackend;

    fn from_str(name: &str) -> Result<Self, NoSuchBackend> {
        let found = Self::ALL.iter().copied().find(|one| one.as_str() == name);
        found.ok_or_else(|| NoSuchBackend(name.to_owned()))
    }
}

/// One backend, or `model` or `qemu` for all of the model's or of QEMU's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendGroup {
    /// As it was asked for.
    pub name: String,
    /// Which that is.
    pub members: Vec<BackendName>,
}

impl BackendGroup {
    /// All of the model's.
    pub fn models() -> Self {
        Self {
            name: "model".to_owned(),
            members: BackendName::of_kind("model"),
        }
    }
}

impl FromStr for BackendGroup {
    type Err = NoSuchBackend;

    fn from_str(name: &str) -> Result<Self, NoSuchBackend> {
        match name {
            "model" => Ok(Self::models()),
            "qemu" => Ok(Self {
                name: name.to_owned(),
                members: BackendName::of_kind(name),
            }),
            one => Ok(Self {
                name: name.to_owned(),
                members: vec![one.parse()?],
            }),
        }
    }
}
