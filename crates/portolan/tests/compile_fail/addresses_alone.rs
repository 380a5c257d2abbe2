//! Addresses are mapped of memory without a promise to keep it, or to hold registers alone.

use portolan::addr::{PhysAddr, PhysRange};
use portolan::dma::{Doorbell, Unowned};

fn unowned(memory: PhysRange) -> Unowned {
    Unowned::new(memory)
}

fn doorbell(at: PhysAddr) -> Doorbell {
    Doorbell::new(at)
}

fn main() {}
