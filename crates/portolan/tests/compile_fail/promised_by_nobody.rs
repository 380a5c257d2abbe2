//! A buffer whose contract nobody has promised.

use portolan::addr::PhysRange;
use portolan::dma::Buffer;

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

fn main() {}
