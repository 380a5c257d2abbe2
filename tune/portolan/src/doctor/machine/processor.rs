//! Maker of a machine's processors.

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

    /// Tells if Linux reads options of x86.
    pub(super) fn is_x86(self) -> bool {
        matches!(self, Self::Intel | Self::Amd | Self::OtherX86)
    }
}
