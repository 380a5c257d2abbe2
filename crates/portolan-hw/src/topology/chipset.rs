//! Facts about a machine's own PCI functions that the units of VT-d depend on.
//!
//! *Context.* Interrupt, if configuration space may be read there.

use portolan::addr::{PciFunction, PciSegment, RequesterId};

use super::ConfigSpace;
use portolan_spec::vtd::{INTEL, tylersburg};

/// Offset of vendor and device in configuration space.
const IDENTITY: u16 = 0;

/// Functions of Intel's on bus 0, which are the machine's own, each with its device identifier; `word` reads
/// their configuration space.
pub(super) fn own_functions(
    word: ConfigSpace<'_>,
    segment: PciSegment,
) -> impl Iterator<Item = (PciFunction, u16)> {
    (0..=0xff).filter_map(move |requester| {
        let requester = RequesterId::new(requester);
        let function = PciFunction { segment, requester };
        let identity = word(function, IDENTITY)?;
        let (vendor, device) = (identity as u16, (identity >> 16) as u16);
        (vendor == INTEL).then_some((function, device))
    })
}

/// The chipset's sound controller, and the TLB entries of its isochronous unit, if it has one.
pub(super) fn isochronous(word: ConfigSpace<'_>, segment: PciSegment) -> Option<(PciFunction, u8)> {
    let with = |device| {
        let found = own_functions(word, segment).find(|(_, found)| *found == device);
        found.map(|(function, _)| function)
    };
    let azalia = with(tylersburg::AZALIA)?;
    let control = word(with(tylersburg::SYSTEM_MANAGEMENT)?, tylersburg::VTISOCHCTRL)?;
    Some((azalia, tylersburg::isochronous_entries(control)?))
}
