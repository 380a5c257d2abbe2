//! A pool of another crate's, which could lend slots shorter than asked for; and copies without slots.

use portolan::bounce::{
    BouncePool, Copied, GiveError, HostVisibility, Need, PoolUse, Slots, TakeError,
};
use portolan::dma::Unowned;
use portolan::platform::{Clearing, Transfer};

struct Liar;

impl BouncePool for Liar {
    fn take(&self, _need: &Need) -> Result<Slots, TakeError> {
        Err(TakeError::Empty)
    }

    fn give(&self, _slots: Slots) -> Result<(), GiveError> {
        Ok(())
    }

    fn copy(&self, _transfer: &Transfer) {}

    fn clear(&self, _clearing: &Clearing) {}

    fn in_use(&self) -> PoolUse {
        panic!("a count of slots")
    }

    fn memory(&self) -> Option<&Unowned> {
        panic!("memory")
    }

    fn visibility(&self) -> HostVisibility {
        panic!("visibility")
    }
}

fn main() {}
