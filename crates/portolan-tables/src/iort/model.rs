//! Implementations of SMMUs of version 1 and 2, as the table tells them apart.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, section 3.1.1.2 (field "Model").
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use crate::sdt::Maker;

/// Implementation of an SMMU of version 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SmmuModel {
    /// As the architecture says: generic units, MMU-400 and MMU-401. Their registers tell the version.
    Generic,
    /// Arm's MMU-500.
    Mmu500,
    /// Cavium's, in CN88xx.
    ThunderX,
    /// Qualcomm's, on top of an MMU-500.
    Qualcomm,
}

/// Makers of the IORT tables of laptops with Qualcomm's chips, each with its name of the table. Linux's
/// driver has the first two (`qcom_acpi_platlist`), for the chip of 2019 alone; the others are those of
/// the tables that <https://github.com/aarch64-laptops/build> publishes.
const OF_QUALCOMM: [(&[u8; 6], &[u8; 8]); 13] = [
    (b"QCOM  ", b"QCOMEDK2"),
    (b"LENOVO", b"CB-01   "),
    (b"LENOVO", b"TC-O6N  "),
    (b"LENOVO", b"TP-N3H  "),
    (b"LENOVO", b"TP-N42  "),
    (b"ACRSYS", b"ACRPRDCT"),
    (b"HONOR\0", b"QCOMEDK2"),
    (b"HPQOEM", b"8CBE    "),
    (b"HPQOEM", b"8E33    "),
    (b"HPQOEM", b"INSYDE  "),
    (b"HUAWEI", b"QCOMEDK2"),
    (b"MEDION", b"MEDIONAG"),
    (b"_ASUS_", b"Notebook"),
];

impl SmmuModel {
    /// The implementation by the field "Model" of a node and the table's `maker`: Qualcomm's MMU-500 has the
    /// number of Arm's. `None` for a number that is not defined.
    pub fn of(maker: Maker, model: u32) -> Option<Self> {
        match model {
            0 | 1 | 2 | 4 => Some(Self::Generic),
            3 if OF_QUALCOMM.contains(&(&maker.oem, &maker.table)) => Some(Self::Qualcomm),
            3 => Some(Self::Mmu500),
            5 => Some(Self::ThunderX),
            _ => None,
        }
    }
}
