//! Traces of each form with bytes changed, put in and left out: each line is counted, and none ends the program.

use super::*;

/// Texts in the forms of kernels and tools: a recorded boot, published traces, and each form of an event.
fn texts() -> Vec<Vec<u8>> {
    let mut boot = Vec::new();
    let (mut unpacked, _) = source::open_file(&data("vtd-strict.boot.trace.xz")).unwrap();
    Read::read_to_end(&mut unpacked, &mut boot).unwrap();
    let published = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/traces");
    let mut paths: Vec<_> =
        published.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let published = paths.into_iter().map(|path| std::fs::read(path).unwrap());
    let forms = [forms::of_each_kind(), forms::lists_of_libtraceevent()];
    let forms = forms.into_iter().map(String::into_bytes);
    [boot].into_iter().chain(published).chain(forms).collect()
}

fn mutate(text: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..40) {
        let Some(last) = text.len().checked_sub(1) else {
            return;
        };
        let at = random.usize(..=last);
        match random.u8(..40) {
            0..=12 => text[at] = random.u8(..),
            13..=25 => text[at] = b"0123456789abcdef{}[]:,= \n"[random.usize(..25)],
            26..=38 => drop(text.drain(at..(at + random.usize(..30)).min(last))),
            _ => text.truncate(at.max(1)),
        }
    }
}

#[test]
fn mutated_lines_never_panic_and_always_count() {
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let mut random = fastrand::Rng::with_seed(seed);
    for text in texts() {
        for _ in 0..100 {
            let mut mutant = text.clone();
            mutate(&mut mutant, &mut random);
            if let Ok(reader) = Reader::new(Box::new(std::io::Cursor::new(mutant))) {
                let sum = drain(reader);
                assert!(sum.events + sum.header_lines + sum.bad_lines >= sum.lines);
                let understood = sum.understood;
                assert!(understood.events_understood <= understood.events);
                assert!(understood.bytes_understood <= understood.bytes);
            }
        }
    }
}
