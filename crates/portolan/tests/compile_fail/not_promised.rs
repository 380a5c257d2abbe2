//! A buffer whose contract is not promised.

use portolan::addr::PhysRange;
use portolan::dma::{Buffer, Pieces};

struct Mine(PhysRange);

impl Buffer for Mine {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.0)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

fn main() {}
