//! Firmware's table of interrupt controllers and processors (MADT): all that is said in it is read.

use portolan_bare::madt;
use portolan_hw::topology::Topology;

/// Offsets of a table's length and its checksum.
const LENGTH: usize = 4;
const CHECKSUM: usize = 9;
const HEADER: usize = 36;

/// Reads the bytes as they are, and as a MADT of that length, with a table of units.
pub fn madt(bytes: &[u8]) {
    read(bytes);
    if bytes.len() < HEADER {
        return;
    }
    let mut table = bytes.to_vec();
    table[..4].copy_from_slice(&madt::SIGNATURE);
    table[LENGTH..LENGTH + 4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    table[CHECKSUM] = 0;
    let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    table[CHECKSUM] = sum.wrapping_neg();
    read(&table);
}

fn read(table: &[u8]) {
    let processors = madt::processors(table);
    assert!(processors.is_none_or(|all| all.count() <= table.len()));
    let _ = (madt::local_apic(table), madt::gic(table));
    // The bytes may be a damaged table of units, which is refused.
    if let Ok(topology) = Topology::from_acpi([table, &units()]) {
        let _ = topology.interrupt_remapping(|_, _| None);
    }
}

/// A DMAR of one unit, which has the I/O APIC with identifier 0.
fn units() -> Vec<u8> {
    let mut dmar = b"DMAR".to_vec();
    dmar.resize(HEADER, 0);
    // Addresses of 48 bits, interrupt remapping.
    dmar.extend([47, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    dmar.extend([0, 0, 24, 0, 1, 0, 0, 0, 0, 0, 0xd9, 0xfe, 0, 0, 0, 0]);
    dmar.extend([3, 8, 0, 0, 0, 0, 0x1f, 0]);
    let length = dmar.len() as u32;
    dmar[LENGTH..LENGTH + 4].copy_from_slice(&length.to_le_bytes());
    let sum = dmar.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    dmar[CHECKSUM] = sum.wrapping_neg();
    dmar
}
