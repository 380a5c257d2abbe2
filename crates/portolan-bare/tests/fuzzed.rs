//! The corpus of the fuzzer of MADT, replayed.
#![allow(missing_docs)]

#[path = "../../../proof/fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../proof/fuzz/bodies/interrupts.rs"]
mod interrupts;

#[test]
fn tables_of_interrupt_controllers_are_read_to_their_end() {
    corpus::each("madt", |bytes| {
        (0..=bytes.len()).for_each(|end| interrupts::madt(&bytes[..end]));
    });
}
