//! Facts about a machine's own PCI functions that the units of VT-d depend on.
//!
//! *Context.* Interrupt, if configuration space may be read there.

use portolan::addr::{PciFunction, PciSegment, RequesterId};

use super::ConfigSpace;
use crate::vtd::{INTEL, PciIdentity, Quirks, tylersburg};

/// Offset of vendor and device in configuration space.
const IDENTITY: u16 = 0;
/// Offset of the class.
const CLASS: u16 = 8;

/// Functions of Intel's on bus 0, which are the machine's own; `word` reads their configuration space.
fn own_functions(
    word: ConfigSpace<'_>,
    segment: PciSegment,
) -> impl Iterator<Item = (PciFunction, PciIdentity)> {
    (0..=0xff).filter_map(move |requester| {
        let requester = RequesterId::new(requester);
        let function = PciFunction { segment, requester };
        let identity = word(function, IDENTITY)?;
        let (vendor, device) = (identity as u16, (identity >> 16) as u16);
        if vendor != INTEL {
            return None;
        }
        let base_class = (word(function, CLASS)? >> 24) as u8;
        Some((function, PciIdentity { vendor, device, base_class }))
    })
}

/// The chipset's sound controller, and the TLB entries of its isochronous unit, if it has one.
pub(super) fn isochronous(word: ConfigSpace<'_>, segment: PciSegment) -> Option<(PciFunction, u8)> {
    let with = |device| {
        let found = own_functions(word, segment).find(|(_, identity)| identity.device == device);
        found.map(|(function, _)| function)
    };
    let azalia = with(tylersburg::AZALIA)?;
    let control = word(with(tylersburg::SYSTEM_MANAGEMENT)?, tylersburg::VTISOCHCTRL)?;
    Some((azalia, tylersburg::isochronous_entries(control)?))
}

/// Quirks of the machine's units, by its own PCI devices; `word` reads their configuration space.
pub(super) fn quirks(word: ConfigSpace<'_>, segment: PciSegment) -> Quirks {
    let of_functions = own_functions(word, segment).map(|(_, identity)| Quirks::of(identity));
    let mut quirks = of_functions.fold(Quirks::empty(), Quirks::union);
    let hangs = isochronous(word, segment).is_some_and(|(_, entries)| entries == 0);
    quirks.set(Quirks::AZALIA_UNTRANSLATED, hangs);
    quirks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_controller_of_bus_0_keeps_translation_on_and_nothing_else_of_its_number_does() {
        let of = |segment, requester, identity, class| {
            let at = PciFunction { segment: PciSegment::new(segment), requester };
            let word = |function, offset| match offset {
                0x0 if function == at => Some(identity),
                0x8 if function == at => Some(class),
                _ => None,
            };
            quirks(&word, PciSegment::new(1))
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
