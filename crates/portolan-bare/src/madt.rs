//! The processors of a machine and their interrupt controllers, by firmware's table of those (MADT).
//!
//! ACPI specification 6.5, section 5.2.12. Not supported: processors that can be plugged in.
//!
//! *Context.* Interrupt.

use portolan::addr::PhysAddr;
use portolan_tables::sdt::{HEADER_BYTES, Sdt};

/// Signature of the table.
pub const SIGNATURE: [u8; 4] = *b"APIC";

/// Bytes before the first entry, behind the header: the APIC's address, and flags.
const FIXED: usize = 8;
/// Kinds of entries.
const LOCAL_APIC: u8 = 0;
const LOCAL_X2APIC: u8 = 9;
const GICC: u8 = 11;
const GICD: u8 = 12;
/// The flag that says that the processor can be used.
const ENABLED: u32 = 1;

/// The hardware's number of each processor that can be used: the number of its APIC (x86-64), or
/// its affinity, as in MPIDR_EL1 (AArch64). `None` for other tables and damaged ones; where an
/// entry is damaged, those before it.
pub fn processors(table: &[u8]) -> Option<impl Iterator<Item = u64>> {
    Some(entries(table)?.filter_map(processor))
}

/// Address of the registers of each processor's local APIC.
pub fn local_apic(table: &[u8]) -> Option<PhysAddr> {
    let table = Sdt::parse_as(table, SIGNATURE).ok()?.as_slice();
    Some(PhysAddr::new(number(table, HEADER_BYTES)?.into()))
}

/// The registers of the distributor of a GIC, and those that each processor finds at the same place;
/// the latter are at 0 where there are none.
pub fn gic(table: &[u8]) -> Option<(PhysAddr, PhysAddr)> {
    let place = |kind: u8, at: usize| {
        let entry = entries(table)?.find(|entry| entry.first() == Some(&kind))?;
        let (low, high) = (number(entry, at)?, number(entry, at + 4)?);
        Some(PhysAddr::new(u64::from(high) << 32 | u64::from(low)))
    };
    Some((place(GICD, 8)?, place(GICC, 32)?))
}

fn entries(table: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let table = Sdt::parse_as(table, SIGNATURE).ok()?.as_slice();
    let mut rest = table.get(HEADER_BYTES + FIXED..)?;
    Some(core::iter::from_fn(move || {
        let length = usize::from(*rest.get(1)?);
        // An entry has room for its own head, and ends in the table.
        let (entry, after) = rest.split_at_checked(length.max(2))?;
        rest = after;
        Some(entry)
    }))
}

fn number(of: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(of.get(at..at + 4)?.try_into().ok()?))
}

fn processor(entry: &[u8]) -> Option<u64> {
    let word = |at| number(entry, at);
    let (flags, name) = match *entry.first()? {
        LOCAL_APIC => (word(4)?, (*entry.get(3)?).into()),
        LOCAL_X2APIC => (word(8)?, word(4)?.into()),
        GICC => (word(12)?, u64::from(word(72)?) << 32 | u64::from(word(68)?)),
        _ => return None,
    };
    (flags & ENABLED != 0).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn table(entries: &[&[u8]]) -> Vec<u8> {
        crate::acpi::tests::table(SIGNATURE, &[&[0; FIXED][..], &entries.concat()].concat())
    }

    fn found(table: &[u8]) -> Option<Vec<u64>> {
        processors(table).map(Iterator::collect)
    }

    #[test]
    fn processors_that_can_be_used_are_found() {
        let apic = |number, flags| [0, 8, 0, number, flags, 0, 0, 0];
        let x2apic = [9, 16, 0, 0, 0x34, 0x12, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0];
        let io_apic = [1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let all = table(&[&apic(0, 1), &io_apic, &apic(5, 1), &apic(6, 0), &x2apic]);
        assert_eq!(found(&all), Some(alloc::vec![0, 5, 0x1234]));
        let mut gicc = [0; 80];
        (gicc[0], gicc[1], gicc[12], gicc[69], gicc[72]) = (11, 80, 1, 2, 3);
        assert_eq!(found(&table(&[&gicc])), Some(alloc::vec![0x3_0000_0200]));
    }

    #[test]
    fn controllers_have_registers() {
        let (mut gicc, mut gicd) = ([0; 80], [0; 24]);
        (gicc[0], gicc[1], gicc[34], gicc[35]) = (11, 80, 1, 8);
        (gicd[0], gicd[1], gicd[11], gicd[12]) = (12, 24, 8, 1);
        let both = table(&[&gicc, &gicd]);
        let at = (PhysAddr::new(0x1_0800_0000), PhysAddr::new(0x0801_0000));
        assert_eq!(gic(&both), Some(at));
        assert_eq!(gic(&table(&[&gicc])), None);
        assert_eq!(local_apic(&both), Some(PhysAddr::new(0)));
        assert_eq!(local_apic(&both[1..]), None);
    }

    #[test]
    fn a_table_that_lies_ends_where_it_lies() {
        let apic = [0, 8, 0, 3, 1, 0, 0, 0];
        for (liar, and_then) in [(&[0, 0, 0][..], 0), (&[0, 200, 0], 0), (&[0], 0), (&[0, 3, 0], 1)]
        {
            let names = found(&table(&[&apic, liar, &apic])).unwrap();
            assert_eq!(names[0], 3, "{liar:?}");
            assert!(names.len() <= 1 + and_then, "{liar:?}: {names:?}");
        }
        let mut wrong = table(&[&apic]);
        wrong[40] ^= 1;
        assert_eq!(found(&wrong), found(&table(&[&apic])));
        assert_eq!(found(&table(&[])[..40]), None);
    }
}
