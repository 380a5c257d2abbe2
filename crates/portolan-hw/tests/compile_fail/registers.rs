//! Any registers, or memory, as registers.

use portolan::addr::PhysRange;
use portolan::platform::Platform;

fn anywhere<P: Platform>(platform: &P, window: PhysRange) -> Option<P::Registers> {
    platform.registers(window)
}

fn main() {}
