//! The corpus of the fuzzer of MADT, replayed.
#![allow(missing_docs)]

use std::path::Path;

#[path = "../../../fuzz/bodies/interrupts.rs"]
mod interrupts;

#[test]
fn tables_of_interrupt_controllers_are_read_to_their_end() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/madt");
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no input", folder.display());
    for file in files {
        // The name of an input that fails is the last one that is printed.
        println!("{}", file.display());
        let bytes = std::fs::read(&file).unwrap();
        (0..=bytes.len()).for_each(|end| interrupts::madt(&bytes[..end]));
    }
}
