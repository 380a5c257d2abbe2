//! ACPI's tables from QEMU's firmware configuration device, for kernels that start without firmware.
//!
//! QEMU: `docs/specs/fw_cfg` (the interface by registers, the directory), and the commands of its file
//! `etc/table-loader`, of which only the checksums matter to a reader of tables in place. Not
//! supported: tables that are found by other tables' pointers, and DMA.
//!
//! *Context.* Task: takes heap memory.

use alloc::vec;
use alloc::vec::Vec;

use portolan::platform::{MappedRegisters, Mmio};

/// Offsets of the registers.
const DATA: usize = 0;
const SELECTOR: usize = 8;

/// The key of the directory.
const DIRECTORY: u16 = 0x19;
/// Bytes of an entry of the directory.
const ENTRY: usize = 64;
/// Entries, at most.
const MOST_ENTRIES: u32 = 1024;
/// A file that says that it is longer is none.
const LONGEST: u32 = 1 << 24;

const TABLES: &[u8] = b"etc/acpi/tables";
const LOADER: &[u8] = b"etc/table-loader";

/// Bytes of a command of the loader's.
const COMMAND: usize = 128;
/// The command that fills in a checksum, and where its numbers are.
const ADD_CHECKSUM: u32 = 3;
const NAME: usize = 4;
const RESULT: usize = 60;
const START: usize = 64;
const LENGTH: usize = 68;

/// The device, by its registers.
pub struct FwCfg<R> {
    registers: R,
}

/// The registers as the device wants them.
pub trait Selector: Mmio {
    /// Writes two bytes.
    fn write16(&self, offset: usize, value: u16);
}

impl Selector for MappedRegisters {
    fn write16(&self, offset: usize, value: u16) {
        Self::write16(self, offset, value);
    }
}

impl<R: Selector> FwCfg<R> {
    /// The device behind `registers`.
    pub const fn new(registers: R) -> Self {
        Self { registers }
    }

    fn select(&self, key: u16) {
        self.registers.write16(SELECTOR, key.to_be());
    }

    /// The next `count` bytes, and up to three more that are not returned.
    fn read(&self, count: usize) -> Vec<u8> {
        let words = (0..count.div_ceil(4)).map(|_| self.registers.read32(DATA));
        let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        bytes.truncate(count);
        bytes
    }

    /// A file's bytes.
    fn file(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.select(DIRECTORY);
        let count = self.registers.read32(DATA).swap_bytes().min(MOST_ENTRIES);
        let directory = self.read(count as usize * ENTRY);
        let entry = directory.chunks_exact(ENTRY).find(|entry| name_of(entry, 8) == name)?;
        let size = u32::from_be_bytes(entry.get(..4)?.try_into().ok()?);
        let key = u16::from_be_bytes(entry.get(4..6)?.try_into().ok()?);
        if size > LONGEST {
            return None;
        }
        self.select(key);
        Some(self.read(size as usize))
    }

