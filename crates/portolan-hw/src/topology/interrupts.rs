//! Interrupts, as firmware's table has them: remapping that the machine offers, numbers under which
//! interrupt controllers and timers send, and units' own interrupts.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 8.1 (flags) and
//! 8.3.1 (scopes of I/O APICs and timers). AMD I/O Virtualization Technology (48882), revision 3.10,
//! section 5.2.2 (special devices). Not supported: lines of SMMUs in device trees.

use alloc::sync::Arc;

use portolan::addr::PciFunction;
use portolan::iommu::{InterruptSource, IommuDomains};
use portolan::platform::Platform;

use super::join::followed;
use super::{
    ConfigSpace, EnableError, Iommus, Options, SenderError, Survey, Topology, TopologyError, Wire,
};
use crate::interrupt::ApicMode;
use portolan_spec::vtd::INTEL;
use portolan_tables::claim::Claim;
use portolan_tables::describe::{RemappingOffer, RiscvWire, TableKind, UnitSettings};
use portolan_tables::iort::Interrupts;
use portolan_tables::madt::IoApics;
use portolan_tables::rimt::GlobalWire;

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

/// Sender of a controller's interrupts, and the unit through which they go.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    /// The unit, which has [`IommuDomains::interrupts`].
    pub unit: &'a Arc<dyn IommuDomains>,
    /// The source to name there.
    pub source: InterruptSource,
}

/// Way in which a unit raises the interrupt that says that there is something for
/// [`next_fault`](portolan::iommu::Iommu::next_fault).
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultInterrupt {
    /// By a message, which [`IommuDomains::signal_faults`] programs: VT-d, and AMD-Vi with destinations of 32
    /// bits.
    Message,
    /// By the MSI capability of this function: AMD-Vi otherwise. The kernel writes
    /// [`plain_message`](crate::interrupt::compose::plain_message) there, and
    /// [`IommuDomains::signal_faults`] switches it on.
    Function(PciFunction),
    /// By lines of the interrupt controller, as firmware numbers them; 0 is none. They are on from the
    /// start: SMMUv3.
    Lines(Interrupts),
    /// By this wire, which is on from the start: a RISC-V IOMMU of a device tree.
    Wire(Wire),
    /// By this wire, which is on from the start: a RISC-V IOMMU of ACPI.
    Global(GlobalWire),
    /// By none that the table names, or by lines of an SMMU of version 2, which are not read: it is
    /// asked for faults.
    Absent,
}

/// Host bridges of Intel's 5500, X58 and 5520. Interrupts that are on their way while an entry is
/// forgotten are lost, up to [`LAST_LOSING`] and in one more revision of X58 (Linux's
/// `intel_remapping_check`).
const LOSING: [u16; 3] = [0x3403, X58, 0x3406];
const X58: u16 = 0x3405;
const LAST_LOSING: u8 = 0x13;
const LOSING_X58: u8 = 0x22;
/// Class of host bridges.
const HOST_BRIDGE: u32 = 0x0600;

/// Tells if a host bridge on bus 0 is of a chipset that loses interrupts that are remapped.
fn loses_interrupts(read: impl Fn(PciFunction, u16) -> Option<u32>) -> bool {
    let mut bus = (0..=u8::MAX).map(|at| PciFunction::of(0, at >> 3, at & 7));
    bus.any(|at| {
        let identity = read(at, 0).unwrap_or(u32::MAX);
        let (vendor, device) = (identity as u16, (identity >> 16) as u16);
        if vendor != INTEL || !LOSING.contains(&device) {
            return false;
        }
        let class = read(at, 8).unwrap_or(0);
        let revision = class as u8;
        let loses = revision <= LAST_LOSING || (device, revision) == (X58, LOSING_X58);
        loses && class >> 16 == HOST_BRIDGE
    })
}

