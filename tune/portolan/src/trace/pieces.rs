//! The pieces of a scatter list, from the lists of its event alone.

use portolan::addr::PhysAddr;

use super::list::List;
use super::op::{PAGE, Piece};

/// Adds the pieces of a list of `bytes` bytes; true if lengths had to be guessed.
pub(super) fn guess_pieces(
    pieces: &mut Vec<Piece>,
    bytes: u64,
    sizes: List<'_>,
    pas: List<'_>,
) -> bool {
    let count = pas.iter().count() as u64;
    if count == 0 {
        pieces.push(Piece { pa: PhysAddr::new(0), bytes });
        return true;
    }
    if sizes.iter().count() as u64 == count {
        let both = pas.iter().zip(sizes.iter()).filter(|&(_, bytes)| bytes > 0);
        pieces.extend(both.map(|(pa, bytes)| Piece { pa: PhysAddr::new(pa), bytes }));
        return false;
    }
    let mut left = bytes;
    for (pa, i) in pas.iter().zip(1u64..) {
        let step = if i == count { left } else { left.min(PAGE - pa % PAGE) };
        if step > 0 {
            pieces.push(Piece { pa: PhysAddr::new(pa), bytes: step });
        }
        left -= step;
    }
    count.checked_mul(PAGE) != Some(bytes)
}
