//! Corpus of a fuzzer, for the tests that replay it.

use std::path::Path;

/// Calls `body` with each input of the corpus `target`, in the order of their names.
pub fn each(target: &str, mut body: impl FnMut(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proof/fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no input", folder.display());
    for file in files {
        // The name of an input that fails is the last one that is printed.
        println!("{}", file.display());
        body(&std::fs::read(&file).unwrap());
    }
}
