//! Tylersburg's isochronous unit: the chipsets 5500, 5520 and X58 have a unit of their own for the sound
//! controller, whose TLB firmware sizes. Some firmware gives it no entry, and the first access waits for ever.
//!
//! The facts are Linux's (`check_tylersburg_isoch` in `drivers/iommu/intel/iommu.c`). No Intel document that is
//! published describes the register.
//!
//! *Context.* Interrupt: everything here is a value.

/// Device identifier of the sound controller (Azalia) in ICH10, which these chipsets are used with.
pub const AZALIA: u16 = 0x3a3e;

/// Device identifier of the chipset's function for system management, which firmware may hide.
pub const SYSTEM_MANAGEMENT: u16 = 0x342e;

/// Offset of the register VTISOCHCTRL in that function's configuration space.
pub const VTISOCHCTRL: u16 = 0x188;

/// Number of TLB entries that the unit should have.
pub const RECOMMENDED_ENTRIES: u8 = 16;

/// Bit of VTISOCHCTRL: the sound controller goes through another unit.
const OTHER_UNIT: u32 = 1;
/// Bits of VTISOCHCTRL that are the number of entries.
const ENTRIES: u32 = 0x1c;

/// Number of TLB entries that firmware gave the isochronous unit, by the value of VTISOCHCTRL; `None` if the
/// sound controller does not go through it. With 0 it hangs when
/// it is translated.
pub const fn isochronous_entries(control: u32) -> Option<u8> {
    match control & OTHER_UNIT {
        0 => Some((control & ENTRIES) as u8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tlb_entries_count_where_the_isochronous_unit_is_used() {
        let of = [0, 4, 0x10, 0x1c, 0xffff_fff0].map(isochronous_entries);
        assert_eq!(of, [0, 4, 16, 28, 16].map(Some));
        assert_eq!([1, 0x11, u32::MAX].map(isochronous_entries), [None; 3]);
    }
}
