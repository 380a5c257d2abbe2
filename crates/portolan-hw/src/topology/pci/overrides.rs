//! Properties of PCI functions that their configuration space does not tell.
//!
//! Some controllers do their DMA as another function of their device, which an IOMMU refuses unless
//! it knows the function by that identifier as well. They are known from the machines that they
//! failed on (Linux's bug tracker, 42679 and others); [`PciOverrides::KNOWN`] has those that are
//! common.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{PciFunction, RequesterId};

use super::node::{PciId, PciNode};

const MARVELL: u16 = 0x1b4b;
const RICOH: u16 = 0x1180;
const HIGHPOINT: u16 = 0x1103;
const JMICRON: u16 = 0x197b;
const LITE_ON: u16 = 0x1c28;

const fn id(vendor: u16, device: u16) -> PciId {
    PciId { vendor, device }
}

/// Bridges from PCI Express that do not say so (Linux's `quirk_use_pcie_bridge_dma_alias`): of
/// ASMedia, Tundra, ITE and Intel. Accesses of functions behind one carry function 0.0 of the bus
/// behind it.
pub(super) const HIDDEN_BRIDGES: [PciId; 5] = [
    id(0x1b21, 0x1080),
    id(0x10e3, 0x8113),
    id(0x1283, 0x8892),
    id(0x1283, 0x8893),
    id(0x8086, 0x244e),
];

/// Accesses of a function that carry the identifier of another function of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AliasOverride {
    /// The functions that do so.
    pub of: PciId,
    /// The other function, 0 to 7.
    pub function: u8,
}

/// Isolation of a function, which overrides its ACS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// It keeps functions behind it, and beside it, apart: its maker says so.
    Isolated,
    /// It does not keep them apart.
    Not,
}

/// The isolation of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IsolationOverride {
    /// The function.
    pub of: PciFunction,
    /// Isolation that it has.
    pub isolation: Isolation,
}

/// Properties that override configuration space.
///
/// ```
/// use portolan::addr::PciFunction;
/// use portolan_hw::topology::pci::{Isolation, IsolationOverride, PciOverrides};
/// // The maker of this root port says that it keeps devices apart, though it has no ACS.
/// const PORTS: &[IsolationOverride] = &[IsolationOverride {
///     of: PciFunction::of(0, 0x1c, 0),
///     isolation: Isolation::Isolated,
/// }];
/// let overrides = PciOverrides { isolation: PORTS, ..PciOverrides::KNOWN };
/// # assert_eq!(overrides.aliases, PciOverrides::default().aliases);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciOverrides {
    /// Functions with further identifiers.
    pub aliases: &'static [AliasOverride],
    /// Functions that isolate, or do not.
    pub isolation: &'static [IsolationOverride],
}

const fn as_function(function: u8, vendor: u16, device: u16) -> AliasOverride {
    let of = id(vendor, device);
    AliasOverride { of, function }
}

impl PciOverrides {
    /// Disk controllers of Marvell's, HighPoint's, JMicron's and Lite-On's that do DMA as function 1, and
    /// Ricoh's card readers and FireWire controllers, which do it as function 0.
    pub const KNOWN: Self = Self {
        aliases: &[
            as_function(1, MARVELL, 0x9120),
            as_function(1, MARVELL, 0x9123),
            as_function(1, MARVELL, 0x9125),
            as_function(1, MARVELL, 0x9128),
            as_function(1, MARVELL, 0x9130),
            as_function(1, MARVELL, 0x9170),
            as_function(1, MARVELL, 0x9172),
            as_function(1, MARVELL, 0x917a),
            as_function(1, MARVELL, 0x9182),
            as_function(1, MARVELL, 0x9183),
            as_function(1, MARVELL, 0x91a0),
            as_function(1, MARVELL, 0x9215),
            as_function(1, MARVELL, 0x9220),
            as_function(1, MARVELL, 0x9230),
            as_function(1, MARVELL, 0x9235),
            as_function(1, HIGHPOINT, 0x0642),
            as_function(1, HIGHPOINT, 0x0644),
            as_function(1, HIGHPOINT, 0x0645),
            as_function(1, JMICRON, 0x2392),
            as_function(1, LITE_ON, 0x0122),
            as_function(0, RICOH, 0xe476),
            as_function(0, RICOH, 0xe832),
        ],
        isolation: &[],
    };

    /// The further identifiers of `node`.
    pub(super) fn aliases_of(self, node: &PciNode) -> impl Iterator<Item = RequesterId> {
        let (id, own) = (node.id, node.at.requester);
        let of = self.aliases.iter().filter(move |alias| alias.of == id);
        of.map(move |alias| RequesterId::of(own.bus(), own.device(), alias.function))
    }

    /// Isolation of `node`, if it is overridden.
    pub(super) fn isolation_of(self, node: &PciNode) -> Option<Isolation> {
        let mut of = self.isolation.iter();
        of.find(|one| one.of == node.at).map(|one| one.isolation)
    }
}

impl Default for PciOverrides {
    /// [`PciOverrides::KNOWN`].
    fn default() -> Self {
        Self::KNOWN
    }
}
