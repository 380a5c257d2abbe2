//! Messages and redirections for devices and I/O APICs, so that their interrupts are remapped.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 5.1.2.2
//! (remappable format), 5.1.5.1 (I/O APIC) and 5.1.5.2 (MSI). AMD I/O Virtualization Technology
//! (48882), revision 3.10, section 2.2.5. Intel 64 and IA-32 architectures software developer's manual,
//! volume 3, section 11.11 (messages that are not remapped). Not supported: several messages of one
//! MSI capability (subhandles).
//!
//! *Context.* Interrupt: pure functions.

use portolan::iommu::{
    Delivery, Destination, InterruptError, InterruptTarget, MsiMessage, Polarity, RedirectionEntry,
    Trigger,
};

use super::ApicMode;
use portolan_spec::Bits;

/// Address of the window to which messages are written.
const WINDOW: u64 = 0xfee0_0000;

/// A message that names entry `index` of a VT-d unit's table.
///
/// ```
/// let message = portolan_hw::interrupt::compose::vtd_message(5);
/// assert_eq!((message.address, message.data), (0xfee0_00b0, 0));
/// ```
pub fn vtd_message(index: u16) -> MsiMessage {
    const REMAPPABLE: u64 = 1 << 4;
    let (low, high) = (u64::from(index & 0x7fff), u64::from(index >> 15));
    MsiMessage { address: WINDOW | low << 5 | REMAPPABLE | high << 2, data: 0 }
}

/// A redirection entry that names entry `index` of a VT-d unit's table. Its vector and its trigger
/// are the target's, as the end of a level-triggered interrupt is told by them.
pub fn vtd_redirection(
    index: u16,
    target: &InterruptTarget,
    polarity: Polarity,
) -> RedirectionEntry {
    const REMAPPABLE: u64 = 1 << 48;
    let (low, high) = (u64::from(index & 0x7fff), u64::from(index >> 15));
    let vector = u64::from(target.vector.get());
    let line = line(target.trigger, polarity);
    RedirectionEntry::new(low << 49 | REMAPPABLE | line | high << 11 | vector)
}

/// Bits 15 and 13 of a redirection entry.
fn line(trigger: Trigger, polarity: Polarity) -> u64 {
    let level = match trigger {
        Trigger::Edge => 0,
        Trigger::Level => 1 << 15,
    };
    let low = match polarity {
        Polarity::High => 0,
        Polarity::Low => 1 << 13,
    };
    level | low
}

/// Most entries of a device's table behind AMD-Vi that a message reaches, as an exponent: above,
/// the index would run into the delivery modes that are no device's (SMI, NMI, INIT).
pub const AMD_MOST_LG2: u32 = 9;

/// A message that names entry `index` of its device's table behind AMD-Vi; `None` for an index that
/// no message can name.
///
/// ```
/// let message = portolan_hw::interrupt::compose::amd_message(5).unwrap();
/// assert_eq!((message.address, message.data), (0xfee0_0000, 5));
/// ```
pub fn amd_message(index: u16) -> Option<MsiMessage> {
    let reached = index >> AMD_MOST_LG2 == 0;
    reached.then_some(MsiMessage { address: WINDOW, data: index.into() })
}

/// A redirection entry that names entry `index` of the I/O APIC's table behind AMD-Vi; `None` for an
/// index that it cannot name.
pub fn amd_redirection(
    index: u16,
    target: &InterruptTarget,
    polarity: Polarity,
) -> Option<RedirectionEntry> {
    let reached = index >> AMD_MOST_LG2 == 0;
    let line = line(target.trigger, polarity);
    reached.then_some(RedirectionEntry::new(line | u64::from(index)))
}

