//! Information that the kernel returns: chains of capabilities behind a structure, and lists in them.
//!
//! linux/vfio.h: `vfio_info_cap_header`, the ranges and the room of `VFIO_IOMMU_GET_INFO`, the sparse areas
//! of `VFIO_DEVICE_GET_REGION_INFO`. A chain that leads outside or back, and a list that does not fit, is an
//! error: nothing here trusts an offset or a count.

use portolan::addr::{Iova, IovaRange};
use thiserror::Error;

/// Reason why the kernel's information makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InfoError {
    /// A structure, a capability or a list ends past the answer.
    #[error("the kernel's answer of {bytes} bytes is cut at {offset:#x}")]
    Cut {
        /// Offset at which more bytes are wanted.
        offset: usize,
        /// Bytes that there are.
        bytes: usize,
    },
    /// A capability is followed by one before it.
    #[error("the capability at {at:#x} leads back to {next:#x}")]
    Backwards {
        /// Offset of the capability.
        at: usize,
        /// Offset of the next one, as it is stated.
        next: usize,
    },
    /// A range ends before it begins, or begins before the one before it ends.
    #[error("the range from {start} to {last} is empty, or not behind the one before it")]
    Ranges {
        /// Its first address.
        start: Iova,
        /// Its last address.
        last: Iova,
    },
    /// There is no range, so nothing can be mapped.
    #[error("the kernel names no addresses for the device")]
    NoRanges,
    /// No page size, or none that there is.
    #[error("the kernel names no page size ({sizes:#x})")]
    NoPages {
        /// Mask of page sizes that the kernel returned.
        sizes: u64,
    },
    /// A part of a region that may be mapped is not inside of it, or not whole pages.
    #[error("{bytes:#x} bytes at {offset:#x} are no pages of the region")]
    Area {
        /// Offset of the part in the region.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
}

/// Four bytes at `offset`.
pub(crate) fn word(info: &[u8], offset: usize) -> Result<u32, InfoError> {
    let word = info.get(offset..).and_then(|rest| rest.first_chunk());
    let bytes = info.len();
    word.map(|word| u32::from_ne_bytes(*word)).ok_or(InfoError::Cut { offset, bytes })
}

/// Eight bytes at `offset`.
pub(crate) fn long(info: &[u8], offset: usize) -> Result<u64, InfoError> {
    let word = info.get(offset..).and_then(|rest| rest.first_chunk());
    let bytes = info.len();
    word.map(|word| u64::from_ne_bytes(*word)).ok_or(InfoError::Cut { offset, bytes })
}

/// Bytes of a capability's header.
const HEADER: usize = 8;

/// The body of the capability `wanted` in the chain of `info` from `first` on, with all that is behind it;
/// `None` if there is none.
pub(crate) fn capability(info: &[u8], first: u32, wanted: u32) -> Result<Option<&[u8]>, InfoError> {
    let mut at = first as usize;
    while at != 0 {
        let (name, next) = (word(info, at)?, word(info, at.saturating_add(4))? as usize);
        // The upper half is the capability's version: later ones only add.
        if name & 0xffff == wanted {
            return Ok(info.get(at + HEADER..));
        }
        if next != 0 && next <= at {
            return Err(InfoError::Backwards { at, next });
        }
        at = next;
    }
    Ok(None)
}

/// The pairs of a list: their number, four bytes of nothing, the pairs.
fn pairs(body: &[u8]) -> Result<impl Iterator<Item = (u64, u64)>, InfoError> {
    const LIST: usize = 8;
    let count = word(body, 0)? as usize;
    let (offset, bytes) = (count.saturating_mul(16).saturating_add(LIST), body.len());
    let list = body.get(LIST..offset).ok_or(InfoError::Cut { offset, bytes })?;
    let half = |pair: &[u8], at| long(pair, at).unwrap_or(0);
    Ok(list.chunks_exact(16).map(move |pair| (half(pair, 0), half(pair, 8))))
}

/// The ranges of pairs of a first and a last address: ascending, and at least one.
pub(crate) fn ranges(pairs: impl Iterator<Item = (u64, u64)>) -> Result<Vec<IovaRange>, InfoError> {
    let mut ranges: Vec<IovaRange> = Vec::new();
    for (start, last) in pairs {
        let (start, last) = (Iova::new(start), Iova::new(last));
        let behind = ranges.last().is_none_or(|before| before.last() < start);
        let range = IovaRange::new(start, last).filter(|_| behind);
        ranges.push(range.ok_or(InfoError::Ranges { start, last })?);
    }
    match ranges.is_empty() {
        true => Err(InfoError::NoRanges),
        false => Ok(ranges),
    }
}

/// The ranges in the body of a capability.
pub(crate) fn range_list(body: &[u8]) -> Result<Vec<IovaRange>, InfoError> {
    ranges(pairs(body)?)
}

