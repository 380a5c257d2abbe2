//! Threads of a monitor under filters of system calls, which `docs/vmm.md` lists.
//!
//! A filter ends the process, so each thread runs in a process of its own: this test's program, called again with
//! the row of the table in the environment.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use portolan::addr::PhysAddr;
use portolan_spec::virtio::{Request, config};
use portolan_vmm::frontend::VhostFrontend;
use portolan_vmm::viommu::{Reset, ViommuOptions, VirtioIommu};
use portolan_vmm::{Endpoint, EndpointId, FrontendAddr, MemoryRegion, Message};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

#[path = "../../portolan/tests/support/filtered.rs"]
mod filtered;

use filtered::{calls_of, filter, number};

const ROW: &str = "PORTOLAN_SECCOMP";
const PAGE: u64 = 4096;
/// Exit code of a thread that came to its end.
const END: i32 = 7;

/// System calls of a row of the table, and of those above it.
fn allowed(row: usize) -> Vec<libc::c_long> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/vmm.md");
    let page = std::fs::read_to_string(page).unwrap();
    calls_of(&page, row)
}

fn device() -> (VirtioIommu, Endpoint) {
    let mut options = ViommuOptions::default();
    options.invalidation_limit = Duration::from_millis(50);
    let device = VirtioIommu::new(options);
    let endpoint = device.add(EndpointId::new(8), &[]).unwrap();
    (device, endpoint)
}

fn send(device: &VirtioIommu, request: Request) -> u8 {
    let mut answer = [0xff; 516];
    device.request(request.encode().as_slice(), &mut answer);
    answer[512]
}

fn map(page: u64) -> Request {
    let start = page * PAGE;
    Request::Map { domain: 1, start, last: start + PAGE - 1, phys: start, flags: 3 }
}

const ATTACH: Request = Request::Attach { domain: 1, endpoint: 8, flags: 0 };
const ALL: Request = Request::Unmap { domain: 1, start: 0, last: u64::MAX };

/// Every kind of request, look-ups, a wait for a guard, and other threads that contend.
fn requests(calls: &[libc::c_long]) -> ! {
    let (device, endpoint) = device();
    let (device, barrier) = (Arc::new(device), Arc::new(Barrier::new(2)));
    let (other, start) = (Arc::clone(&device), Arc::clone(&barrier));
    std::thread::spawn(move || {
        start.wait();
        loop {
            other.write_config(config::BYPASS, 0);
        }
    });
    barrier.wait();
    filter(calls);
    for round in 0..20 {
        assert_eq!(send(&device, ATTACH), 0);
        for page in 0..2_000 {
            assert_eq!(send(&device, map(page)), 0);
        }
        let mut held = endpoint.translate(GuestAddress(8), 8, Permissions::Write).ok();
        assert!(held.is_some());
        if round > 0 {
            held = None;
        }
        assert_eq!(send(&device, ALL) == 0, held.is_none());
        drop(held);
        let saved = device.save();
        device.restore(&saved).unwrap();
        while device.next_fault().is_some() {}
        device.reset(Reset::Device).unwrap();
    }
    std::process::exit(END)
}

/// Mappings and their ends for a back-end, and answers to its misses.
fn frontend(calls: &[libc::c_long]) -> ! {
    let (device, _) = device();
    let (front, mut back) = UnixStream::pair().unwrap();
    let (asked, mut questions) = UnixStream::pair().unwrap();
    let region =
        MemoryRegion { guest: PhysAddr::new(0), frontend: FrontendAddr::new(0), bytes: 1 << 20 };
    let frontend = Arc::new(VhostFrontend::new(front));
    frontend.set_memory(&[region]).unwrap();
    // The back-end acknowledges everything, and asks for a page.
    std::thread::spawn(move || {
        let mut message = [0; 12 + Message::BYTES];
        while back.read_exact(&mut message).is_ok() {
            let header = [22_u32, 5, 8].map(u32::to_le_bytes).concat();
            back.write_all(&[&header[..], &[0; 8]].concat()).unwrap();
        }
    });
    let header = [1_u32, 9, 32].map(u32::to_le_bytes).concat();
    let miss = Message::miss(portolan::addr::Iova::new(PAGE), Permissions::Read);
    questions.write_all(&[&header[..], &miss].concat()).unwrap();
    questions.shutdown(std::net::Shutdown::Write).unwrap();
    filter(calls);
    device.listen(EndpointId::new(8), frontend.clone()).unwrap();
    assert_eq!(send(&device, ATTACH), 0);
    assert_eq!(send(&device, map(1)), 0);
    frontend.serve(&asked).unwrap();
    assert_eq!(send(&device, ALL), 0);
    let counts = frontend.counts();
    assert_eq!((counts.answered, counts.invalidated), (1, 1));
    std::process::exit(END)
}

/// Runs a row's thread under the filter in a process; `without` is missing in it.
fn run(row: usize, without: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "threads_need_the_calls_of_the_table_and_no_other", "--nocapture"]);
    let output = command.env(ROW, format!("{row} {without}")).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

#[test]
fn threads_need_the_calls_of_the_table_and_no_other() {
    let Ok(row) = std::env::var(ROW) else {
        for row in 0..2 {
            assert_eq!(run(row, "").code(), Some(END), "row {row}");
        }
        // The filter is there: without one of these calls it ends the process. The heap of a thread other than the
        // first one grows by `mprotect`.
        for (row, without) in [(0, "mprotect"), (1, "sendto"), (1, "recvmsg"), (1, "recvfrom")] {
            assert_eq!(run(row, without).signal(), Some(libc::SIGSYS), "row {row}, {without}");
        }
        return;
    };
    let (row, without) = row.split_once(' ').unwrap();
    let row: usize = row.parse().unwrap();
    let mut calls = allowed(row);
    calls.retain(|call| Some(*call) != number(without));
    // The first thread has another heap.
    let thread = std::thread::spawn(move || match row {
        0 => requests(&calls),
        _ => frontend(&calls),
    });
    // It ends the process.
    assert!(thread.join().is_err());
}
