//! `make-load NAME`: one of the loads that are recorded, and 100 ms of rest, in which timers of a lazy kernel run out.
//!
//! Disks are `nvme0n1` and, for the load of several, two more; requests pass the page cache by. The network's other
//! side sends back the bytes that it gets ([`ECHO`]).
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// Smallest size of the disks, in bytes.
const DISK: usize = 64 << 20;
const REST: Duration = Duration::from_millis(100);
/// Remote address, which QEMU's user network answers.
const ECHO: ([u8; 4], u16) = ([10, 0, 2, 100], 7);
/// Bytes that are sent and got back.
const SENT: usize = 1 << 20;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pages"] => read("nvme0n1", PAGE, 12_288, PAGE)?,
        ["bursts"] => bursts()?,
        ["lists"] => read("nvme0n1", 32 * PAGE, 256, PAGE)?,
        ["huge"] => read("nvme0n1", 32 * PAGE, 256, HUGE_PAGE)?,
        ["mixed"] => mixed()?,
        ["disks"] => disks()?,
        ["network"] => network()?,
        _ => anyhow::bail!("usage: make-load pages|bursts|lists|huge|mixed|disks|network"),
    }
    thread::sleep(REST);
    Ok(())
}

/// Memory that begins at a multiple of `alignment`; at a multiple of [`HUGE_PAGE`] it is a huge page, if there are
/// any.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    size: usize,
}

impl Buffer {
    fn of(size: usize, alignment: usize) -> Self {
        let whole = size.next_multiple_of(alignment);
        let memory = vec![0; whole + alignment];
        let start = memory.as_ptr().align_offset(alignment);
        let mut buffer = Self { memory, start, size };
        // Each page is there before a request, and from its beginning on.
        buffer.bytes().fill(1);
        buffer
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.size]
    }
}

fn open(disk: &str) -> Result<File> {
    let path = Path::new("/dev").join(disk);
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(&path);
    file.with_context(|| format!("{} cannot be opened", path.display()))
}

/// 2,048 reads of a page, eight at a time with pauses of 2 to 9 ms: a lazy kernel's timer is due now while the CPU
/// works, now while it rests.
fn bursts() -> Result<()> {
    let (file, mut buffer) = (open("nvme0n1")?, Buffer::of(PAGE, PAGE));
    for burst in 0..256 {
        for request in 0..8 {
            let at = (8 * burst + request) * PAGE as u64;
            file.read_exact_at(buffer.bytes(), at)?;
        }
        thread::sleep(Duration::from_millis(2 + 7 * burst % 8));
    }
    Ok(())
}

/// Does `count` reads of `size` bytes, one after the other, into one buffer.
fn read(disk: &str, size: usize, count: usize, alignment: usize) -> Result<()> {
    let (file, mut buffer) = (open(disk)?, Buffer::of(size, alignment));
    for request in 0..count {
        let at = request * size % DISK;
        file.read_exact_at(buffer.bytes(), at as u64)?;
    }
    Ok(())
}

/// `count` writes of `size` bytes.
fn write(disk: &str, size: usize, count: usize) -> Result<()> {
    let (file, mut buffer) = (open(disk)?, Buffer::of(size, PAGE));
    for request in 0..count {
        let at = request * size % DISK;
        file.write_all_at(buffer.bytes(), at as u64)?;
    }
    Ok(())
}

/// Runs two loads at a time: small requests with large ones, reads with writes.
fn mixed() -> Result<()> {
    beside(vec![
        Box::new(|| (0..4).try_for_each(|_| read("nvme0n1", PAGE, 64, PAGE))),
        Box::new(|| {
            [4, 16, 64, 128]
                .into_iter()
                .try_for_each(|pages| read("nvme0n1", pages * PAGE, 24, PAGE))?;
            write("nvme0n1", 16 * PAGE, 32)
        }),
    ])
}

/// Three disks at once.
fn disks() -> Result<()> {
    beside(vec![
        Box::new(|| read("nvme0n1", PAGE, 256, PAGE)),
        Box::new(|| read("nvme1n1", 32 * PAGE, 64, PAGE)),
        Box::new(|| read("nvme2n1", 4 * PAGE, 128, PAGE)),
    ])
}

/// Runs all of them at once.
fn beside(loads: Vec<Box<dyn Fn() -> Result<()> + Send>>) -> Result<()> {
    let threads: Vec<_> = loads.into_iter().map(thread::spawn).collect();
    for thread in threads {
        let ended = thread.join();
        ended.map_err(|_| anyhow::anyhow!("a load panicked"))??;
    }
    Ok(())
}

/// Sends bytes, and receives them back.
fn network() -> Result<()> {
    let mut out = TcpStream::connect(SocketAddr::from(ECHO)).context("no answer")?;
    let mut back = out.try_clone()?;
    let sent: Vec<u8> = (0..SENT).map(|at| (at / PAGE + at) as u8).collect();
    let expected = sent.clone();
    let sender = thread::spawn(move || {
        out.write_all(&sent)?;
        out.shutdown(Shutdown::Write)
    });
    let mut got = vec![0; SENT];
    back.read_exact(&mut got)?;
    let ended = sender.join();
    ended.map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    ensure!(got == expected, "what comes back is not what was sent");
    Ok(())
}
