//! The buffers of two mappings are exchanged, or one is replaced.

use portolan::dma::{Buffer, FromDevice, Mapping};
use portolan::platform::Cpus;

fn exchange<P: Cpus + Clone, B: Buffer>(
    one: &mut Mapping<P, B, FromDevice>,
    two: &mut Mapping<P, B, FromDevice>,
    other: B,
) -> B {
    core::mem::swap(&mut **one, &mut **two);
    core::mem::replace(&mut **one, other)
}

fn main() {}
