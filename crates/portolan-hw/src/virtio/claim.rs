//! Requests that are about to be sent, and which records share one.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.5 (MAP) and 5.13.6.6 (UNMAP).

use arrayvec::ArrayVec;

use portolan::addr::{IovaRange, PhysAddr};
use portolan::table::Access;

use super::device::BATCH;
use portolan_spec::virtio::{self as spec, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Map { pa: PhysAddr, access: Access },
    Unmap,
}

/// A request whose records are busy until its outcome is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) act: Act,
    pub(super) range: IovaRange,
    pub(super) epoch: u64,
    /// Set if the next record, if it is to be unmapped too, can be part of the request.
    pub(super) open: bool,
}

impl Claim {
    /// The request, of the domain with that number.
    pub(super) fn request(&self, domain: u32) -> Request {
        let (start, last) = (self.range.start().get(), self.range.last().get());
        match self.act {
            Act::Unmap => Request::Unmap { domain, start, last },
            Act::Map { pa, access } => {
                Request::Map { domain, start, last, phys: pa.get(), flags: flags(access) }
            }
        }
    }
}

/// Room in a batch for one more request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Left,
    None,
}

/// Adds `claim`, as a part of the last one if the two are one request; tells if there was room.
///
/// An UNMAP may take several mappings away, but between them nothing may be free: another caller
/// could map there before the device carries it out.
pub(super) fn add(claims: &mut ArrayVec<Claim, BATCH>, claim: Claim) -> Room {
    if let Some(last) = claims.last_mut() {
        let touch = last.range.last().checked_add(1) == Some(claim.range.start());
        // Of another epoch it comes to something else.
        if touch && last.open && claim.open && last.epoch == claim.epoch {
            last.range = last.range.hull(claim.range);
            return Room::Left;
        }
    }
    match claims.try_push(claim) {
        Ok(()) => Room::Left,
        Err(_) => Room::None,
    }
}

fn flags(access: Access) -> u32 {
    let bits = [
        (Access::READ, spec::MAP_READ),
        (Access::WRITE, spec::MAP_WRITE),
        (Access::DEVICE, spec::MAP_MMIO),
    ];
    let set = bits.into_iter().filter(|(bit, _)| access.contains(*bit));
    set.fold(0, |flags, (_, flag)| flags | flag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::Iova;

    fn claim(page: u64, epoch: u64, open: bool) -> Claim {
        Claim {
            act: Act::Unmap,
            range: IovaRange::from_len(Iova::new(page << 12), 0x1000).unwrap(),
            epoch,
            open,
        }
    }

    #[test]
    fn claims_are_one_request_only_side_by_side_open_and_of_one_epoch() {
        let first = claim(4, 1, true);
        let together = |second| {
            let mut claims = ArrayVec::new();
            assert_eq!(add(&mut claims, first), Room::Left);
            assert_eq!(add(&mut claims, second), Room::Left);
            claims.len() == 1
        };
        assert!(together(claim(5, 1, true)));
        let apart = [(6, 1, true), (3, 1, true), (5, 2, true), (5, 1, false)];
        for (page, epoch, open) in apart {
            assert!(!together(claim(page, epoch, open)), "{page} {epoch} {open}");
        }
    }
}
