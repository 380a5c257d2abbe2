//! A buffer whose contract nobody has promised, and memory that nobody keeps.

use portolan::addr::PhysRange;
use portolan::dma::{Buffer, Unowned};

struct Mine(PhysRange);

impl Buffer for Mine {
    type Pieces<'b> = core::iter::Once<PhysRange>;

    fn pieces(&self) -> Self::Pieces<'_> {
        core::iter::once(self.0)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

fn unowned(memory: PhysRange) -> [Unowned; 2] {
    [Unowned::new(memory), Unowned(memory)]
}

fn main() {}
