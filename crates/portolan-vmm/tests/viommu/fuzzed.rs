//! The corpus of the fuzzer of requests, replayed.

use std::path::Path;

#[path = "../../../../fuzz/bodies/guests.rs"]
mod guests;

#[test]
fn what_a_guest_sends_a_device_that_guesses_found_does_no_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/requests");
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no input", folder.display());
    for file in files {
        println!("{}", file.display());
        guests::requests(&std::fs::read(&file).unwrap());
    }
}
