//! One fault as a line of the log has it.

use std::fmt;

use portolan::addr::PciFunction;
use portolan::iommu::{FaultReason, InterruptRefusal};

use super::lines::Stamp;
use crate::facts::IommuKind;

/// The unit that refused an access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Its driver.
    pub(super) kind: IommuKind,
    /// The kernel's name for it; empty if the line has none.
    pub(super) name: String,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            IommuKind::Vtd => "Intel VT-d",
            IommuKind::AmdVi => "AMD-Vi",
            IommuKind::SmmuV3 => "Arm SMMUv3",
            IommuKind::SmmuV2 => "Arm SMMU",
            IommuKind::RiscV => "RISC-V IOMMU",
            IommuKind::VirtioIommu => "virtio-iommu",
            IommuKind::TegraSmmu => "Tegra SMMU",
            IommuKind::Other => "IOMMU",
        })?;
        match self.name.as_str() {
            "" => Ok(()),
            name => write!(f, " {name}"),
        }
    }
}

/// Sender of the refused request, as the unit names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sender {
    /// A PCI function.
    Pci {
        /// The function, of segment 0 if the line has no segment.
        function: PciFunction,
        /// True if the line has the segment.
        has_segment: bool,
    },
    /// A device that the kernel names.
    Named(String),
    /// A stream of an SMMU or a RISC-V unit.
    Stream(u32),
    /// An endpoint of a virtual IOMMU.
    Endpoint(u32),
    /// An unknown stream of a context bank of an SMMU.
    Bank(u32),
    /// None: the unit itself is in trouble.
    Unit,
    /// The line does not tell.
    Unknown,
}

impl Sender {
    /// The PCI function, if it is one.
    pub(super) fn function(&self) -> Option<PciFunction> {
        match self {
            Self::Pci { function, .. } => Some(*function),
            Self::Named(name) => name.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci { function, has_segment: true } => write!(f, "{function}"),
            Self::Pci { function, has_segment: false } => {
                let full = function.to_string();
                f.write_str(full.split_once(':').map_or(full.as_str(), |(_, short)| short))
            }
            Self::Named(name) => f.write_str(name),
            Self::Stream(stream) => write!(f, "stream {stream:#x}"),
            Self::Endpoint(endpoint) => write!(f, "endpoint {endpoint}"),
            Self::Bank(bank) => write!(f, "context bank {bank}"),
            Self::Unit => f.write_str("the IOMMU itself"),
            Self::Unknown => f.write_str("an unknown device"),
        }
    }
}

/// Request of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Attempt {
    Read,
    Write,
    Execute,
    Interrupt,
}

impl Attempt {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "execute",
            Self::Interrupt => "interrupt",
        }
    }
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The request was refused for this reason.
    Refused(FaultReason),
    /// It was refused: nothing is mapped there, or not for this kind of access; the unit has one code for the two.
    AbsentOrForbidden,
    /// The device sent a request that it may not send, or to a range that no tables cover.
    BadRequest,
    /// The device did not answer when its own cache of addresses was to be emptied.
    Silent,
    /// The unit did not finish its commands in time.
    Stuck,
    /// The unit refused a command, or could not read it.
    BadCommand,
    /// The unit does not tell.
    Untold,
}

impl Kind {
    /// Words for people.
    pub(super) fn words(self) -> String {
        match self {
            Self::Refused(FaultReason::Permission) => {
                "the memory is mapped, but not for this kind of access".to_owned()
            }
            Self::Refused(FaultReason::Blocked) => {
                "the IOMMU lets nothing of this sender through".to_owned()
            }
            Self::Refused(FaultReason::Interrupt { index, refusal }) => {
                let entry =
                    index.map_or_else(String::new, |index| format!(" for entry {index:#x}"));
                let refusal = match refusal {
                    InterruptRefusal::NotRemapped => {
                        "it has the old format, which is blocked".to_owned()
                    }
                    other => other.to_string(),
                };
                format!("the interrupt{entry} is not let through: {refusal}")
            }
            Self::Refused(reason) => reason.to_string(),
            Self::AbsentOrForbidden => {
                "nothing is mapped there, or not for this kind of access".to_owned()
            }
            Self::BadRequest => "the device may not send such a request".to_owned(),
            Self::Silent => "the device does not answer the IOMMU".to_owned(),
            Self::Stuck => "the IOMMU does not finish its commands".to_owned(),
            Self::BadCommand => "the IOMMU refuses a command of the kernel".to_owned(),
            Self::Untold => "the IOMMU does not tell the reason".to_owned(),
        }
    }
}

/// A fault in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) unit: Unit,
    pub(super) sender: Sender,
    pub(super) attempt: Option<Attempt>,
    pub(super) kind: Kind,
    pub(super) address: Option<u64>,
    pub(super) pasid: Option<u32>,
    /// The driver, if the line has it.
    pub(super) driver: Option<String>,
    pub(super) stamp: Stamp,
    /// Number of the line.
    pub(super) line: u64,
}
