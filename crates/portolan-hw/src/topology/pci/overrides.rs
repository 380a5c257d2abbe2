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
const GLENFLY: u16 = 0x6766;
const ADAPTEC: u16 = 0x9005;
const INTEL: u16 = 0x8086;

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

/// Bridges above which identifiers do not change any more: the IOMMU of Broadcom's Vulcan, Cavium's ThunderX2, is there
/// (Linux's `quirk_bridge_cavm_thrx2_pcie_root`).
pub(super) const TRANSLATED_BELOW: [PciId; 2] = [id(0x14e4, 0x9000), id(0x14e4, 0x9084)];

/// Further identifiers that accesses of a function carry, on its own bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AliasOf {
    /// That of another function of its device, 0 to 7.
    Function(u8),
    /// That of a device and a function, wherever the function itself is.
    Fixed {
        /// The device, 0 to 31.
        device: u8,
        /// Its function, 0 to 7.
        function: u8,
    },
    /// Those of so many functions of each device.
    Each {
        /// Number of functions, from 0 on.
        functions: u8,
    },
}

/// Accesses of functions that carry the identifiers of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AliasOverride {
    /// The functions that do so.
    pub of: PciId,
    /// The other identifiers.
    pub alias: AliasOf,
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
    let alias = AliasOf::Function(function);
    AliasOverride { of, alias }
}

const fn as_fixed(device: u8, function: u8, vendor: u16, of: u16) -> AliasOverride {
    let of = id(vendor, of);
    let alias = AliasOf::Fixed { device, function };
    AliasOverride { of, alias }
}

const fn as_each(functions: u8, vendor: u16, device: u16) -> AliasOverride {
    let of = id(vendor, device);
    let alias = AliasOf::Each { functions };
    AliasOverride { of, alias }
}

impl PciOverrides {
    /// Disk controllers of Marvell's, HighPoint's, JMicron's and Lite-On's that do DMA as function
    /// 1, and Ricoh's card readers and FireWire controllers and Glenfly's audio, which do it as
    /// function 0; boards of Adaptec's and cards with computers of Intel's, which do it as devices
    /// that are not to be seen. All that Linux 6.18 lists (`drivers/pci/quirks.c`:
    /// `quirk_dma_func0_alias`, `quirk_dma_func1_alias`, `quirk_fixed_dma_alias`,
    /// `quirk_mic_x200_dma_alias`, `quirk_pex_vca_alias`), but those that registers of a bridge
    /// tell (Switchtec's and PLX's).
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
            as_function(0, GLENFLY, 0x3d40),
            as_function(0, GLENFLY, 0x3d41),
            // Boards of which the processor has a device of its own that is not to be seen.
            as_fixed(1, 0, ADAPTEC, 0x0285),
            // Computers on a card (Xeon Phi x200), behind a bridge that has identifiers of its own.
            as_fixed(0x10, 0, INTEL, 0x2260),
            as_fixed(0x11, 0, INTEL, 0x2260),
            as_fixed(0x12, 3, INTEL, 0x2260),
            as_fixed(0x10, 0, INTEL, 0x2264),
            as_fixed(0x11, 0, INTEL, 0x2264),
            as_fixed(0x12, 3, INTEL, 0x2264),
            // The same (Visual Compute Accelerator), in any slot.
            as_each(5, INTEL, 0x2954),
            as_each(5, INTEL, 0x2955),
            as_each(5, INTEL, 0x2956),
            as_each(5, INTEL, 0x2958),
            as_each(5, INTEL, 0x2959),
            as_each(5, INTEL, 0x295a),
        ],
        isolation: &[],
    };

    /// The further identifiers of `node`.
    pub(super) fn aliases_of(self, node: &PciNode) -> impl Iterator<Item = RequesterId> {
        let (id, own) = (node.id, node.at.requester);
        let of = self.aliases.iter().filter(move |alias| alias.of == id);
        let at = move |device, function| RequesterId::of(own.bus(), device, function);
        of.flat_map(move |one| {
            let (devices, functions) = match one.alias {
                AliasOf::Function(function) => (own.device()..=own.device(), function..=function),
                AliasOf::Fixed { device, function } => (device..=device, function..=function),
                AliasOf::Each { functions } => (0..=31, 0..=functions.saturating_sub(1)),
            };
            devices.flat_map(move |device| {
                functions
                    .clone()
                    .map(move |function| at(device & 31, function & 7))
            })
        })
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
