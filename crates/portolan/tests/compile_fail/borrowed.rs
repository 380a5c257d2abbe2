//! A buffer that is only borrowed: the borrow could end while the device is at it.

use portolan::addr::PhysRange;
use portolan::dma::{Buffer, Pieces};

struct Borrowed<'a>(&'a mut [u8], PhysRange);

// SAFETY: none, and the compiler finds out.
unsafe impl<'a> Buffer for Borrowed<'a> {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.1)
    }

    fn device_may_write(&self) -> bool {
        !self.0.is_empty()
    }
}

fn main() {}
