//! A pool is made of memory without a promise, and a buffer is copied by its address.

use portolan::addr::PhysRange;
use portolan::bounce::{Pool, PoolMemory, PoolOptions, PoolRefused, Slots};
use portolan::platform::{Clearing, Platform, RawMemory, Transfer};

fn pool<P: Platform>(platform: P, memory: PhysRange) -> Result<Pool<P>, PoolRefused> {
    let options = PoolOptions::for_cpus(&platform);
    Pool::new(platform, memory, options)
}

fn copied<P: Platform>(pool: &PoolMemory<P, RawMemory<P>>, buffer: PhysRange, slots: &Slots) {
    let _ = pool.copy_in(&buffer, slots);
}

fn transfer(from: PhysRange, to: PhysRange) -> Transfer {
    Transfer::new(from.start(), to.start(), 64)
}

fn clearing(memory: PhysRange) -> Clearing {
    Clearing::new(memory)
}

fn main() {}
