//! Contents of the guests' disks.

use crate::demo::sectors;

const SECTORS: usize = (1 << 20) / 512;

/// A disk of so many MiB on which no two sectors are the same.
pub fn before(mebibytes: usize) -> Vec<u8> {
    sectors(mebibytes * SECTORS)
}

/// The sum of its words of 64 bits, little-endian, modulo 2^64.
pub fn sum(mebibytes: usize) -> u64 {
    let bytes = before(mebibytes);
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}
