//! System description tables: the common header, checksums, and walks over many tables.
//!
//! ACPI specification 6.5, sections 5.2.6 (header), 5.2.7 and 5.2.8 (RSDT, XSDT). Not supported: the
//! root pointer, FADT and the tables that it points at.
//!
//! *Context.* Interrupt, all functions: nothing waits or allocates; a lookup walks the table.

use portolan::addr::PhysAddr;

use super::TableError;
use super::bytes::{Bytes, number};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 36;

const LENGTH: usize = 4;
const OEM_ID: usize = 10;
const OEM_TABLE_ID: usize = 16;
const OEM_REVISION: usize = 24;

/// Maker of a table, by which bugs of particular firmware are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Maker {
    /// The manufacturer (OEMID), filled up with spaces.
    pub oem: [u8; 6],
    /// The manufacturer's name for the table (OEM Table ID), filled up with spaces.
    pub table: [u8; 8],
    /// The manufacturer's revision of the table (OEM Revision).
    pub revision: u32,
}

/// One table whose length and checksum are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sdt<'a> {
    bytes: Bytes<'a>,
    signature: [u8; 4],
    maker: Maker,
}

impl<'a> Sdt<'a> {
    /// The table at the start of `data`; bytes behind it are left alone.
    ///
    /// # Errors
    /// [`TableError::Truncated`], [`TableError::Length`], [`TableError::Checksum`].
    pub fn parse(data: &'a [u8]) -> Result<Self, TableError> {
        let sdt = Self::unchecked(data)?;
        sdt.summed()?;
        Ok(sdt)
    }

    /// The table at the start of `data`, if it is that of this signature, with any sum of its
    /// bytes: ACPICA warns of a wrong checksum and goes on, and so do kernels with the table's
    /// contents.
    ///
    /// # Errors
    /// [`TableError::Truncated`], [`TableError::Length`], [`TableError::Signature`].
    pub fn parse_as(data: &'a [u8], wanted: [u8; 4]) -> Result<Self, TableError> {
        let found = Bytes::new(data).array(0)?;
        if found != wanted {
            return Err(TableError::Signature { found, wanted });
        }
        Self::unchecked(data)
    }

    /// Checks that the bytes add up.
    ///
    /// # Errors
    /// [`TableError::Checksum`].
    pub fn summed(&self) -> Result<(), TableError> {
        match self.sum() {
            0 => Ok(()),
            sum => Err(TableError::Checksum { sum }),
        }
    }

    fn unchecked(data: &'a [u8]) -> Result<Self, TableError> {
        let all = Bytes::new(data);
        all.part(0, HEADER_BYTES)?;
        // A length that does not fit is longer than any slice.
        let length = usize::try_from(all.u32(LENGTH)?).unwrap_or(usize::MAX);
        Ok(Self {
            bytes: all.structure(length, HEADER_BYTES)?,
            signature: all.array(0)?,
            maker: Maker {
                oem: all.array(OEM_ID)?,
                table: all.array(OEM_TABLE_ID)?,
                revision: all.u32(OEM_REVISION)?,
            },
        })
    }

    fn sum(&self) -> u8 {
        let bytes = self.bytes.as_slice().iter();
        bytes.fold(0, |sum: u8, &byte| sum.wrapping_add(byte))
    }

    /// Signature of the table.
    pub fn signature(&self) -> [u8; 4] {
        self.signature
    }

    /// Maker of the table.
    pub fn maker(&self) -> Maker {
        self.maker
    }

    /// All of it, header included.
    pub fn as_slice(&self) -> &'a [u8] {
        self.bytes.as_slice()
    }

    pub(super) fn bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// The addresses of the tables that an RSDT or an XSDT lists.
    ///
    /// # Errors
    /// [`TableError::Signature`] if it is neither.
    pub fn entries(&self) -> Result<impl Iterator<Item = PhysAddr> + use<'a>, TableError> {
        let width = match &self.signature {
            b"RSDT" => 4,
            b"XSDT" => 8,
            _ => {
                return Err(TableError::Signature { found: self.signature, wanted: *b"XSDT" });
            }
        };
        let entries = self.bytes.from(HEADER_BYTES).as_slice().chunks_exact(width);
        Ok(entries.map(|entry| PhysAddr::new(number(entry))))
    }
}

/// Tables that lie one after the other, as some loaders hand them over.
///
/// Zero bytes between tables are passed over. Tables with a wrong checksum, and such that have none
/// (FACS), are passed over and counted; a length that cannot be ends the walk with its error.
#[derive(Clone, Debug)]
pub struct Tables<'a> {
    rest: &'a [u8],
    at: usize,
    damaged: u32,
}

impl<'a> Tables<'a> {
    /// The tables in `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data, at: 0, damaged: 0 }
    }

    /// Number of tables that were passed over because their bytes do not add up to zero.
    pub fn damaged(&self) -> u32 {
        self.damaged
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or(&[]);
        self.at = self.at.saturating_add(bytes);
    }
}

impl<'a> Iterator for Tables<'a> {
    /// The table and its offset, or why the walk ended early. Errors have the offset in `data`.
    type Item = Result<(usize, Sdt<'a>), TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let padding = self.rest.iter().take_while(|&&byte| byte == 0).count();
            self.advance(padding);
            if self.rest.is_empty() {
                return None;
            }
            match Sdt::unchecked(self.rest) {
                Ok(sdt) => {
                    let at = self.at;
                    self.advance(sdt.bytes.len());
                    if sdt.sum() == 0 {
                        return Some(Ok((at, sdt)));
                    }
                    self.damaged = self.damaged.saturating_add(1);
                }
                Err(error) => {
                    self.rest = &[];
                    return Some(Err(moved(error, self.at)));
                }
            }
        }
    }
}

/// The error with its offset counted from `by` bytes earlier.
fn moved(error: TableError, by: usize) -> TableError {
    match error {
        TableError::Truncated { offset, needed } => {
            TableError::Truncated { offset: offset.saturating_add(by), needed }
        }
        TableError::Length { offset, length } => {
            TableError::Length { offset: offset.saturating_add(by), length }
        }
        other => other,
    }
}
