//! Files that QEMU offers firmware, ACPI tables among them, read by the DMA interface.
//!
//! QEMU's `docs/specs/fw_cfg`. The interface bypasses the IOMMU. Writing is not supported.

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::OutOfTableMemory;
use thiserror::Error;

use crate::config::Architecture;
use crate::dma::poll;
use crate::machine::Machine;
use crate::qtest::{Batch, QtestError};
use crate::ram::OutsideRam;

/// QEMU's file with all ACPI tables.
pub const ACPI_TABLES: &str = "etc/acpi/tables";

/// Selector of the directory.
const DIRECTORY: u16 = 0x19;
/// Bytes of a directory entry: size, selector, reserved, name.
const ENTRY: usize = 64;
/// Files in the directory at most.
const MAX_FILES: u32 = 1024;
/// Bytes of a file at most.
const MAX_FILE: u32 = 16 << 20;
/// Bytes read at a time.
const PIECE: u32 = 1 << 16;
const CONTROL_ERROR: u32 = 1;
const CONTROL_READ: u32 = 2;
const CONTROL_SELECT: u32 = 8;
/// Longest time that one transfer may take.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// Reason why a file could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FwCfgError {
    /// QEMU did not answer.
    #[error(transparent)]
    Qtest(#[from] QtestError),
    /// No RAM for the transfer.
    #[error(transparent)]
    Memory(#[from] OutOfTableMemory),
    /// The transfer buffer is not in RAM.
    #[error(transparent)]
    Ram(#[from] OutsideRam),
    /// The interface reports an error.
    #[error("the interface refused to read item {selector:#x}")]
    Refused {
        /// The item.
        selector: u16,
    },
    /// The interface does not finish.
    #[error("reading item {selector:#x} does not end")]
    TimedOut {
        /// The item.
        selector: u16,
    },
    /// A number in the directory is beyond the limit.
    #[error("the directory says {value}, which is too much")]
    TooLarge {
        /// The number.
        value: u32,
    },
    /// There is no file of this name.
    #[error("no such file")]
    Absent,
}

/// A file of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u32,
    selector: u16,
}

/// Names and sizes of all files.
///
/// # Errors
/// [`FwCfgError`].
pub fn directory(machine: &Machine) -> Result<Vec<Entry>, FwCfgError> {
    let reader = Reader::new(machine)?;
    let count = be32(&reader.item(DIRECTORY, 4)?, 0);
    if count > MAX_FILES {
        return Err(FwCfgError::TooLarge { value: count });
    }
    let bytes = reader.item(DIRECTORY, 4 + count * ENTRY as u32)?;
    let entries = bytes.get(4..).unwrap_or_default().chunks_exact(ENTRY);
    Ok(entries
        .map(|entry| {
            let name = entry
                .get(8..)
                .unwrap_or_default()
                .split(|byte| *byte == 0)
                .next()
                .unwrap_or_default();
            Entry {
                name: String::from_utf8_lossy(name).into_owned(),
                bytes: be32(entry, 0),
                selector: (be32(entry, 4) >> 16) as u16,
            }
        })
        .collect())
}

/// The contents of the file `name`.
///
/// # Errors
/// [`FwCfgError::Absent`] if there is none; otherwise the error of reading.
pub fn read(machine: &Machine, name: &str) -> Result<Vec<u8>, FwCfgError> {
    let found = directory(machine)?.into_iter().find(|entry| entry.name == name);
    let entry = found.ok_or(FwCfgError::Absent)?;
    if entry.bytes > MAX_FILE {
        return Err(FwCfgError::TooLarge { value: entry.bytes });
    }
    Reader::new(machine)?.item(entry.selector, entry.bytes)
}

/// The ACPI table `signature` out of the contents of [`ACPI_TABLES`], with its checksum.
///
/// In the file the checksums are still to be made, and pointers from table to table are offsets in
/// the file: firmware would fix both. Tables that are read on their own, as DMAR, IORT and VIOT,
/// need the checksum only.
pub fn acpi_table(tables: &[u8], signature: [u8; 4]) -> Option<Vec<u8>> {
    const CHECKSUM: usize = 9;
    let mut rest = tables;
    while let Some(head) = rest.get(..8) {
        let bytes = head
            .get(4..8)
            .and_then(|b| b.try_into().ok())
            .map(u32::from_le_bytes)
            .and_then(|b| usize::try_from(b).ok())
            .unwrap_or(0);
        let letters = head.get(..4).is_some_and(|s| s.iter().all(u8::is_ascii_alphanumeric));
        let table = rest.get(..bytes).filter(|table| letters && table.len() >= 8);
        let Some(table) = table else {
            // Between tables there is padding.
            rest = rest.get(1..).unwrap_or_default();
            continue;
        };
        if head.get(..4) == Some(&signature[..]) && bytes >= 36 {
            let mut table = table.to_vec();
            if let Some(sum) = table.get_mut(CHECKSUM) {
                *sum = 0;
            }
            let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            if let Some(checksum) = table.get_mut(CHECKSUM) {
                *checksum = sum.wrapping_neg();
            }
            return Some(table);
        }
        rest = rest.get(bytes..).unwrap_or_default();
    }
    None
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.copied().map_or(0, u32::from_be_bytes)
}

/// Reads items through one buffer, and gives the buffer back when dropped.
struct Reader<'m> {
    machine: &'m Machine,
    buffer: PhysAddr,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.machine.tables().free(self.buffer, Self::BUFFER);
    }
}

