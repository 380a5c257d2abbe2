//! The disks: their contents before a run, and those that they must have afterwards.

use std::path::{Path, PathBuf};

/// Bytes of a sector.
const SECTOR: usize = 512;

/// A disk.
pub struct Disk {
    /// Name of the disk in QEMU's arguments.
    pub(super) name: &'static str,
    /// Sectors that the kernel copies, inverted, from the first on.
    copied: usize,
    /// Sector that receives the copy of sector 0; the disk is twice as long.
    copies: usize,
}

/// All disks: virtio, with 64 sectors under each of two policies, and NVMe, with half a MiB of each of two CPUs under
/// each of three.
pub(super) const DISKS: [Disk; 2] = [Disk { name: "disk", copied: 128, copies: 128 }, FLASH];
/// The NVMe disk.
pub const FLASH: Disk = Disk { name: "flash", copied: 6 << 10, copies: 6 << 10 };

/// Makes `count` different sectors.
pub fn sectors(count: usize) -> Vec<u8> {
    let sector = |number: usize| {
        // Odd, and so another value for each number.
        let word = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let eight = move |at: usize| word.to_le_bytes().map(|byte| byte ^ at as u8);
        (0..SECTOR / 8).flat_map(eight)
    };
    (0..count).flat_map(sector).collect()
}

impl Disk {
    /// Its file in a machine's folder.
    pub fn image(&self, place: &Path) -> PathBuf {
        place.join(self.name).with_extension("img")
    }

    /// Tells if it is the virtio disk, which a separate process may serve.
    pub(super) fn is_virtio(&self) -> bool {
        self.name == "disk"
    }

    /// Contents of the disk at first.
    pub fn before(&self) -> Vec<u8> {
        sectors(2 * self.copies)
    }

    /// Compares the disk, byte by byte, with the contents that it must have.
    pub(super) fn check(&self, found: &[u8]) -> Result<(), String> {
        self.check_copies(found, self.copied)
    }

    /// The same with so many sectors copied.
    pub fn check_copies(&self, found: &[u8], copied: usize) -> Result<(), String> {
        let copied = copied.min(self.copies);
        let mut wanted = self.before();
        let (originals, copies) = wanted.split_at_mut(self.copies * SECTOR);
        for (copy, original) in copies.iter_mut().zip(&originals[..copied * SECTOR]) {
            *copy = !*original;
        }
        let Self { name, .. } = self;
        if found.len() != wanted.len() {
            let (found, wanted) = (found.len(), wanted.len());
            return Err(format!("{name} has {found} bytes instead of {wanted}"));
        }
        let mut pairs = found.iter().zip(&wanted);
        match pairs.position(|(found, wanted)| found != wanted) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {} of sector {} of {name} is {:#x} instead of {:#x}",
                at % SECTOR,
                at / SECTOR,
                found[at],
                wanted[at]
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_not_where_it_should_be_is_found() {
        for disk in DISKS {
            let before = disk.before();
            let sectors: std::collections::BTreeSet<&[u8]> = before.chunks(SECTOR).collect();
            assert_eq!(sectors.len(), 2 * disk.copies, "no two sectors are the same");
            let mut good = before.clone();
            for at in 0..disk.copied * SECTOR {
                good[disk.copies * SECTOR + at] = !before[at];
            }
            assert_eq!(disk.check(&good), Ok(()));
            let first = format!("byte 0 of sector {} of {}", disk.copies, disk.name);
            assert!(disk.check(&before).is_err_and(|why| why.starts_with(&first)));
            for at in [0, before.len() - 1, disk.copies * SECTOR + 7] {
                good[at] ^= 1;
                assert!(disk.check(&good).is_err(), "{at}");
                good[at] ^= 1;
            }
            assert!(disk.check(&good[1..]).is_err());
        }
    }
}
