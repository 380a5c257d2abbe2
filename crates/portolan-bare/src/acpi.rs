//! From ACPI's root pointer to firmware's tables.
//!
//! ACPI specification 6.5, sections 5.2.5 (root pointer), 5.2.7 and 5.2.8 (RSDT, XSDT). Not
//! supported: the search for a root pointer in low memory; boot loaders say where it is.
//!
//! *Context.* Task: takes heap memory.

use alloc::vec::Vec;

use portolan::addr::{PhysAddr, PhysRange};
use portolan_tables::TableError;
use portolan_tables::sdt::{HEADER_BYTES, Sdt};
use thiserror::Error;

/// Bytes of the root pointer as ACPI 1.0 has it: those that the first checksum covers.
const OLD_ROOT: u64 = 20;
/// Bytes of the root pointer since ACPI 2.0.
const ROOT: u64 = 36;
/// A table that says that it is longer is none.
const LONGEST: u64 = 1 << 24;

/// Reason why there are no tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AcpiError {
    /// Firmware points at something that is no memory.
    #[error("there is no memory at {at}")]
    NoMemory {
        /// The address of the table.
        at: PhysAddr,
    },
    /// The structure at the root pointer's address is no root pointer.
    #[error("there is no root pointer at {at}")]
    NoRoot {
        /// The address of the table.
        at: PhysAddr,
    },
    /// The root table is damaged.
    #[error("the root table: {0}")]
    Root(#[from] TableError),
}

/// Source of the bytes of firmware's tables.
pub trait Firmware {
    /// The bytes at `range`; `None` if there is no memory.
    fn bytes(&self, range: PhysRange) -> Option<&'static [u8]>;
}

fn bytes(firmware: &impl Firmware, at: PhysAddr, bytes: u64) -> Result<&'static [u8], AcpiError> {
    let range = PhysRange::from_len(at, bytes);
    let found = range.and_then(|range| firmware.bytes(range));
    found.ok_or(AcpiError::NoMemory { at })
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// The bytes of the table at `at`.
fn table(firmware: &impl Firmware, at: PhysAddr) -> Result<&'static [u8], AcpiError> {
    let header = bytes(firmware, at, HEADER_BYTES as u64)?;
    let length = header.get(4..8).and_then(|four| four.try_into().ok());
    let length = u64::from(u32::from_le_bytes(length.unwrap_or_default()));
    match length {
        // A parser reports the error of a header whose length is too short.
        0..=LONGEST => bytes(firmware, at, length.max(HEADER_BYTES as u64)),
        _ => Err(AcpiError::NoMemory { at }),
    }
}

/// The address of the root table that the pointer at `root` leads to.
fn root_table(firmware: &impl Firmware, root: PhysAddr) -> Result<PhysAddr, AcpiError> {
    let none = AcpiError::NoRoot { at: root };
    let old = bytes(firmware, root, OLD_ROOT)?;
    if !old.starts_with(b"RSD PTR ") || sum(old) != 0 {
        return Err(none);
    }
    let (revision, rsdt) = match *old {
        [.., revision, a, b, c, d] => (revision, u32::from_le_bytes([a, b, c, d])),
        _ => return Err(none),
    };
    if revision < 2 {
        return Ok(PhysAddr::new(rsdt.into()));
    }
    let new = bytes(firmware, root, ROOT)?;
    let xsdt = new.get(24..32).and_then(|eight| eight.try_into().ok());
    match (sum(new), xsdt.map(u64::from_le_bytes)) {
        (0, Some(xsdt)) if xsdt != 0 => Ok(PhysAddr::new(xsdt)),
        (0, _) => Ok(PhysAddr::new(rsdt.into())),
        _ => Err(none),
    }
}

/// All tables that the root pointer at `root` leads to. Entries that lead to no memory are left out;
/// the others may be damaged, which their parsers find out.
///
/// # Errors
/// See [`AcpiError`].
pub fn tables(firmware: &impl Firmware, root: PhysAddr) -> Result<Vec<&'static [u8]>, AcpiError> {
    let at = root_table(firmware, root)?;
    let entries = Sdt::parse(table(firmware, at)?)?.entries()?;
    let found = entries.filter_map(|at| table(firmware, at).ok());
    Ok(found.collect())
}

/// Signature of the fixed description table.
pub const FADT: [u8; 4] = *b"FACP";

/// The power-management timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerTimer {
    /// Its port.
    pub port: u16,
    /// The bits that it counts with.
    pub mask: u32,
}

impl PowerTimer {
    /// Ticks that it counts in a second.
    pub const HERTZ: u32 = 3_579_545;
}

