//! The ranges that are out, each as it was given out: exact checks compare with them.

use super::FreeError;
use super::tree::{Gap, GapTree, Lack, Room};
use crate::addr::IovaRange;

/// Ranges that are out.
///
/// *Context.* Interrupt, all methods: they take and free no heap memory.
#[derive(Debug, Default)]
pub(super) struct Ledger(GapTree);

impl Ledger {
    /// Enters a range that goes out.
    ///
    /// # Errors
    /// The missing room; the range is not entered.
    pub fn enter(&mut self, range: IovaRange) -> Result<(), Lack> {
        self.0.lack(self.0.len() + 1).map_or(Ok(()), Err)?;
        self.0.insert(Gap { first: range.start().get(), last: range.last().get() });
        Ok(())
    }

    /// Memory that is missing for `ranges` more; `None` if none is.
    pub fn lack(&self, ranges: usize) -> Option<Lack> {
        self.0.lack(self.0.len().saturating_add(ranges))
    }

    /// Takes in the memory that was lacking; the rest is freed by the caller, outside of locks.
    pub fn adopt(&mut self, room: Room) -> Room {
        self.0.adopt(room)
    }

    /// Strikes a range that comes back.
    ///
    /// # Errors
    /// [`FreeError::Foreign`] if it is a part of one that is out, or more than one;
    /// [`FreeError::Free`] if no part of it is out.
    pub fn leave(&mut self, range: IovaRange) -> Result<(), FreeError> {
        let (first, last) = (range.start().get(), range.last().get());
        match self.0.at_or_below(last).filter(|out| out.last >= first) {
            Some(out) if out == (Gap { first, last }) => {
                self.0.remove(first);
                Ok(())
            }
            Some(_) => Err(FreeError::Foreign { range }),
            None => Err(FreeError::Free { range }),
        }
    }
}
