//! Addresses are mapped of memory that nobody has promised to keep.

use portolan::addr::PhysRange;
use portolan::dma::Unowned;

fn unowned(memory: PhysRange) -> Unowned {
    Unowned::new(memory)
}

fn main() {}
