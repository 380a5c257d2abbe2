//! The corpus of the fuzzers, replayed: nothing that a file or firmware says panics or hangs.
#![allow(missing_docs)]

use std::path::Path;

#[path = "../../../fuzz/bodies/files.rs"]
mod files;
#[path = "../../../fuzz/bodies/firmware.rs"]
mod firmware;

/// Has `body` meet each input of a target, and each with its end cut off.
fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let folder = folder.join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{}: no input", folder.display());
    for input in inputs {
        // The name of an input that fails is the last one that is printed.
        println!("{}", input.display());
        let bytes = std::fs::read(&input).unwrap();
        for cut in [0, 1, bytes.len() / 2] {
            body(&bytes[..bytes.len() - cut.min(bytes.len())]);
        }
    }
}

#[test]
fn tables_of_firmware() {
    replay("tables", firmware::tables);
}

#[test]
fn device_trees() {
    replay("trees", firmware::trees);
}

#[test]
fn traces() {
    replay("traces", files::traces);
}

#[test]
fn latencies() {
    replay("latencies", files::latencies);
}

#[test]
fn facts() {
    replay("facts", files::facts);
}

#[test]
fn machines() {
    replay("machines", files::machines);
}
