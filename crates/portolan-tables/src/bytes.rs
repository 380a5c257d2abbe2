//! Checked little-endian reads from a part of a table.

use super::TableError;
use crate::counted;

/// The number that up to eight bytes are, the lowest first.
pub(super) fn number(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    for (to, from) in whole.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(whole)
}

/// Part of a table that remembers where in the table it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes<'a> {
    data: &'a [u8],
    /// Offset of the first byte in the table.
    at: usize,
}

impl<'a> Bytes<'a> {
    pub(super) const fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    pub(super) const fn len(self) -> usize {
        self.data.len()
    }

    pub(super) const fn as_slice(self) -> &'a [u8] {
        self.data
    }

    /// Offset of the part in the table, in bytes.
    pub(super) const fn offset(self) -> usize {
        self.at
    }

    /// `len` bytes from `start`.
    pub(super) fn part(self, start: usize, len: usize) -> Result<Self, TableError> {
        let data = start.checked_add(len).and_then(|end| self.data.get(start..end));
        let at = self.at.saturating_add(start);
        data.map(|data| Self { data, at }).ok_or(TableError::Truncated { offset: at, needed: len })
    }

    /// Everything from `start`; empty if that is past the end.
    pub(super) fn from(self, start: usize) -> Self {
        Self { data: self.data.get(start..).unwrap_or(&[]), at: self.at.saturating_add(start) }
    }

    /// The first structure of `len` bytes, if its fixed part of `fixed` bytes is in it.
    pub(super) fn structure(self, len: usize, fixed: usize) -> Result<Self, TableError> {
        if len < fixed {
            return Err(TableError::Length { offset: self.at, length: len });
        }
        self.part(0, len)
    }

    pub(super) fn array<const N: usize>(self, at: usize) -> Result<[u8; N], TableError> {
        let part = self.part(at, N)?;
        counted::add(N);
        part.data.try_into().map_err(|_| TableError::Truncated { offset: part.at, needed: N })
    }

    pub(super) fn u8(self, at: usize) -> Result<u8, TableError> {
        Ok(u8::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u16(self, at: usize) -> Result<u16, TableError> {
        Ok(u16::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u32(self, at: usize) -> Result<u32, TableError> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u64(self, at: usize) -> Result<u64, TableError> {
        Ok(u64::from_le_bytes(self.array(at)?))
    }

    /// A name that ends at a zero byte or at the end of the part.
    pub(super) fn name(self, at: usize) -> &'a [u8] {
        let rest = self.from(at).data;
        rest.split(|&byte| byte == 0).next().unwrap_or(&[])
    }
}
