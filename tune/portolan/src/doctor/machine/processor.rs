//! Maker of a machine's processors.

use crate::doctor::Files;
use crate::facts::{Facts, IommuKind};

/// Maker of the processors, as far as IOMMUs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processor {
    /// Intel's.
    Intel,
    /// AMD's or Hygon's.
    Amd,
    /// Another one of x86.
    OtherX86,
    /// Arm's architecture.
    Arm,
    /// RISC-V.
    RiscV,
    /// Another architecture.
    Other,
    /// Not known.
    Unknown,
}

impl Processor {
    pub(super) fn of(cpuinfo: &str) -> Self {
        for line in cpuinfo.lines().take(256) {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            match (key.trim(), value.trim()) {
                ("vendor_id", "GenuineIntel") => return Self::Intel,
                ("vendor_id", "AuthenticAMD" | "HygonGenuine") => return Self::Amd,
                ("vendor_id", "IBM/S390") => return Self::Other,
                ("vendor_id", _) => return Self::OtherX86,
                ("CPU implementer", _) => return Self::Arm,
                ("isa" | "mmu" | "uarch", _) => return Self::RiscV,
                ("cpu", _) => return Self::Other,
                _ => {}
            }
        }
        Self::Unknown
    }

    /// The maker whose IOMMU the machine has: a virtual machine may have one maker's processor and the other's IOMMU.
    pub(super) fn behind(self, facts: &Facts, files: &Files) -> Self {
        if !self.is_x86() && self != Self::Unknown {
            return self;
        }
        let tables = files.names("sys/firmware/acpi/tables").found().unwrap_or_default();
        let table = |name: &str| tables.iter().any(|table| table == name);
        let unit = |kind| facts.iommus.iter().any(|unit| unit.kind == kind);
        match (unit(IommuKind::Vtd), unit(IommuKind::AmdVi)) {
            (true, false) => Self::Intel,
            (false, true) => Self::Amd,
            _ => match (table("DMAR"), table("IVRS")) {
                (true, false) => Self::Intel,
                (false, true) => Self::Amd,
                _ => self,
            },
        }
    }

    /// Tells if Linux reads options of x86.
    pub(super) fn is_x86(self) -> bool {
        matches!(self, Self::Intel | Self::Amd | Self::OtherX86)
    }
}
