//! The guard of a lock that keeps interrupts out goes to another thread, and so to another CPU.

use portolan::platform::{Interrupts, IrqGuard};

fn moved<I: Interrupts>(guard: IrqGuard<'static, u32, I>) {
    std::thread::spawn(move || drop(guard));
}

fn main() {}
