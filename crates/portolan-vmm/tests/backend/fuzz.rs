//! Messages of `tests/corpus/vhost-user` and rings of `tests/corpus/rings`, and changed ones.
//!
//! A message is a record: the number of files that come along, then the bytes for the socket. A write to a ring is a
//! record: the ring, the offset in its pages (2 bytes), and the bytes to write there.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fastrand::Rng;
use portolan_vmm::backend::{Backend, BackendOptions};

use crate::frontend::{Frontend, Grant, raw};
use crate::guest::{Guest, RINGS};
use crate::{Inverter, corpus};

const SET_MEM_TABLE: u8 = 5;
/// Bytes that fit in a socket that is not read yet.
const MOST_BYTES: usize = 32 << 10;

/// Sends all messages; returns the number of replies, each of which has to be one.
fn converse(messages: &corpus::Input) -> usize {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // Another file than the guest's memory, where the back-end is told to write to it.
    let (guest, other) = (Guest::new(), Guest::new());
    let mut options = BackendOptions::default();
    options.iotlb.miss_limit = Duration::from_millis(20);
    let backend = Backend::new(Inverter::new(), options);
    let (served, replies) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let served = backend.serve(&theirs);
            // A thread that reads learns of it.
            theirs.shutdown(std::net::Shutdown::Both).unwrap();
            served
        });
        let mut sent = 0;
        for message in messages {
            let Some((files, bytes)) = message.split_first() else {
                continue;
            };
            sent += bytes.len();
            let file = match bytes.first() {
                Some(&SET_MEM_TABLE) => &guest.memory,
                _ => &other.memory,
            };
            let files = vec![file.as_fd(); usize::from(*files % 10)];
            // It may have ended the connection.
            if sent > MOST_BYTES || bytes.is_empty() || raw(&ours, bytes, &files).is_err() {
                break;
            }
        }
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = Vec::new();
        (&ours).read_to_end(&mut said).unwrap();
        (serving.join().unwrap(), replies(&said))
    });
    assert!(served.0.iotlb.evictions <= served.0.iotlb.updates);
    replies
}

/// The number of replies.
fn replies(mut said: &[u8]) -> usize {
    let mut count = 0;
    while let Some((header, rest)) = said.split_first_chunk::<12>() {
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(4), 1 | 1 << 2, "no reply");
        said = &rest[word(8) as usize..];
        count += 1;
    }
    assert_eq!(said, [0; 0], "a reply that is cut off");
    count
}

#[test]
fn a_front_end_that_says_anything_is_answered_or_left() {
    let [kept, changed] =
        corpus::each("vhost-user", 1_500, |messages, _| converse(messages) * 2 > messages.len());
    assert!(kept > 3 && changed > 200, "too little of it is read");
}

/// Writes to the rings, and kicks them.
fn write(guest: &Guest, frontend: &Frontend, records: &[Vec<u8>]) {
    for record in records {
        if let [ring, low, high, bytes @ ..] = record.as_slice() {
            let ring = usize::from(*ring) % RINGS;
            guest.write(ring, u16::from_le_bytes([*low, *high]), bytes);
            frontend.kick(ring);
        }
    }
}

fn serve_rings(records: &corpus::Input, rng: &mut Rng) -> bool {
    let guest = Guest::new();
    let (mut frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Everything);
    // Some of it is there before the rings start, the rest is written while they are read.
    let (before, after) = records.split_at(rng.usize(..=records.len()));
    for record in before {
        if let [ring, low, high, bytes @ ..] = record.as_slice() {
            guest.write(usize::from(*ring) % RINGS, u16::from_le_bytes([*low, *high]), bytes);
        }
    }
    frontend.set_up(&guest);
    (0..RINGS).for_each(|ring| frontend.kick(ring));
    write(&guest, &frontend, after);
    // The guest writes it all once more, while the device may be at it.
    write(&guest, &frontend, records);
    frontend.wait_for_questions(1);
    for ring in 0..RINGS {
        frontend.stop(ring);
    }
    guest.check_secret();
    drop(frontend);
    let (served, ended) = served.join().unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    served.iotlb.hits > 0
}

#[test]
fn a_guest_that_writes_anything_to_its_rings_reaches_what_is_granted() {
    let [_, changed] = corpus::each("rings", 400, serve_rings);
    assert!(changed > 50, "too little of it is served");
}
