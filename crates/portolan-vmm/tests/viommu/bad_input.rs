//! Requests of a hostile guest.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use portolan_chips::fixture::seed;
use portolan_spec::virtio::Request;
use portolan_vmm::viommu::VirtioIommu;
use vm_memory::Permissions;

use crate::{machine, reach};

const PAGE: u64 = 4096;
const OK: u8 = 0;
const UNSUPP: u8 = 2;
const INVAL: u8 = 4;
const RANGE: u8 = 5;
const NOENT: u8 = 6;
const NOMEM: u8 = 8;

fn send(device: &VirtioIommu, request: &[u8]) -> u8 {
    let mut answer = [0xff; 512 + 4];
    assert_eq!(device.request(request, &mut answer), answer.len());
    assert_eq!(answer[513..], [0; 3]);
    answer[512]
}

fn ask(device: &VirtioIommu, request: Request) -> u8 {
    send(device, request.encode().as_slice())
}

fn attach(domain: u32, endpoint: u32, flags: u32) -> Request {
    Request::Attach { domain, endpoint, flags }
}

fn map(start: u64, last: u64, phys: u64, flags: u32) -> Request {
    Request::Map { domain: 1, start, last, phys, flags }
}

fn unmap(start: u64, last: u64) -> Request {
    Request::Unmap { domain: 1, start, last }
}

#[test]
fn each_request_that_makes_no_sense_has_its_status() {
    let (device, [endpoint, _]) = machine(Duration::from_secs(60));
    let ask = |request| ask(&device, request);
    assert_eq!(ask(map(0, PAGE - 1, 0, 1)), NOENT, "no domain");
    assert_eq!(ask(unmap(0, PAGE - 1)), NOENT);
    assert_eq!(ask(attach(1, 9, 0)), NOENT);
    assert_eq!(ask(attach(0x1_0000, 8, 0)), RANGE);
    assert_eq!(ask(attach(1, 8, 2)), INVAL);
    assert_eq!(ask(attach(1, 8, 0)), OK);
    assert_eq!(ask(attach(1, 16, 1)), INVAL, "a domain is of one kind");
    let detach = |domain, endpoint| Request::Detach { domain, endpoint };
    assert_eq!(ask(detach(2, 8)), INVAL);
    assert_eq!(ask(detach(1, 9)), NOENT);
    // Alignment, order, flags, the input's range, the doorbell, the mapping that is there.
    for (start, last, phys, flags) in [
        (1, PAGE - 1, 0, 1),
        (0, PAGE, 0, 1),
        (0, PAGE - 1, 1, 1),
        (PAGE, PAGE - 1, 0, 1),
        (0, PAGE - 1, 0, 4),
        (0, 2 * PAGE - 1, u64::MAX - PAGE + 1, 1),
        (0xfee0_1000, 0xfee0_1fff, 0, 1),
        (0, 0xffff_ffff, 0, 1),
    ] {
        assert_eq!(ask(map(start, last, phys, flags)), INVAL, "{start:#x}");
    }
    assert_eq!(ask(map(0, u64::MAX, 0, 1)), RANGE);
    assert_eq!(ask(map(1 << 48, (1 << 48) + PAGE - 1, 0, 1)), RANGE);
    assert_eq!(ask(map(PAGE, 3 * PAGE - 1, PAGE, 3)), OK);
    assert_eq!(ask(map(2 * PAGE, 4 * PAGE - 1, 0, 1)), INVAL, "overlaps");
    // Not a part of a mapping, and then nothing.
    assert_eq!(ask(unmap(0, 2 * PAGE - 1)), RANGE);
    assert_eq!(ask(unmap(2 * PAGE, 9 * PAGE - 1)), RANGE);
    assert!(reach(&endpoint, PAGE, 8192, Permissions::Write).is_some());
    assert_eq!(ask(unmap(0, u64::MAX)), OK);
    assert_eq!(reach(&endpoint, PAGE, 1, Permissions::Read), None);
    assert_eq!(ask(Request::Probe { endpoint: 9 }), NOENT);
}

#[test]
fn mappings_are_bounded() {
    let (device, _) = machine(Duration::from_secs(60));
    assert_eq!(ask(&device, attach(1, 8, 0)), OK);
    let one = |number: u64| ask(&device, map(number * PAGE, number * PAGE + PAGE - 1, 0, 1));
    assert!((0..1000).all(|number| one(number) == OK));
    assert_eq!(one(1000), NOMEM);
    assert_eq!(ask(&device, unmap(0, PAGE - 1)), OK);
    assert_eq!(one(1000), OK);
}

#[test]
fn buffers_of_any_size_are_answered_as_far_as_they_go() {
    let (device, _) = machine(Duration::from_secs(60));
    for bytes in 0..4 {
        let mut answer = vec![0xff; bytes];
        assert_eq!(device.request(&[1; 20], &mut answer), 0);
        assert!(answer.iter().all(|byte| *byte == 0xff));
    }
    let probe = Request::Probe { endpoint: 8 }.encode();
    let mut answer = [0xff; 100];
    assert_eq!(device.request(probe.as_slice(), &mut answer), 100);
    assert_eq!(answer[96], INVAL, "no room for the properties");
    for bytes in 0..20 {
        let status = send(&device, &[1; 20][..bytes]);
        assert_eq!(status, if bytes == 0 { UNSUPP } else { INVAL });
    }
}

#[test]
fn faults_that_nobody_reads_are_bounded() {
    let (device, [endpoint, _]) = machine(Duration::from_secs(60));
    for _ in 0..1000 {
        assert_eq!(reach(&endpoint, 0, 1, Permissions::Read), None);
    }
    assert_eq!(device.faults_lost(), 1000 - 256);
    let records = std::iter::from_fn(|| device.next_fault());
    assert_eq!(records.count(), 256);
}

#[test]
fn no_request_does_more_than_answer() {
    let mut rng = Rng::with_seed(seed());
    let (device, endpoints) = machine(Duration::from_secs(60));
    let device = Arc::clone(&device);
    let mut statuses = [0u32; 9];
    for _ in 0..100_000 {
        let few = |rng: &mut Rng| rng.choice([0, 1, 8, 16, 0x1000, 0x2000]).unwrap();
        let mut request = vec![rng.u8(..7), 0, 0, 0];
        for _ in 0..17 {
            let word: u32 = if rng.u32(..8) == 0 { rng.u32(..) } else { few(&mut rng) };
            // Reserved words are zero, mostly.
            let word = if rng.bool() { word } else { 0 };
            request.extend(word.to_le_bytes());
        }
        let length = rng.choice([20, 20, 36, 28, 72]).unwrap();
        request.truncate(length);
        let status = send(&device, &request);
        statuses[usize::from(status)] += 1;
        let at = u64::from(few(&mut rng));
        for endpoint in &endpoints {
            let bytes = rng.choice([1, 4096, 1 << 20]).unwrap();
            let _ = reach(endpoint, at, bytes, Permissions::Read);
        }
        while device.next_fault().is_some() {}
    }
    assert!(statuses[0] > 1_000, "{statuses:?} by status");
}
