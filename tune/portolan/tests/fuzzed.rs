//! The corpus of the fuzzers, replayed: nothing that a file or firmware says panics or hangs.
#![allow(missing_docs)]

#[path = "../../../proof/fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../proof/fuzz/bodies/files.rs"]
mod files;
#[path = "../../../proof/fuzz/bodies/firmware.rs"]
mod firmware;

/// Runs `body` on each input of a target, whole and cut short.
fn replay(target: &str, body: fn(&[u8])) {
    corpus::each(target, |bytes| {
        for cut in [0, 1, bytes.len() / 2] {
            body(&bytes[..bytes.len() - cut.min(bytes.len())]);
        }
    });
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