/// The power-management timer of a fixed description table (sections 4.8.3.3 and 5.2.9); `None` if the
/// machine has none behind a port.
pub fn power_timer(table: &[u8]) -> Option<PowerTimer> {
    let table = Sdt::parse_as(table, FADT).ok()?.as_slice();
    let word = |at: usize| Some(u32::from_le_bytes(table.get(at..at + 4)?.try_into().ok()?));
    let port = u16::try_from(word(76)?).ok().filter(|port| *port != 0)?;
    // PM_TMR_LEN, and TMR_VAL_EXT of the flags.
    let (bytes, flags) = (*table.get(91)?, word(112)?);
    let mask = match flags >> 8 & 1 {
        0 => 0xff_ffff,
        _ => u32::MAX,
    };
    (bytes == 4).then_some(PowerTimer { port, mask })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table of this signature and body.
    pub(crate) fn table(signature: [u8; 4], body: &[u8]) -> Vec<u8> {
        let mut bytes = signature.to_vec();
        bytes.extend((HEADER_BYTES as u32 + body.len() as u32).to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(body);
        bytes[9] = sum(&bytes).wrapping_neg();
        bytes
    }

    /// Memory from 0 on.
    struct Memory(&'static [u8]);

    impl Firmware for Memory {
        fn bytes(&self, range: PhysRange) -> Option<&'static [u8]> {
            let start = usize::try_from(range.start().get()).ok()?;
            let last = usize::try_from(range.last().get()).ok()?;
            self.0.get(start..=last)
        }
    }

    const APIC: usize = 0x100;
    const MCFG: usize = 0x200;
    const RSDT: usize = 0x300;
    const XSDT: usize = 0x400;

    fn put(memory: &mut [u8], at: usize, bytes: &[u8]) {
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn root(revision: u8, xsdt: u64) -> Vec<u8> {
        let mut bytes = b"RSD PTR \0OEMID_".to_vec();
        bytes.push(revision);
        bytes.extend((RSDT as u32).to_le_bytes());
        bytes[8] = sum(&bytes).wrapping_neg();
        bytes.extend(36u32.to_le_bytes());
        bytes.extend(xsdt.to_le_bytes());
        bytes.extend([0; 4]);
        bytes[32] = sum(&bytes).wrapping_neg();
        bytes
    }

    /// An RSDT that leads to MCFG, and an XSDT that leads to both tables and to no memory.
    fn memory(root: &[u8]) -> Memory {
        let mut memory = alloc::vec![0; 0x500];
        put(&mut memory, 0, root);
        put(&mut memory, APIC, &table(*b"APIC", &[1, 2, 3]));
        put(&mut memory, MCFG, &table(*b"MCFG", &[0; 8]));
        let rsdt: Vec<u8> = (MCFG as u32).to_le_bytes().to_vec();
        put(&mut memory, RSDT, &table(*b"RSDT", &rsdt));
        let xsdt = [APIC as u64, 0xffff_ffff_0000, u64::MAX, MCFG as u64];
        let xsdt: Vec<u8> = xsdt.iter().flat_map(|at| at.to_le_bytes()).collect();
        put(&mut memory, XSDT, &table(*b"XSDT", &xsdt));
        Memory(memory.leak())
    }

    fn signatures(memory: &Memory) -> Result<Vec<Vec<u8>>, AcpiError> {
        let tables = tables(memory, PhysAddr::new(0))?;
        Ok(tables.iter().map(|table| table[..4].to_vec()).collect())
    }

    #[test]
    fn both_kinds_of_root_lead_to_their_tables() {
        let new = memory(&root(2, XSDT as u64));
        assert_eq!(signatures(&new).unwrap(), [b"APIC", b"MCFG"]);
        assert_eq!(tables(&new, PhysAddr::new(0)).unwrap()[0][36..], [1, 2, 3]);
        assert_eq!(signatures(&memory(&root(0, XSDT as u64))).unwrap(), [b"MCFG"]);
        assert_eq!(signatures(&memory(&root(2, 0))).unwrap(), [b"MCFG"]);
    }

    #[test]
    fn what_is_no_root_is_said_to_be_none() {
        let none = Err(AcpiError::NoRoot { at: PhysAddr::new(0) });
        let mut flipped = root(2, XSDT as u64);
        flipped[16] ^= 1;
        assert_eq!(signatures(&memory(&flipped)), none);
        let mut flipped = root(2, XSDT as u64);
        flipped[30] ^= 1;
        assert_eq!(signatures(&memory(&flipped)), none);
        assert_eq!(signatures(&memory(b"RSD RTP ")), none);
        // It leads to another table, into nothing, to itself.
        for at in [APIC as u64, 0x1000_0000, 0] {
            let found = signatures(&memory(&root(2, at.max(1))));
            assert!(found.is_err(), "{at:#x}: {found:?}");
        }
        let far = PhysAddr::new(0x1000);
        assert_eq!(tables(&memory(&[]), far), Err(AcpiError::NoMemory { at: far }));
    }

    #[test]
    fn a_table_that_says_it_is_longer_than_memory_is_left_out() {
        let good = memory(&root(2, XSDT as u64));
        for length in [0x1000u32, u32::MAX, 1 << 24] {
            let mut bytes = good.0.to_vec();
            put(&mut bytes, APIC + 4, &length.to_le_bytes());
            let found = signatures(&Memory(bytes.leak()));
            assert_eq!(found.unwrap(), [b"MCFG"], "{length:#x}");
        }
    }

    #[test]
    fn the_timer_is_where_the_fixed_table_says() {
        let timer = |port: u32, bytes: u8, flags: u32| {
            let mut body = alloc::vec![0; 208];
            put(&mut body, 76 - HEADER_BYTES, &port.to_le_bytes());
            body[91 - HEADER_BYTES] = bytes;
            put(&mut body, 112 - HEADER_BYTES, &flags.to_le_bytes());
            power_timer(&table(FADT, &body))
        };
        let (port, mask) = (0x608, 0xff_ffff);
        assert_eq!(timer(0x608, 4, 0x84a5), Some(PowerTimer { port, mask }));
        let mask = u32::MAX;
        assert_eq!(timer(0x608, 4, 1 << 8), Some(PowerTimer { port, mask }));
        assert_eq!(timer(0, 4, 0), None);
        assert_eq!(timer(0x608, 0, 0), None);
        assert_eq!(timer(0x1_0608, 4, 0), None);
        assert_eq!(power_timer(&table(FADT, &[0; 40])), None);
    }
}