impl Topology {
    /// Remapping of interrupts that firmware offers, with the greatest identifiers: where it asks
    /// for x2APIC to be left alone, a kernel does so. `None` if it offers none, or does not give
    /// the requester identifier of each I/O APIC of the MADT: bridges on the way to one need
    /// buses. IVRS has to name one at least, and none twice. `read` gives 32 bits of a function's
    /// configuration space: chipsets that lose remapped interrupts (early revisions of X58, 5500
    /// and 5520) offer nothing.
    ///
    /// *Context.* Interrupt, if configuration space may be read there.
    pub fn interrupt_remapping(
        &self,
        read: impl Fn(PciFunction, u16) -> Option<u32>,
    ) -> Option<ApicMode> {
        let description = &self.description;
        let mode = match description.remapping {
            RemappingOffer::None => return None,
            RemappingOffer::XApic => ApicMode::XApic,
            RemappingOffer::X2Apic => ApicMode::X2Apic,
        };
        let (named, loses) = match description.kind {
            TableKind::Dmar => (self.io_apics_in_scopes(&read), loses_interrupts(&read)),
            _ => (description.io_apics, false),
        };
        // Interrupts of another one would be lost, the timer's first.
        let works = self.io_apics.is_none_or(|all| named.has_all(&all)) && !loses;
        works.then_some(mode)
    }

    /// The I/O APICs of which the table gives the requester identifier, and the bridges on the way to which
    /// have buses.
    fn io_apics_in_scopes(&self, read: ConfigSpace<'_>) -> IoApics {
        let mut found = IoApics::default();
        for unit in &self.description.units {
            for claim in followed(unit, read) {
                if let Claim::IoApic(number, Some(_)) = claim {
                    found.insert(number);
                }
            }
        }
        found
    }

    /// Refuses options that firmware does not offer.
    pub(super) fn offers(
        &self,
        options: Options,
        read: impl Fn(PciFunction, u16) -> Option<u32>,
    ) -> Result<(), EnableError> {
        let offered = self.interrupt_remapping(read);
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

    pub(super) fn fault_interrupt(&self, unit: usize) -> Result<FaultInterrupt, TopologyError> {
        let Some(unit) = self.description.units.get(unit) else {
            return Ok(FaultInterrupt::Absent);
        };
        Ok(match &unit.settings {
            UnitSettings::Damaged(error) => return Err((*error).into()),
            UnitSettings::Vtd { .. } => FaultInterrupt::Message,
            UnitSettings::AmdVi(amd) => FaultInterrupt::Function(amd.function),
            UnitSettings::Riscv(riscv) => match riscv.wire {
                Some(RiscvWire::Global(wire)) => FaultInterrupt::Global(wire),
                Some(RiscvWire::Controller(wire)) => FaultInterrupt::Wire(wire),
                None => FaultInterrupt::Absent,
            },
            _ => unit.lines().map_or(FaultInterrupt::Absent, FaultInterrupt::Lines),
        })
    }
}

impl Survey {
    /// The number of the unit that a controller's interrupts go through, and the source that they
    /// come from there; `None` if the table does not name it, or names it by a path whose bridges have
    /// no buses. It can be asked before units are enabled: to decide on [`Options::interrupts`].
    ///
    /// *Context.* Interrupt.
    pub fn interrupts_of(&self, controller: Controller) -> Option<(usize, InterruptSource)> {
        let found = self.units().iter().enumerate().find_map(|(number, unit)| {
            let claim = unit.claims.iter().find(|claim| match (controller, claim) {
                (Controller::IoApic(wanted), Claim::IoApic(id, _)) => wanted == *id,
                (Controller::Timer(wanted), Claim::Timer(id, _)) => wanted == *id,
                _ => false,
            });
            claim.map(|claim| (number, *claim))
        });
        match found? {
            (number, Claim::IoApic(_, place) | Claim::Timer(_, place)) => {
                Some((number, InterruptSource::Requester(place?)))
            }
            _ => None,
        }
    }
}

impl<P: Platform> Iommus<P> {
    /// Way in which the unit with the index `unit` in [`Iommus::units`] raises interrupts of its
    /// own.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the table is damaged.
    pub fn fault_interrupt(&self, unit: usize) -> Result<FaultInterrupt, TopologyError> {
        match self.topology.fault_interrupt(unit)? {
            FaultInterrupt::Function(_) if self.apic == Some(ApicMode::X2Apic) => {
                Ok(FaultInterrupt::Message)
            }
            by => Ok(by),
        }
    }