/// The parts of a region of `bytes` bytes that may be mapped, from the body of its capability: whole pages
/// inside of it.
pub(crate) fn areas(body: &[u8], bytes: u64) -> Result<Vec<(u64, u64)>, InfoError> {
    const PAGE: u64 = 4096;
    let inside = |(offset, size): (u64, u64)| {
        let end = offset.checked_add(size);
        let whole = offset.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
        match end {
            Some(end) if end <= bytes && whole => Ok((offset, size)),
            _ => Err(InfoError::Area { offset, bytes: size }),
        }
    };
    // Kernels say "nothing" by an area without bytes.
    let some = |area: &Result<(u64, u64), _>| !matches!(area, Ok((_, 0)));
    pairs(body)?.map(inside).filter(some).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain behind 24 bytes: each capability's id, and its body.
    fn chain(capabilities: &[(u32, Vec<u32>)]) -> Vec<u8> {
        let mut info = vec![0u32; 6];
        for (at, (id, body)) in capabilities.iter().enumerate() {
            let next = (info.len() + 2 + body.len()) as u32 * 4;
            let last = at + 1 == capabilities.len();
            info.extend([*id | 1 << 16, if last { 0 } else { next }]);
            info.extend(body);
        }
        info.into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    fn list(pairs: &[(u64, u64)]) -> Vec<u32> {
        let words = pairs.iter().flat_map(|&(a, b)| [a, a >> 32, b, b >> 32]);
        let words = words.map(|word| word as u32);
        [pairs.len() as u32, 0].into_iter().chain(words).collect()
    }

    const X86: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];

    #[test]
    fn what_a_kernel_says_is_found_wherever_it_is_in_the_chain() {
        let info = chain(&[(2, vec![1, 2, 3]), (3, vec![65535]), (1, list(&X86))]);
        let body = capability(&info, 24, 1).unwrap().unwrap();
        let found: Vec<_> = range_list(body).unwrap();
        let found: Vec<_> = found.iter().map(|r| (r.start().get(), r.last().get())).collect();
        assert_eq!(found, X86);
        let avail = capability(&info, 24, 3).unwrap().unwrap();
        assert_eq!(word(avail, 0), Ok(65535));
        assert_eq!(capability(&info, 24, 9), Ok(None));
        assert_eq!(capability(&info, 0, 1), Ok(None));
    }

    #[test]
    fn chains_that_lead_nowhere_or_back_end() {
        let info = chain(&[(2, vec![1]), (1, list(&X86))]);
        let bytes = info.len();
        for first in [bytes, bytes - 3, usize::MAX >> 33, u32::MAX as usize] {
            let cut = capability(&info, first as u32, 1);
            assert!(matches!(cut, Err(InfoError::Cut { .. })), "{first:#x}");
        }
        for next in [24u32, 8, 1] {
            let mut info = info.clone();
            info[28..32].copy_from_slice(&next.to_ne_bytes());
            let (at, next) = (24, next as usize);
            assert_eq!(capability(&info, 24, 1), Err(InfoError::Backwards { at, next }));
        }
    }

    #[test]
    fn lists_that_do_not_fit_or_make_no_sense_are_refused() {
        let body =
            |words: Vec<u32>| -> Vec<u8> { words.into_iter().flat_map(u32::to_ne_bytes).collect() };
        for count in [3u32, 0x1000_0000, u32::MAX] {
            let mut words = list(&X86);
            words[0] = count;
            let cut = range_list(&body(words));
            assert!(matches!(cut, Err(InfoError::Cut { .. })), "{count:#x}");
        }
        assert_eq!(range_list(&body(vec![0, 0])), Err(InfoError::NoRanges));
        assert!(matches!(range_list(&[1, 0]), Err(InfoError::Cut { .. })));
        let bad = [[(5, 4), (8, 9)], [(0, 9), (9, 12)], [(8, 9), (0, 4)]];
        for pairs in bad {
            let found = range_list(&body(list(&pairs)));
            assert!(matches!(found, Err(InfoError::Ranges { .. })), "{pairs:?}");
        }
    }

    #[test]
    fn areas_are_pages_of_their_region() {
        let body = |pairs: &[(u64, u64)]| -> Vec<u8> {
            list(pairs).into_iter().flat_map(u32::to_ne_bytes).collect()
        };
        let fine = [(0, 0x2000), (0x3000, 0x1000)];
        assert_eq!(areas(&body(&fine), 0x4000), Ok(fine.to_vec()));
        assert_eq!(areas(&body(&[(0, 0)]), 0x4000), Ok(vec![]));
        for bad in [(0x3000, 0x2000), (8, 0x1000), (0, 0x800), (u64::MAX - 0xfff, 0x1000)] {
            let (offset, bytes) = bad;
            let found = areas(&body(&[bad]), 0x4000);
            assert_eq!(found, Err(InfoError::Area { offset, bytes }));
        }
    }

    #[test]
    fn no_answer_is_a_panic() {
        let seed = std::process::id().into();
        println!("seed {seed}");
        let mut state: u64 = seed;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let sane = chain(&[(2, vec![1]), (3, vec![9]), (1, list(&X86))]);
        for _ in 0..20_000 {
            let mut info = sane.clone();
            info.truncate(random() as usize % (info.len() + 1));
            for _ in 0..random() % 4 {
                let at = random() as usize % (info.len() + 1);
                if let Some(byte) = info.get_mut(at) {
                    *byte = random() as u8;
                }
            }
            for wanted in [1, 3] {
                if let Ok(Some(body)) = capability(&info, 24, wanted) {
                    let _ = (range_list(body), areas(body, 0x4000), word(body, 0));
                }
            }
        }
    }
}
