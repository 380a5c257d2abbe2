//! The corpus of the fuzzer of a virtio-iommu's answers, replayed.
#![allow(missing_docs)]

use std::path::Path;

#[path = "../../../fuzz/bodies/devices.rs"]
mod devices;

#[test]
fn a_virtio_iommu_that_says_anything_does_no_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/virtio");
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no input", folder.display());
    for file in files {
        // The name of an input that fails is the last one that is printed.
        println!("{}", file.display());
        let bytes = std::fs::read(&file).unwrap();
        (0..=bytes.len()).for_each(|end| devices::virtio(&bytes[..end]));
    }
}
