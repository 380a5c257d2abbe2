//! Bytes of shared memory are lent, mapped or not.

use portolan::addr::PhysRange;
use portolan::dma::{Mapping, Unowned};
use portolan::platform::Platform;

fn not_promised(memory: PhysRange) -> Unowned {
    Unowned::shared(memory, None)
}

fn unmapped(memory: &Unowned) -> &[u8] {
    &memory[..]
}

fn mapped<P: Platform>(memory: &Mapping<P, Unowned>) -> &[u8] {
    &memory[..]
}

fn viewed(memory: &Unowned) -> &[u8] {
    use portolan::dma::Buffer;
    let view = memory.view().expect("a view");
    view.as_ref()
}

fn main() {}