    /// ACPI's tables, one after the other, with their checksums.
    pub fn tables(&self) -> Option<Vec<u8>> {
        let mut tables = self.file(TABLES)?;
        let loader = self.file(LOADER)?;
        for command in loader.chunks_exact(COMMAND) {
            let number = |at: usize| {
                let four = command.get(at..at + 4).and_then(|four| four.try_into().ok());
                four.map_or(0, u32::from_le_bytes)
            };
            if number(0) != ADD_CHECKSUM || name_of(command, NAME) != TABLES {
                continue;
            }
            let start = number(START) as usize;
            let part = start.checked_add(number(LENGTH) as usize);
            let part = part.and_then(|end| tables.get(start..end));
            let sum = part.map(|part| part.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
            let place = tables.get_mut(number(RESULT) as usize);
            if let (Some(sum), Some(place)) = (sum, place) {
                *place = place.wrapping_sub(sum);
            }
        }
        Some(tables)
    }
}

/// The name at `at`, up to a zero.
fn name_of(bytes: &[u8], at: usize) -> &[u8] {
    let name = bytes.get(at..at + 56).unwrap_or_default();
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The tables that lie in `bytes` one after the other, each as a slice that stays for good.
pub fn each(bytes: Vec<u8>) -> Vec<&'static [u8]> {
    let tables = portolan_tables::sdt::Tables::new(vec::Vec::leak(bytes));
    let whole = tables.filter_map(Result::ok);
    whole.map(|(_, table)| table.as_slice()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acpi::tests::table;
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A device with these files, from key 0x20 on.
    struct Device {
        files: Vec<(&'static [u8], Vec<u8>)>,
        key: AtomicUsize,
        at: AtomicUsize,
    }

    impl Device {
        fn selected(&self) -> Vec<u8> {
            let key = self.key.load(Relaxed);
            if key != usize::from(DIRECTORY) {
                let file = key.checked_sub(0x20).and_then(|key| self.files.get(key));
                return file.map(|(_, bytes)| bytes.clone()).unwrap_or_default();
            }
            let mut all = (self.files.len() as u32).to_be_bytes().to_vec();
            for (key, (name, bytes)) in (0x20u16..).zip(&self.files) {
                all.extend((bytes.len() as u32).to_be_bytes());
                all.extend(key.to_be_bytes());
                all.extend([0; 2]);
                all.extend(*name);
                all.resize(all.len() + 56 - name.len(), 0);
            }
            all
        }
    }

    impl Mmio for Device {
        fn read32(&self, offset: usize) -> u32 {
            assert_eq!(offset, DATA);
            let at = self.at.fetch_add(4, Relaxed);
            let file = self.selected();
            let byte = |n: usize| file.get(at + n).copied().unwrap_or(0);
            u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
        }

        fn write32(&self, _offset: usize, _value: u32) {}
    }

    impl Selector for Device {
        fn write16(&self, offset: usize, value: u16) {
            assert_eq!(offset, SELECTOR);
            self.key.store(value.swap_bytes().into(), Relaxed);
            self.at.store(0, Relaxed);
        }
    }

    fn command(kind: u32, name: &[u8], numbers: [u32; 3]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(name);
        bytes.resize(60, 0);
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.resize(COMMAND, 0);
        bytes
    }

    fn device(tables: Vec<u8>, loader: Vec<u8>) -> FwCfg<Device> {
        let files = vec![(&b"bootorder"[..], vec![7; 5]), (TABLES, tables), (LOADER, loader)];
        FwCfg::new(Device { files, key: AtomicUsize::new(0), at: AtomicUsize::new(0) })
    }

    #[test]
    fn tables_get_their_checksums() {
        let good = [table(*b"MCFG", &[1, 2, 3]), table(*b"IORT", &[9; 50])];
        let both = good.concat();
        let mut without = both.clone();
        let second = good[0].len() as u32;
        (without[9], without[second as usize + 9]) = (0, 0);
        let loader = [
            command(1, TABLES, [0; 3]),
            command(ADD_CHECKSUM, TABLES, [9, 0, second]),
            command(ADD_CHECKSUM, TABLES, [second + 9, second, good[1].len() as u32]),
            command(ADD_CHECKSUM, b"etc/acpi/rsdp", [0, 0, 8]),
            // Bytes outside are left alone.
            command(ADD_CHECKSUM, TABLES, [0, 8, u32::MAX]),
            command(ADD_CHECKSUM, TABLES, [u32::MAX, 0, 8]),
        ];
        let tables = device(without, loader.concat()).tables().unwrap();
        assert_eq!(tables, both);
        assert_eq!(each(tables), good);
    }

    #[test]
    fn a_device_without_the_files_has_no_tables() {
        let mut none = device(vec![], vec![]);
        none.registers.files.truncate(2);
        assert_eq!(none.tables(), None);
        none.registers.files.clear();
        assert_eq!(none.tables(), None);
    }
}