    /// The unit that a controller's interrupts go through, and the source that they come from there:
    /// by the survey of when the units were enabled ([`Survey::interrupts_of`]).
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the table is damaged, or the unit was not enabled.
    pub fn interrupts_of(&self, controller: Controller) -> Result<Option<Sender<'_>>, SenderError> {
        let Some((number, source)) = self.survey().interrupts_of(controller) else {
            // Where the table is damaged it may have named the controller.
            let damage = self.survey().damage();
            return damage.map_or(Ok(None), |error| Err(error.into()));
        };
        match self.units().get(number) {
            Some(Ok(unit)) => Ok(Some(Sender { unit, source })),
            Some(&Err(error)) => Err(SenderError::NotEnabled { unit: number, error }),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Remapping;
    use crate::topology::pci::PciOverrides;
    use alloc::vec::Vec;
    use portolan::addr::RequesterId;

    /// A source at the first unit.
    fn source(bus: u8, device: u8, function: u8) -> Option<(usize, InterruptSource)> {
        let requester = RequesterId::of(bus, device, function);
        Some((0, InterruptSource::Requester(requester)))
    }

    fn nothing(_: PciFunction, _: u16) -> Option<u32> {
        None
    }

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
        for (flags, offered) in
            [(0, None), (2, None), (1, Some(ApicMode::X2Apic)), (3, Some(ApicMode::XApic))]
        {
            let table = dmar(flags, &[]);
            let topology = Topology::from_acpi([&table[..]]).unwrap();
            assert_eq!(topology.interrupt_remapping(nothing), offered);
            let served = |apic: Option<ApicMode>| {
                let interrupts = apic.map(|apic| Remapping { apic, ..Remapping::default() });
                let options = Options { interrupts, ..Options::default() };
                topology.offers(options, nothing).is_ok()
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
        let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
        let of = |controller| survey.interrupts_of(controller);
        assert_eq!(of(Controller::IoApic(2)), source(0xff, 0x1f, 0));
        assert_eq!(of(Controller::Timer(0)), source(0, 0x1e, 0));
        assert_eq!(of(Controller::Timer(2)), None);
        assert_eq!(of(Controller::IoApic(0)), None);
        assert_eq!(topology.fault_interrupt(0), Ok(FaultInterrupt::Message));
    }

    /// An IVRS of one unit, 00:02.0, with an I/O APIC and a timer, and with these features.
    fn ivrs(features: u32) -> Vec<u8> {
        let mut table = alloc::vec![0; 48 + 24 + 16];
        table[..4].copy_from_slice(b"IVRS");
        (table[4], table[8]) = (88, 2);
        table[48..56].copy_from_slice(&[0x10, 0, 40, 0, 0x10, 0, 0x40, 0]);
        table[56..64].copy_from_slice(&0xfed8_0000_u64.to_le_bytes());
        table[72..80].copy_from_slice(&[72, 0, 0, 0, 5, 0xa0, 0, 1]);
        table[68..72].copy_from_slice(&features.to_le_bytes());
        table[80..88].copy_from_slice(&[72, 0, 0, 0, 0, 0xa1, 0, 2]);
        let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        table[9] = 0u8.wrapping_sub(sum);
        table
    }

    /// XTSup and GASup of a block of type 10h.
    #[test]
    fn units_of_amd_vi_offer_wide_destinations_by_their_features() {
        for (features, offered) in [
            (0x40, ApicMode::XApic),
            (0x01, ApicMode::XApic),
            (0x41, ApicMode::X2Apic),
            (0x8004_8f6f, ApicMode::X2Apic),
        ] {
            let topology = Topology::from_acpi([&ivrs(features)[..]]).unwrap();
            assert_eq!(topology.interrupt_remapping(nothing), Some(offered), "{features:#x}");
        }
    }

    #[test]
    fn a_unit_of_amd_vi_remaps_and_sends_by_its_own_function() {
        let topology = Topology::from_acpi([&ivrs(0)[..]]).unwrap();
        assert_eq!(topology.interrupt_remapping(nothing), Some(ApicMode::XApic));
        let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
        let of = |controller| survey.interrupts_of(controller);
        assert_eq!(of(Controller::IoApic(5)), source(0, 0x14, 0));
        assert_eq!(of(Controller::Timer(0)), source(0, 0x14, 1));
        assert_eq!(of(Controller::Timer(5)), None);
        let own = FaultInterrupt::Function(PciFunction::of(0, 2, 0));
        assert_eq!(topology.fault_interrupt(0), Ok(own));
        assert_eq!(topology.fault_interrupt(1), Ok(FaultInterrupt::Absent));
    }
}
