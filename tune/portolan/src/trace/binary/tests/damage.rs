//! Files that are cut, changed, or of another kind than are read.

use super::{CHAINS, COMPRESSED, LOST, PACKED, PIPE, SEVEN, SIX, text_of, unpacked};

/// Bytes that no recording of a test is larger than as text.
const LARGEST: usize = 64 << 20;

fn refusal(file: Vec<u8>) -> String {
    match text_of(file) {
        Ok((text, _)) => panic!("read as {} bytes", text.len()),
        Err(error) => format!("{:#}", anyhow::Error::from(error)),
    }
}

#[test]
fn what_is_not_read_is_said_by_name() {
    let change = |file: &[u8], at: usize, bytes: &[u8]| {
        let mut file = unpacked(file);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    for (file, says) in [
        (change(SIX, 10, b"8"), "version 8"),
        (change(SIX, 12, &[1]), "big-endian"),
        (change(SEVEN, 12, &[1]), "big-endian"),
        (change(SIX, 13, &[4]), "words of 4 bytes"),
        (change(SEVEN, 18, b"lzma"), "packed with lzma"),
        (change(CHAINS, 0, b"2ELIFREP"), "big-endian"),
        (change(CHAINS, 0, b"PERFFILE"), "first form"),
        // The length that perf writes last.
        (change(CHAINS, 48, &[0; 8]), "cannot be read"),
    ] {
        let said = refusal(file);
        assert!(said.contains(says), "{says}: {said}");
        assert!(said.contains("trace-cmd report"), "{said}");
        assert_eq!(said.matches(says).count(), 1, "{said}");
    }
}

#[test]
fn a_folder_of_perf_is_said_to_be_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), unpacked(CHAINS)).unwrap();
    let said = crate::trace::open(folder.path()).err().unwrap().to_string();
    assert!(said.contains("perf record --threads"), "{said}");
    std::fs::write(folder.path().join("data"), "PERF").unwrap();
    let said = crate::trace::open(folder.path()).err().unwrap().to_string();
    assert!(said.contains("directory"), "{said}");
}

#[test]
fn a_cut_recording_is_refused_or_said_to_break_off() {
    for (name, file) in
        [("six", SIX), ("seven", SEVEN), ("packed", PACKED), ("chains", CHAINS), ("lost", LOST)]
    {
        let whole = unpacked(file);
        let (full, _) = text_of(whole.clone()).unwrap();
        for step in 1..24 {
            let length = whole.len() * step / 24;
            match text_of(whole[..length].to_vec()) {
                // The tools write sections of no use here last.
                Ok((text, None)) => assert_eq!(text.len(), full.len(), "{name} {length}"),
                Ok((text, Some(_))) => assert!(text.len() < full.len() + 200, "{name} {length}"),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
    // A pipe says nowhere how long it is: within a record is all that can be told.
    let whole = unpacked(PIPE);
    let (text, broken) = text_of(whole[..whole.len() - 5001].to_vec()).unwrap();
    assert!(!text.is_empty());
    assert!(broken.unwrap().contains("ends within the events"));
}

#[test]
fn changed_bytes_end_in_lines_or_an_error() {
    let seed = 0x5eed_0035;
    println!("seed {seed:#x}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (name, file, rounds) in [
        ("six", SIX, 40),
        ("packed", PACKED, 150),
        ("chains", CHAINS, 250),
        ("pipe", PIPE, 250),
        ("compressed", COMPRESSED, 250),
    ] {
        let whole = unpacked(file);
        // Data that describe the rest stand near the beginning and the end.
        let near = whole.len().min(1 << 16);
        for round in 0..rounds {
            let mut bad = whole.clone();
            for _ in 0..random.usize(1..6) {
                let at = match random.u8(..4) {
                    0 => random.usize(..64),
                    1 => random.usize(..near),
                    2 => whole.len() - near + random.usize(..near),
                    _ => random.usize(..whole.len()),
                };
                bad[at] = if random.bool() { random.u8(..) } else { bad[at] ^ 1 << random.u8(..8) };
            }
            if let Ok((text, _)) = text_of(bad) {
                assert!(text.len() < LARGEST, "{name} {round}: {}", text.len());
            }
        }
    }
}
