//! Remapping of interrupts, as firmware's table has it: whether the machine offers it, and under which
//! numbers interrupt controllers and timers send.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 8.1 (flags) and
//! 8.3.1 (scopes of I/O APICs and timers). Not supported: scopes that lead through bridges.

use alloc::sync::Arc;

use portolan::addr::RequesterId;
use portolan::iommu::{InterruptSource, IommuDomains};
use portolan::platform::Platform;

use super::{EnableError, Iommus, Kind, Options, Topology, TopologyError};
use crate::firmware::dmar::{Dmar, ScopeKind, Structure};
use crate::interrupt::ApicMode;

/// A sender of interrupts that is no PCI device, by firmware's number of it.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// An I/O APIC, by its identifier in the table of APICs (MADT).
    IoApic(u8),
    /// A timer block (HPET), by its number.
    Timer(u8),
}

/// Who sends a controller's interrupts, and through which unit.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    /// The unit, which has [`IommuDomains::interrupts`].
    pub unit: &'a Arc<dyn IommuDomains>,
    /// The source to name there.
    pub source: InterruptSource,
}

/// Flags of DMAR: interrupts can be remapped; identifiers of 32 bits are not wanted.
const REMAPS: u8 = 1;
const NO_X2APIC: u8 = 1 << 1;

impl Topology {
    /// Whether firmware offers remapping of interrupts, and for which identifiers at most: where it
    /// asks for x2APIC to be left alone, a kernel does so. `None` if it does not.
    ///
    /// *Context.* Interrupt.
    pub fn interrupt_remapping(&self) -> Option<ApicMode> {
        match self.kind {
            Kind::Dmar => {
                let flags = Dmar::parse(&self.table).ok()?.flags();
                (flags & REMAPS != 0).then_some(match flags & NO_X2APIC {
                    0 => ApicMode::X2Apic,
                    _ => ApicMode::XApic,
                })
            }
            Kind::Iort | Kind::Ivrs | Kind::Viot | Kind::Tree => None,
        }
    }

    /// Refuses options that firmware does not offer.
    pub(super) fn offers(&self, options: Options) -> Result<(), EnableError> {
        let offered = self.interrupt_remapping();
        let served = match (options.interrupts.map(|wanted| wanted.apic), offered) {
            (None, _) | (Some(ApicMode::XApic), Some(_)) => true,
            (Some(ApicMode::X2Apic), offered) => offered == Some(ApicMode::X2Apic),
            (Some(ApicMode::XApic), None) => false,
        };
        match served {
            true => Ok(()),
            false => Err(EnableError::NoRemapping { offered }),
        }
    }

    /// The number of the unit that a controller's interrupts go through, and under which number they
    /// come.
    fn controller(&self, of: Controller) -> Result<Option<(usize, RequesterId)>, TopologyError> {
        match self.kind {
            Kind::Dmar => by_dmar(&self.table, of),
            Kind::Iort | Kind::Ivrs | Kind::Viot | Kind::Tree => Ok(None),
        }
    }
}

fn by_dmar(table: &[u8], of: Controller) -> Result<Option<(usize, RequesterId)>, TopologyError> {
    let wanted = match of {
        Controller::IoApic(id) => (ScopeKind::IoApic, id),
        Controller::Timer(number) => (ScopeKind::Timer, number),
    };
    let units = Dmar::parse(table)?.structures();
    let units = units.filter_map(|structure| match structure {
        Ok(Structure::Drhd(unit)) => Some(Ok(unit)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    for (number, unit) in units.enumerate() {
        for scope in unit?.scopes {
            let scope = scope?;
            if (scope.kind, scope.enumeration) == wanted {
                let found = scope.requester(|_| None);
                return Ok(found.map(|requester| (number, requester)));
            }
        }
    }
    Ok(None)
}

impl<P: Platform> Iommus<P> {
    /// The unit that a controller's interrupts go through, and the source that they come from there;
    /// `None` if the table does not name it.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the table is damaged.
    pub fn interrupts_of(
        &self,
        controller: Controller,
    ) -> Result<Option<Sender<'_>>, TopologyError> {
        let found = self.topology.controller(controller)?;
        Ok(found.and_then(|(unit, requester)| {
            let unit = self.units.get(unit)?;
            let source = InterruptSource::Requester(requester);
            Some(Sender { unit, source })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Remapping;
    use alloc::vec::Vec;

    /// A DMAR of one unit for the segment's other devices, with scopes: kind, number, bus, device.
    fn dmar(flags: u8, scopes: &[[u8; 4]]) -> Vec<u8> {
        let unit = 16 + scopes.len() * 8;
        let mut table = alloc::vec![0; 48 + unit];
        table[..4].copy_from_slice(b"DMAR");
        table[4] = (48 + unit) as u8;
        table[8] = 1;
        table[36] = 38;
        table[37] = flags;
        table[50] = unit as u8;
        table[52] = 1;
        table[56..64].copy_from_slice(&0xfed9_0000_u64.to_le_bytes());
        for ([kind, number, bus, device], at) in scopes.iter().zip((64..).step_by(8)) {
            table[at..at + 8].copy_from_slice(&[*kind, 8, 0, 0, *number, *bus, *device, 0]);
        }
        let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        table[9] = 0u8.wrapping_sub(sum);
        table
    }

    #[test]
    fn what_firmware_offers_is_an_upper_bound() {
        for (flags, offered) in [
            (0, None),
            (2, None),
            (1, Some(ApicMode::X2Apic)),
            (3, Some(ApicMode::XApic)),
        ] {
            let table = dmar(flags, &[]);
            let topology = Topology::from_acpi([&table[..]]).unwrap();
            assert_eq!(topology.interrupt_remapping(), offered);
            let served = |apic: Option<ApicMode>| {
                let interrupts = apic.map(|apic| Remapping {
                    apic,
                    ..Remapping::default()
                });
                let options = Options {
                    interrupts,
                    ..Options::default()
                };
                topology.offers(options).is_ok()
            };
            assert!(served(None));
            assert_eq!(served(Some(ApicMode::XApic)), offered.is_some());
            let wide = offered == Some(ApicMode::X2Apic);
            assert_eq!(served(Some(ApicMode::X2Apic)), wide);
        }
    }

    #[test]
    fn controllers_and_timers_have_sources_of_their_own() {
        let table = dmar(1, &[[3, 2, 0xff, 0x1f], [4, 0, 0, 0x1e], [1, 2, 0, 3]]);
        let topology = Topology::from_acpi([&table[..]]).unwrap();
        let of = |controller| topology.controller(controller);
        let apic = RequesterId::of(0xff, 0x1f, 0);
        assert_eq!(of(Controller::IoApic(2)), Ok(Some((0, apic))));
        let timer = RequesterId::of(0, 0x1e, 0);
        assert_eq!(of(Controller::Timer(0)), Ok(Some((0, timer))));
        assert_eq!(of(Controller::Timer(2)), Ok(None));
        assert_eq!(of(Controller::IoApic(0)), Ok(None));
    }
}