impl<'m> Reader<'m> {
    /// A command in front, and a piece of data in the second half.
    const BUFFER: PageSize = PageSize::of_lg2(PIECE.ilog2() + 1);

    fn new(machine: &'m Machine) -> Result<Self, FwCfgError> {
        let buffer = machine.tables().alloc(Self::BUFFER)?;
        Ok(Self { machine, buffer })
    }

    /// The first `bytes` bytes of an item.
    fn item(&self, selector: u16, bytes: u32) -> Result<Vec<u8>, FwCfgError> {
        let mut found = Vec::new();
        let mut select = u32::from(selector) << 16 | CONTROL_SELECT;
        let mut left = bytes;
        while left > 0 {
            let count = left.min(PIECE);
            let data = self.transfer(selector, select | CONTROL_READ, count)?;
            let mut piece = vec![0; count as usize];
            self.machine.ram().read(data, &mut piece)?;
            found.append(&mut piece);
            left -= count;
            select = 0;
        }
        Ok(found)
    }

    fn transfer(&self, selector: u16, control: u32, bytes: u32) -> Result<PhysAddr, FwCfgError> {
        let (ram, command) = (self.machine.ram(), self.buffer.get());
        let data = PhysAddr::new(command + u64::from(PIECE));
        ram.write32(PhysAddr::new(command), control.to_be())?;
        ram.write32(PhysAddr::new(command + 4), bytes.to_be())?;
        ram.write64(PhysAddr::new(command + 8), data.get().to_be())?;
        let (high, low) = ((command >> 32) as u32, command as u32);
        let mut batch = Batch::new();
        match self.machine.architecture() {
            Architecture::X86 => {
                batch.out32(0x514, high.to_be()).out32(0x518, low.to_be());
            }
            Architecture::Aarch64 => {
                batch.write64(0x0902_0010, command.to_be());
            }
            Architecture::Riscv64 => {
                batch.write64(0x1010_0010, command.to_be());
            }
        }
        self.machine.qtest().submit(&batch)?;
        let done = poll(LIMIT, || {
            let control = u32::from_be(ram.read32(PhysAddr::new(command))?);
            Ok::<_, FwCfgError>((control & !CONTROL_ERROR == 0).then_some(control))
        })?;
        match done {
            Some(0) => Ok(data),
            Some(_) => Err(FwCfgError::Refused { selector }),
            None => Err(FwCfgError::TimedOut { selector }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_behind_padding() {
        let table = |signature: &[u8; 4], bytes: u8| {
            let mut table = vec![7; usize::from(bytes)];
            table[..4].copy_from_slice(signature);
            table[4..8].copy_from_slice(&u32::from(bytes).to_le_bytes());
            table
        };
        let file = [table(b"FACS", 64), vec![0; 13], table(b"DMAR", 48), table(b"XXXX", 8)];
        let file = file.concat();
        let found = acpi_table(&file, *b"DMAR").unwrap();
        assert_eq!(found.len(), 48);
        assert_eq!(found.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(acpi_table(&file, *b"IORT"), None);
        // Cut off, or too short for a header.
        assert_eq!(acpi_table(&file[..100], *b"DMAR"), None);
        assert_eq!(acpi_table(&file, *b"XXXX"), None);
        assert_eq!(acpi_table(&[0xff; 64], *b"DMAR"), None);
    }
}
