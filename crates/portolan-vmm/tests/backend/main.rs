//! A back-end as a front-end and a guest meet it: one that works, and ones that lie.

mod bad_input;
#[path = "../corpus/mod.rs"]
mod corpus;
mod frontend;
mod fuzz;
mod guest;
mod vhost;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use portolan_vmm::backend::{Device, DeviceMemory, Request};
use vm_memory::Bytes;

use frontend::{Frontend, Grant};
use guest::{Guest, RINGS};

/// Writes the bytes that it reads, inverted.
struct Inverter {
    config: [u8; 8],
    done: AtomicU64,
    threads: Mutex<Vec<std::thread::ThreadId>>,
}

impl Inverter {
    fn new() -> Self {
        Self { config: *b"inverter", done: AtomicU64::new(0), threads: Mutex::default() }
    }
}

impl Device for Inverter {
    fn features(&self) -> u64 {
        1 << 5
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn queues(&self) -> u16 {
        RINGS as u16
    }

    fn request(&self, memory: &DeviceMemory, request: &Request) -> u32 {
        self.done.fetch_add(1, SeqCst);
        let this = std::thread::current().id();
        let mut threads = self.threads.lock().unwrap();
        if !threads.contains(&this) {
            threads.push(this);
        }
        drop(threads);
        let mut written = 0;
        for pair in request.descriptors().chunks(2) {
            let [from, to] = pair else { continue };
            let mut bytes = vec![0; from.len().min(to.len()).min(0x4000) as usize];
            let read = memory.read_slice(&mut bytes, from.addr());
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            if read.is_ok() && memory.write_slice(&bytes, to.addr()).is_ok() {
                written += bytes.len() as u32;
            }
        }
        written
    }
}

#[test]
fn two_rings_are_served_by_two_threads_through_what_is_granted() {
    let guest = Guest::new();
    let (mut frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Everything);
    frontend.set_up(&guest);
    assert_eq!(frontend.config(0, 8), b"inverter");
    for round in 0..50 {
        for ring in 0..RINGS {
            guest.fill(ring, round);
            guest.submit(ring);
            frontend.kick(ring);
            frontend.wait_for_call(ring);
            guest.check(ring, round);
        }
    }
    for ring in 0..RINGS {
        assert_eq!(frontend.stop(ring), 50);
    }
    // Mappings that were granted are taken back, and asked for anew.
    let before = frontend.questions();
    assert!(before > 0);
    assert_eq!(frontend.invalidate_all(), 0);
    drop(frontend);
    let (served, ended) = served.join().unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((served.requests, served.iotlb.invalidations), (100, 1));
    assert_eq!(served.iotlb.misses, before);
    assert!(served.iotlb.hits > served.iotlb.misses);
}

#[test]
fn a_ring_in_memory_that_is_not_granted_is_not_served() {
    let guest = Guest::new();
    let (mut frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Nothing);
    frontend.set_up(&guest);
    guest.submit(0);
    frontend.kick(0);
    frontend.wait_for_questions(1);
    assert_eq!(frontend.stop(0), 0);
    drop(frontend);
    let (served, ended) = served.join().unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(served.requests, 0);
    assert!(served.iotlb.failures > 0);
}

#[test]
fn a_ring_that_is_being_stopped_gets_the_translation_that_it_waits_for() {
    let guest = Guest::new();
    let (mut frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Silence);
    frontend.set_up(&guest);
    guest.fill(0, 1);
    guest.submit(0);
    frontend.kick(0);
    frontend.wait_for_questions(1);
    // The limit of the miss is a minute.
    assert_eq!(frontend.stop_then_grant(0), 1);
    guest.check(0, 1);
    drop(frontend);
    let (served, ended) = served.join().unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((served.requests, served.iotlb.failures), (1, 0));
}

#[test]
fn a_front_end_that_goes_away_in_a_miss_ends_everything() {
    let guest = Guest::new();
    let (mut frontend, served) = Frontend::start(Inverter::new(), &guest, Grant::Silence);
    frontend.set_up(&guest);
    guest.submit(0);
    frontend.kick(0);
    frontend.wait_for_questions(1);
    // The limit of the miss is a minute.
    drop(frontend);
    let (served, ended) = served.join().unwrap();
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((served.requests, served.iotlb.failures), (0, 1));
}
