//! Properties of PCI functions that their configuration space does not tell.
//!
//! Some controllers do their DMA as another function of their device, which an IOMMU refuses unless
//! it knows the function by that identifier as well; some do not forget translations that they are
//! asked to forget. [`PciOverrides::KNOWN`] has those that are known.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{PciFunction, RequesterId};

use super::device_tlb::DeviceTlbOverride;
use super::node::{PciId, PciNode};

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
    /// Base class (upper byte) and class of those that do; `None` if all do.
    pub class: Option<u16>,
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
    /// Functions whose TLB is flawed.
    pub tlbs: &'static [DeviceTlbOverride],
    /// Functions that isolate, or do not.
    pub isolation: &'static [IsolationOverride],
}

impl PciOverrides {
    /// The further identifiers of `node`.
    pub(super) fn aliases_of(self, node: &PciNode) -> impl Iterator<Item = RequesterId> {
        let (id, class, own) = (node.id, node.class, node.at.requester);
        let of = self.aliases.iter().filter(move |alias| {
            let of_class = alias.class.is_none_or(|wanted| wanted == class);
            alias.of == id && of_class
        });
        let at = move |device, function| RequesterId::of(own.bus(), device, function);
        of.flat_map(move |one| {
            let (devices, functions) = match one.alias {
                AliasOf::Function(function) => (own.device()..=own.device(), function..=function),
                AliasOf::Fixed { device, function } => (device..=device, function..=function),
                AliasOf::Each { functions } => (0..=31, 0..=functions.saturating_sub(1)),
            };
            devices.flat_map(move |device| {
                functions.clone().map(move |function| at(device & 31, function & 7))
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
