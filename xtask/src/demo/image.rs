//! The disk: what is on it before, and what has to be there afterwards.

/// Bytes of a sector.
const SECTOR: usize = 512;
/// Sectors of the disk.
const SECTORS: usize = 2048;
/// Sectors that the kernel copies, inverted, from the first on.
const COPIED: usize = 512;
/// The sector to which it copies sector 0.
const COPIES: usize = 1024;

/// A disk on which no two sectors are the same.
pub(super) fn before() -> Vec<u8> {
    let sector = |number: usize| (0..SECTOR).map(move |at| ((number * 167 + at * 13) >> 3) as u8);
    (0..SECTORS).flat_map(sector).collect()
}

/// Compares the disk, byte by byte, with what has to be on it.
pub(super) fn check(found: &[u8]) -> Result<(), String> {
    let mut wanted = before();
    let (originals, copies) = wanted.split_at_mut(COPIES * SECTOR);
    for (copy, original) in copies.iter_mut().zip(&originals[..COPIED * SECTOR]) {
        *copy = !*original;
    }
    if found.len() != wanted.len() {
        return Err(format!(
            "the disk has {} bytes instead of {}",
            found.len(),
            wanted.len()
        ));
    }
    match found
        .iter()
        .zip(&wanted)
        .position(|(found, wanted)| found != wanted)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {} of sector {} is {:#x} instead of {:#x}",
            at % SECTOR,
            at / SECTOR,
            found[at],
            wanted[at]
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_not_where_it_should_be_is_found() {
        let disk = before();
        let sectors: std::collections::BTreeSet<&[u8]> = disk.chunks(SECTOR).collect();
        assert_eq!(sectors.len(), SECTORS, "no two sectors are the same");
        let mut good = disk.clone();
        for at in 0..COPIED * SECTOR {
            good[COPIES * SECTOR + at] = !disk[at];
        }
        assert_eq!(check(&good), Ok(()));
        assert!(check(&disk).is_err_and(|why| why.starts_with("byte 0 of sector 1024")));
        for at in [0, SECTOR * SECTORS - 1, COPIES * SECTOR + 7] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(check(&bad).is_err(), "{at}");
        }
        assert!(check(&good[1..]).is_err());
    }
}
