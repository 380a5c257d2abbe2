//! Units of VT-d by the DMAR table.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, RequesterId, Segment, StreamId};
use portolan::platform::Platform;

use super::{EnableError, Enabled, FirmwareMemory, Options, TopologyError, enable_all, enable_at};
use crate::firmware::dmar::{Dmar, Drhd, ScopeKind, Serves, Structure};
use crate::firmware::reservations::Streams;
use crate::vtd::{Config, Features, Has, INTEL, Mode, PciIdentity, Quirks, Vtd};

/// Offset of vendor and device in configuration space.
const IDENTITY: u16 = 0;
/// Offset of the class.
const CLASS: u16 = 8;
/// Offset of a bridge's buses: primary, secondary, subordinate.
const BUSES: u16 = 0x18;

/// The buses behind a bridge, both ends included.
fn behind(platform: &impl Platform, segment: Segment, bridge: RequesterId) -> Option<(u8, u8)> {
    let requester = bridge;
    let function = PciFunction { segment, requester };
    let buses = platform.pci_config(function, BUSES)?;
    Some(((buses >> 8) as u8, (buses >> 16) as u8))
}

/// What the machine's own PCI devices, which are on bus 0, say of its units; `word` reads their
/// configuration space.
fn quirks(word: impl Fn(PciFunction, u16) -> Option<u32>, segment: Segment) -> Quirks {
    let identity = |requester: u16| {
        let requester = RequesterId::new(requester);
        let function = PciFunction { segment, requester };
        let identity = word(function, IDENTITY)?;
        let (vendor, device) = (identity as u16, (identity >> 16) as u16);
        if vendor != INTEL {
            return None;
        }
        let base_class = (word(function, CLASS)? >> 24) as u8;
        Some(PciIdentity {
            vendor,
            device,
            base_class,
        })
    };
    let all = (0..=0xff).filter_map(identity).map(Quirks::of);
    all.fold(Quirks::empty(), Quirks::union)
}

fn units<'t>(table: &Dmar<'t>) -> impl Iterator<Item = Result<Drhd<'t>, TopologyError>> + use<'t> {
    table.structures().filter_map(|structure| match structure {
        Ok(Structure::Drhd(unit)) => Some(Ok(unit)),
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    })
}

/// Takes over and enables all units of `table`.
pub(super) fn enable<P: Platform>(
    table: &[u8],
    platform: &P,
    options: Options,
) -> Result<Vec<Enabled>, EnableError> {
    let table = Dmar::parse(table)?;
    enable_all(units(&table), |unit| {
        let mut config = Config {
            output_lg2: table.address_lg2(),
            chip: quirks(|of, at| platform.pci_config(of, at), unit.segment),
            interrupts: options.interrupts,
            ..Config::default()
        };
        if options.reserved == FirmwareMemory::Reached {
            let bus = |bridge| behind(platform, unit.segment, bridge).map(|(first, _)| first);
            let found = table.reserved(unit.segment, Streams::ALL, bus);
            // What makes no sense is left out, and counted there.
            let _ = config.reserved.read(found);
        }
        enable_at(platform, unit.registers, |registers, memory, clock| {
            // First-stage tables are the hardware's own under a hypervisor, too.
            let first = Has::SCALABLE | Has::FIRST | Has::FIRST_1G | Has::CACHING_MODE;
            config.mode = match Features::read(&registers)?.has.contains(first) {
                true => Mode::Scalable,
                false => Mode::Legacy,
            };
            Vtd::enable(registers, memory, clock, config)
        })
    })
}

/// The number of the unit of `function`, and its stream: its requester identifier.
pub(super) fn find(
    table: &[u8],
    platform: &impl Platform,
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    let table = Dmar::parse(table)?;
    let stream = function.requester.stream();
    let mut remaining = None;
    for (number, unit) in units(&table).enumerate() {
        let unit = unit?;
        if unit.segment != function.segment {
            continue;
        }
        match unit.serves {
            Serves::Remaining => remaining = remaining.or(Some((number, stream))),
            Serves::Named if names(&unit, platform, function)? => {
                return Ok(Some((number, stream)));
            }
            Serves::Named => {}
        }
    }
    Ok(remaining)
}

/// Whether a scope of `unit` is `function`, or a bridge that it is behind.
fn names(
    unit: &Drhd<'_>,
    platform: &impl Platform,
    function: PciFunction,
) -> Result<bool, TopologyError> {
    let buses = |bridge| behind(platform, unit.segment, bridge);
    for scope in unit.scopes {
        let scope = scope?;
        let at = scope.requester(|bridge| buses(bridge).map(|(first, _)| first));
        let found = match (scope.kind, at) {
            (ScopeKind::Endpoint, Some(at)) => at == function.requester,
            (ScopeKind::Bridge, Some(at)) => {
                let bus = function.requester.bus();
                let inside = |(first, last)| first <= bus && bus <= last;
                at == function.requester || buses(at).is_some_and(inside)
            }
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_controller_of_bus_0_keeps_translation_on_and_nothing_else_of_its_number_does() {
        let of = |segment, requester, identity, class| {
            let at = PciFunction {
                segment: Segment::new(segment),
                requester,
            };
            let word = |function, offset| match offset {
                0x0 if function == at => Some(identity),
                0x8 if function == at => Some(class),
                _ => None,
            };
            quirks(word, Segment::new(1))
        };
        let last = RequesterId::of(0, 31, 7);
        let display = 0x0300_0001;
        assert_eq!(of(1, last, 0x9a49_8086, display), Quirks::KEEP_TRANSLATION);
        let others = [
            of(1, last, 0x9a49_1022, display),
            of(1, last, 0x9a49_8086, 0x0003_0003),
            of(0, last, 0x9a49_8086, display),
            of(1, RequesterId::of(1, 0, 0), 0x9a49_8086, display),
        ];
        assert_eq!(others, [Quirks::empty(); 4]);
    }
}
