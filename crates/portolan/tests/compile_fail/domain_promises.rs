//! Memory, all of it, and memory behind a table are promised by safe code.

use portolan::addr::PhysRange;
use portolan::platform::{AllMemory, DmaMemory, PromisedMappings};

fn promises(memory: PhysRange) -> (DmaMemory, AllMemory, PromisedMappings) {
    let memory = DmaMemory::new(memory);
    (memory, AllMemory::new(), PromisedMappings::new())
}

fn main() {}
