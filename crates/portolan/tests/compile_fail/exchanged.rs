//! The buffers of two mappings are exchanged, or one is replaced.

use portolan::dma::{Buffer, FromDevice, Handle, Mapping};

fn exchange<H: Handle, B: Buffer>(
    one: &mut Mapping<H, B, FromDevice>,
    two: &mut Mapping<H, B, FromDevice>,
    other: B,
) -> B {
    core::mem::swap(&mut **one, &mut **two);
    core::mem::replace(&mut **one, other)
}

fn main() {}
