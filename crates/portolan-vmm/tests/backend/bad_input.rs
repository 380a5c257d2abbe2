//! Front-ends that send nonsense, and guests that change data while it is read.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fastrand::Rng;
use portolan_chips::fixture::seed;
use portolan_vmm::backend::{Backend, BackendOptions, ServeError};

use crate::Inverter;
use crate::frontend::{Frontend, Grant, raw, table};
use crate::guest::{BYTES, GRANTED, Guest, IOVA, RINGS, SIZE};

/// Serves a connection on which `bytes` come, then nothing more; returns the result.
fn serve(bytes: &[u8], files: usize) -> Result<(), ServeError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let guest = Guest::new();
    let files = vec![guest.memory.as_fd(); files];
    raw(&ours, bytes, &files).unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let backend = Backend::new(Inverter::new(), BackendOptions::default());
    backend.serve(&theirs).1
}

fn message(request: u32, flags: u32, bytes: u32, payload: &[u8]) -> Vec<u8> {
    let header = [request, flags, bytes].map(u32::to_le_bytes);
    [&header.concat(), payload].concat()
}

#[test]
fn headers_that_make_no_sense_end_the_connection() {
    for (flags, bytes) in [(0, 0), (2, 0), (1 | 1 << 2, 0), (1, 4097), (1, u32::MAX)] {
        let ended = serve(&message(1, flags, bytes, &[]), 0);
        assert!(matches!(ended, Err(ServeError::Wire(_))), "{ended:?}");
    }
    // A message that ends in the middle, and more files than any has.
    assert!(serve(&message(1, 1, 0, &[])[..7], 0).is_err());
    assert!(serve(&message(2, 1, 8, &[0; 3]), 0).is_err());
    assert!(serve(&message(5, 1, 40, &table()), 9).is_err());
    assert!(serve(&message(1, 1, 0, &[]), 0).is_ok());
}

#[test]
fn what_cannot_be_carried_out_is_refused() {
    let ring = |ring: u32, value: u32| [ring, value].map(u32::to_le_bytes).concat();
    let region = |words: [u64; 4]| [ring(1, 0), words.map(u64::to_le_bytes).concat()].concat();
    let cases: Vec<(u32, Vec<u8>, usize)> = vec![
        (0, vec![], 0),
        (99, vec![], 0),
        (u32::MAX, vec![], 0),
        // Features that were not offered.
        (2, u64::MAX.to_le_bytes().to_vec(), 0),
        // Rings that there are not, of sizes that there are not; too short.
        (8, ring(RINGS as u32, 8), 0),
        (8, ring(0, 7), 0),
        (8, ring(0, u32::MAX), 0),
        (8, vec![0; 7], 0),
        (9, vec![0; 12], 0),
        (9, [[0; 8], [1; 8], [1; 8], [1; 8], [0; 8]].concat(), 0),
        (10, ring(0, u32::MAX), 0),
        (12, 0u64.to_le_bytes().to_vec(), 0),
        (18, ring(u32::MAX, 1), 0),
        // Memory without a file, with too many, past its end, of no size, of all sizes.
        (5, region([0, BYTES, 0, 0]), 0),
        (5, region([0, BYTES, 0, 0]), 2),
        (5, region([0, BYTES + 1, 0, 0]), 1),
        (5, region([0, BYTES, 0, u64::MAX]), 1),
        (5, region([0, 0, 0, 0]), 1),
        (5, region([0, u64::MAX, 0, 0]), 1),
        (5, region([u64::MAX, BYTES, 0, 0]), 1),
        (5, ring(u32::MAX, 0), 1),
        (21, vec![], 0),
        (22, vec![0; 32], 0),
        (22, vec![0; 31], 0),
        (24, ring(0, 8), 0),
        (24, [ring(256, 1), vec![0; 5]].concat(), 0),
    ];
    let (guest, mut refused) = (Guest::new(), 0);
    let (frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Nothing);
    let protocol = frontend.ask(15, &[]);
    frontend.tell(16, &protocol.to_le_bytes(), &[]);
    for (request, payload, files) in &cases {
        let files = vec![guest.memory.as_fd(); *files];
        let outcome = frontend.outcome(*request, payload, &files);
        assert_eq!(outcome, Some(1), "{request} {payload:x?}");
        refused += 1;
    }
    assert_eq!(refused, cases.len());
    drop(frontend);
    assert!(served.join().unwrap().1.is_ok());
}

#[test]
fn endless_nonsense_is_read_and_refused() {
    let mut rng = Rng::with_seed(seed());
    let guest = Guest::new();
    let (mut connections, mut sent) = (0, 0);
    while sent < 20_000 {
        let (frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Nothing);
        let protocol = frontend.ask(15, &[]);
        frontend.tell(16, &protocol.to_le_bytes(), &[]);
        for _ in 0..500 {
            let request = rng.u32(..40);
            let few = rng.u64(..3);
            let mut payload: Vec<u8> = (0..5)
                .flat_map(|_| if rng.bool() { few } else { rng.u64(..) }.to_le_bytes())
                .collect();
            payload.truncate(rng.usize(..=40));
            let files = match rng.u32(..4) {
                // A ring that can be kicked is a file that is always ready: left to other tests.
                0 if request != 12 => vec![guest.memory.as_fd(); rng.usize(..4)],
                _ => Vec::new(),
            };
            sent += 1;
            // Some messages take the features away that the connection needs for replies.
            if request == 16 || frontend.outcome(request, &payload, &files).is_none() {
                break;
            }
        }
        drop(frontend);
        // Ended, well or not.
        let _ = served.join().unwrap();
        connections += 1;
    }
    println!("{sent} messages on {connections} connections");
    guest.check_secret();
}

#[test]
fn descriptors_that_change_while_they_are_read_reach_nothing_else() {
    let mut rng = Rng::with_seed(seed());
    let guest = Guest::new();
    let (mut frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Everything);
    frontend.set_up(&guest);
    let done = AtomicBool::new(false);
    let mut other = rng.fork();
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            while !done.load(SeqCst) {
                change(&guest, &mut other);
            }
        });
        for _ in 0..2_000 {
            let ring = rng.usize(..RINGS);
            guest.offer(ring, rng.u16(..2 * SIZE));
            frontend.kick(ring);
        }
        done.store(true, SeqCst);
        changing.join().unwrap();
    });
    for ring in 0..RINGS {
        frontend.stop(ring);
    }
    guest.check_secret();
    drop(frontend);
    let (served, ended) = served.join().unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    println!("{} requests, {:?}", served.requests, served.iotlb);
}

/// Writes some descriptor, with an address that is mapped, or is not, or is none.
fn change(guest: &Guest, rng: &mut Rng) {
    // Where data are read and written, so that the ring stays one; and memory that is not the device's.
    let inside = IOVA + 0x3000 + rng.u64(..0x1fff);
    let beyond = IOVA + GRANTED + rng.u64(..BYTES);
    let any = rng.u64(..);
    let at = rng.choice([inside, inside, inside, beyond, any, u64::MAX]);
    let bytes = rng.choice([0, 1, 512, 0x1000, 0x1_0000, u32::MAX]).unwrap();
    let flags = rng.u16(..8);
    let ring = rng.usize(..RINGS);
    guest.describe(ring, rng.u16(..SIZE), (at.unwrap(), bytes), flags, rng.u16(..SIZE));
}