/// A message that chooses CPU and vector itself: a unit's own, which no unit remaps. Upper bits of
/// an identifier of 32 bits are in the upper half of the address.
///
/// # Errors
/// [`InterruptError::Destination`] if it has no room for the destination.
pub fn plain_message(
    target: &InterruptTarget,
    apic: ApicMode,
) -> Result<MsiMessage, InterruptError> {
    const HINT: u64 = 1 << 3;
    const LOGICAL: u64 = 1 << 2;
    const MODE: Bits = Bits::new(8, 3);
    checked(target.destination, apic)?;
    let to = u64::from(target.destination.get());
    let mut address = (to & !0xff) << 32 | WINDOW | (to & 0xff) << 12;
    if matches!(target.destination, Destination::Logical(_)) {
        address |= LOGICAL;
    }
    if target.delivery == Delivery::LowestPriority {
        address |= HINT;
    }
    let mode = MODE.at(delivery_mode(target.delivery));
    let level = match target.trigger {
        Trigger::Edge => 0,
        Trigger::Level => 3 << 14,
    };
    let data = u64::from(target.vector.get()) | mode | level;
    Ok(MsiMessage { address, data: data as u32 })
}

/// The number of a delivery mode.
pub(crate) fn delivery_mode(delivery: Delivery) -> u64 {
    match delivery {
        Delivery::Fixed => 0,
        Delivery::LowestPriority => 1,
    }
}

/// Refuses destinations that identifiers of `apic` do not reach.
pub(crate) fn checked(destination: Destination, apic: ApicMode) -> Result<(), InterruptError> {
    match apic {
        ApicMode::XApic if destination.get() > 0xff => {
            Err(InterruptError::Destination(destination))
        }
        ApicMode::XApic | ApicMode::X2Apic => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::iommu::Vector;

    fn target(vector: u8, destination: Destination) -> InterruptTarget {
        InterruptTarget::new(Vector::new(vector).unwrap(), destination)
    }

    /// Words that a person wrote down from the figures of section 5.1.5.
    #[test]
    fn vtd_names_an_entry() {
        let address = |index| vtd_message(index).address;
        assert_eq!(
            [0, 1, 0x7fff, 0x8000, 0xffff].map(address),
            [0xfee0_0010, 0xfee0_0030, 0xfeef_fff0, 0xfee0_0014, 0xfeef_fff4]
        );
        assert_eq!(vtd_message(0xffff).data, 0);
        let mut level = target(0x41, Destination::Physical(3));
        let edge = vtd_redirection(0x8001, &level, Polarity::High).get();
        assert_eq!(edge, 0x0003_0000_0000_0841);
        level.trigger = Trigger::Level;
        let low = vtd_redirection(2, &level, Polarity::Low).get();
        assert_eq!(low, 0x0005_0000_0000_a041);
    }

    #[test]
    fn amd_names_an_entry_that_a_delivery_mode_leaves_room_for() {
        assert_eq!(amd_message(0x1ff).map(|of| of.data), Some(0x1ff));
        assert_eq!(amd_message(0x200), None);
        let mut level = target(0x41, Destination::Physical(3));
        level.trigger = Trigger::Level;
        let entry = amd_redirection(0x17, &level, Polarity::Low);
        assert_eq!(entry, Some(RedirectionEntry::new(0xa017)));
        assert_eq!(amd_redirection(0x200, &level, Polarity::Low), None);
    }

    #[test]
    fn a_units_own_message_is_the_cpus() {
        let mut wide = target(0x52, Destination::Physical(0x1_2345));
        let of = |target: &InterruptTarget, apic| {
            plain_message(target, apic).map(|of| (of.address, of.data))
        };
        let refused = InterruptError::Destination(wide.destination);
        assert_eq!(of(&wide, ApicMode::XApic), Err(refused));
        let x2 = of(&wide, ApicMode::X2Apic);
        assert_eq!(x2, Ok((0x0001_2300_fee4_5000, 0x52)));
        wide.destination = Destination::Logical(6);
        wide.delivery = Delivery::LowestPriority;
        assert_eq!(of(&wide, ApicMode::XApic), Ok((0xfee0_600c, 0x152)));
        wide.trigger = Trigger::Level;
        assert_eq!(of(&wide, ApicMode::XApic), Ok((0xfee0_600c, 0xc152)));
    }
}
