//! A buffer of a driver, cut into the pieces of memory behind it.
//!
//! *Context.* Interrupt; a buffer of more than [`FEW`] pieces takes heap memory.

use alloc::vec::Vec;
use core::ptr::NonNull;

use arrayvec::ArrayVec;
use portolan::addr::{PhysAddr, PhysRange};
use portolan::dma::{Buffer, Pieces};

/// Pages of the driver's memory.
pub(crate) const PAGE: u64 = 4096;

/// Pieces that need no heap memory: in a linear mapping each buffer is one.
const FEW: usize = 4;

/// A buffer of a driver: pieces of memory that follow each other for the CPU.
pub(crate) struct Lent {
    few: ArrayVec<PhysRange, FEW>,
    /// All of them, if they are more.
    more: Vec<PhysRange>,
}

impl Lent {
    /// The buffer that the CPU sees at `start`; `phys` says where its pages are, one by one.
    pub fn new(
        phys: impl Fn(NonNull<u8>) -> Option<PhysAddr>,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Option<Self> {
        let parts = parts(start.addr().get(), bytes);
        Self::of(parts.map(|(at, bytes)| {
            let at = phys(start.with_addr(at.try_into().ok()?))?;
            PhysRange::from_len(at, bytes)
        }))
    }

    /// The buffer of these pages' parts, of which neighbours become one piece.
    fn of(parts: impl Iterator<Item = Option<PhysRange>>) -> Option<Self> {
        let mut lent = Self { few: ArrayVec::new(), more: Vec::new() };
        for part in parts {
            let part = part?;
            match lent.last() {
                Some(last) if last.last().checked_add(1) == Some(part.start()) => {
                    *last = last.hull(part);
                }
                _ => lent.push(part),
            }
        }
        Some(lent)
    }

    fn last(&mut self) -> Option<&mut PhysRange> {
        match self.more.is_empty() {
            true => self.few.last_mut(),
            false => self.more.last_mut(),
        }
    }

    fn push(&mut self, piece: PhysRange) {
        if self.more.is_empty() {
            let Err(full) = self.few.try_push(piece) else {
                return;
            };
            self.more.extend(self.few.iter().copied());
            self.more.push(full.element());
            return;
        }
        self.more.push(piece);
    }

    fn list(&self) -> &[PhysRange] {
        match self.more.is_empty() {
            true => &self.few,
            false => &self.more,
        }
    }
}

/// The parts of `bytes` bytes from `start` that lie in one page each: their addresses and lengths.
fn parts(start: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
    let page = PAGE as usize;
    let mut at = start;
    let end = start.saturating_add(bytes);
    core::iter::from_fn(move || {
        let next = (at | (page - 1)).saturating_add(1).min(end);
        let part = (at, next.checked_sub(at)? as u64);
        at = next;
        (part.1 != 0).then_some(part)
    })
}

mod promise {
    //! Promises of `virtio-drivers` and `dma-api` about the buffers that they share.
    #![allow(unsafe_code)]

    use super::{Buffer, Lent, Pieces};

    // SAFETY: the caller of `Hal::share` keeps the buffer where it is, and lets no other code reach
    // it, until `Hal::unshare`. It is then that the value is dropped, or kept for good with its
    // mapping.
    unsafe impl Buffer for Lent {
        fn pieces(&self) -> Pieces<'_> {
            match self.list() {
                [one] => Pieces::One(*one),
                list => Pieces::List(list),
            }
        }

        fn device_may_write(&self) -> bool {
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_cut_at_pages() {
        let of = |start, bytes| parts(start, bytes).collect::<Vec<_>>();
        assert_eq!(of(0x1ff8, 16), [(0x1ff8, 8), (0x2000, 8)]);
        assert_eq!(of(0x1000, 0x1000), [(0x1000, 0x1000)]);
        assert_eq!(of(0x1001, 0x1000), [(0x1001, 0xfff), (0x2000, 1)]);
        assert_eq!(of(0x1001, 0), []);
        assert_eq!(of(usize::MAX - 1, 8), [(usize::MAX - 1, 1)]);
    }

    #[test]
    fn pages_that_follow_each_other_are_one_piece() {
        let range = |start, bytes| PhysRange::from_len(PhysAddr::new(start), bytes);
        let lent = |parts: &[Option<PhysRange>]| {
            let lent = Lent::of(parts.iter().copied())?;
            Some(lent.pieces().into_iter().collect::<Vec<_>>())
        };
        let together = [range(0x1ff8, 8), range(0x2000, 0x1000), range(0x3000, 4)];
        assert_eq!(lent(&together), range(0x1ff8, 0x100c).map(|all| alloc::vec![all]));
        let apart = [range(0x1ff8, 8), range(0x9000, 0x1000), range(0x8000, 4)];
        assert_eq!(lent(&apart).map(|pieces| pieces.len()), Some(3));
        assert_eq!(lent(&[range(0x1ff8, 8), None]), None);
    }

    #[test]
    fn a_buffer_in_many_pieces_keeps_them_all() {
        let pages = (0..10u64).map(|at| PhysRange::from_len(PhysAddr::new(at << 13), PAGE));
        let wanted: Vec<_> = pages.clone().flatten().collect();
        // The last page has a neighbour, which joins it.
        let next = PhysRange::from_len(PhysAddr::new((9 << 13) + PAGE), PAGE);
        let lent = Lent::of(pages.chain([next])).unwrap();
        let pieces: Vec<_> = lent.pieces().into_iter().collect();
        assert_eq!(pieces[..9], wanted[..9]);
        assert_eq!(pieces[9], wanted[9].hull(next.unwrap()));
        assert_eq!(pieces.len(), 10);
    }
}
