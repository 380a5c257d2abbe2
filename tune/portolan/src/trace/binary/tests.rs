//! Recordings of trace-cmd and perf against the output of the tools themselves.

use std::io::{Cursor, Read};

use crate::trace::{KernelInvalidations, OpenError, Reader, from_bytes, open_bytes};

mod damage;
mod parts;

const SIX: &[u8] = include_bytes!("fixtures/six.dat.xz");
const SEVEN: &[u8] = include_bytes!("fixtures/seven.dat.xz");
const PACKED: &[u8] = include_bytes!("fixtures/packed.dat.xz");
const CHAINS: &[u8] = include_bytes!("fixtures/chains.perf.xz");
const LOST: &[u8] = include_bytes!("fixtures/lost.perf.xz");
const PIPE: &[u8] = include_bytes!("fixtures/pipe.perf.xz");
const COMPRESSED: &[u8] = include_bytes!("fixtures/compressed.perf.xz");

/// Recordings and the tools' text of them.
const PAIRS: [(&str, &[u8], &[u8]); 6] = [
    ("six", SIX, include_bytes!("fixtures/six.txt.xz")),
    ("seven", SEVEN, include_bytes!("fixtures/seven.txt.xz")),
    ("packed", PACKED, include_bytes!("fixtures/packed.txt.xz")),
    ("chains", CHAINS, include_bytes!("fixtures/chains.txt.xz")),
    ("pipe", PIPE, include_bytes!("fixtures/pipe.txt.xz")),
    ("compressed", COMPRESSED, include_bytes!("fixtures/compressed.txt.xz")),
];

/// Unpacks a whole file.
fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packed = Cursor::new(packed.to_vec());
    let mut input = crate::trace::unpack::unpacked(Box::new(packed)).unwrap();
    input.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The text of a recording, and the error that broke it off.
fn text_of(file: Vec<u8>) -> Result<(String, Option<String>), OpenError> {
    let mut input = open_bytes(Box::new(Cursor::new(file)))?;
    let mut text = Vec::new();
    let broken = input.read_to_end(&mut text).err();
    // With its first bytes changed it is not a recording, and is passed on unchanged.
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok((text, broken.map(|error| error.to_string())))
}

/// A line of either tool as task, CPU, time, name and text.
fn parts(line: &str) -> Option<[String; 5]> {
    let (before, after) = line
        .split_once(" [")
        .filter(|(_, after)| after.as_bytes().first().is_some_and(u8::is_ascii_digit))?;
    let (cpu, after) = after.split_once(']')?;
    let (time, after) = after.trim_start().split_once(": ")?;
    let (name, text) = after.trim_start().split_once(':')?;
    // perf says the system before the name.
    let (name, text) = match text.split_once(':') {
        Some((second, rest)) if !text.starts_with(' ') && !second.contains(' ') => (second, rest),
        _ => (name, text),
    };
    let task = before.trim_end().rsplit([' ', '-']).next()?;
    let text: Vec<&str> = text.split_whitespace().collect();
    let all = [task, cpu, time, name, &text.join(" ")];
    Some(all.map(str::to_owned))
}

fn events(text: &str) -> Vec<[String; 5]> {
    let all = text.lines().filter_map(parts);
    all.filter(|parts| parts[3] != "kernel_stack").collect()
}

#[test]
fn each_event_is_the_one_that_the_tool_itself_prints() {
    for (name, recording, printed) in PAIRS {
        let (text, broken) = text_of(recording.to_vec()).unwrap();
        assert_eq!(broken, None, "{name}");
        let (ours, theirs) =
            (events(&text), events(&String::from_utf8(unpacked(printed)).unwrap()));
        assert!(theirs.len() > 70, "{name}: {}", theirs.len());
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{name}");
        }
    }
}

/// Counts of a trace, to its end.
fn read(mut reader: Reader) -> Reader {
    while reader.next_op().is_some() {}
    reader
}

#[test]
fn a_recording_replays_as_its_own_text_does() {
    for (name, recording, printed) in [PAIRS[0], PAIRS[1], PAIRS[3]] {
        let (ours, theirs) =
            (read(from_bytes(recording).unwrap()), read(from_bytes(printed).unwrap()));
        let (ours, theirs) = (ours.summary(), theirs.summary());
        assert!(ours.maps > 10 && ours.bytes_mapped > 0, "{name}: {ours:?}");
        assert_eq!(ours.maps, theirs.maps, "{name}");
        assert_eq!(ours.unmaps, theirs.unmaps, "{name}");
        assert_eq!(ours.bytes_mapped, theirs.bytes_mapped, "{name}");
        assert_eq!(ours.orphan_unmaps, theirs.orphan_unmaps, "{name}");
        assert_eq!(ours.lost_events, theirs.lost_events, "{name}");
        assert_eq!(ours.events_by_name, theirs.events_by_name, "{name}");
        assert_eq!((ours.first_ns, ours.last_ns), (theirs.first_ns, theirs.last_ns), "{name}");
        assert_eq!((ours.bad_lines, ours.out_of_order), (0, 0), "{name}: {:?}", ours.first_bad);
        assert_eq!(ours.devices, theirs.devices, "{name}");
        let counts =
            |recorded: &KernelInvalidations| (recorded.page_masks.clone(), recorded.domain);
        assert_eq!(counts(&ours.recorded), counts(&theirs.recorded), "{name}");
    }
}

/// The kernel counted these with `hist` triggers during the recording.
#[test]
fn scatter_lists_of_linux_6_12_are_whole() {
    let reader = read(from_bytes(include_bytes!("fixtures/lists.dat.xz")).unwrap());
    let summary = reader.summary();
    assert_eq!((summary.maps, summary.unmaps, summary.orphan_unmaps), (60, 60, 0));
    assert_eq!(summary.bytes_mapped, 40 * 4096 + 20 * 131_072);
    assert_eq!((summary.inexact_lists, summary.truncated_lists), (0, 0));
    assert_eq!(summary.recorded.page_masks.values().sum::<u64>(), 60);
    assert_eq!(summary.bad_lines, 0, "{:?}", summary.first_bad);
}

#[test]
fn lost_events_are_as_many_as_the_tool_says() {
    let printed = String::from_utf8(unpacked(include_bytes!("fixtures/lost.txt.xz"))).unwrap();
    let lost = printed.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    let lost: u64 = lost.sum();
    let reader = read(from_bytes(LOST).unwrap());
    let summary = reader.summary();
    assert!(lost > 1000);
    // perf counts lost events again at the end, by event.
    assert!(summary.lost_events >= lost, "{} {lost}", summary.lost_events);
    assert_eq!((summary.events, summary.bad_lines), (4591, 0), "{:?}", summary.first_bad);
    let reader = read(from_bytes(SEVEN).unwrap());
    assert_eq!(reader.summary().lost_events, 216);
}

#[test]
fn the_kernels_release_is_read_from_the_head() {
    let release = |packed: &'static [u8]| from_bytes(packed).unwrap().release();
    for packed in [SIX, SEVEN, PACKED, CHAINS, LOST, COMPRESSED] {
        assert!(release(packed).is_some());
    }
    // A pipe says it behind the events.
    assert_eq!(release(PIPE), None);
}
