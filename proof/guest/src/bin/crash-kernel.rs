//! `crash-kernel DISK KERNEL REQUESTS`: has Linux load `KERNEL`, a static ELF program, for the case that it crashes,
//! begins so many reads of a page of `DISK`, one after the other from its start on, and crashes Linux while they are
//! under way.
//!
//! The memory that Linux leaves free (`crashkernel=SIZE@ADDRESS`) has the device tree at its start, `KERNEL` where it
//! is linked, and in its middle a page of notes: the number of reads, and the physical address of each one's page.
//! Linux: `kexec_load(2)`, Documentation/admin-guide/sysrq.rst, Documentation/admin-guide/mm/pagemap.rst.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;

const PAGE: usize = 4096;
/// Most requests that the notes have room for.
const MOST: usize = PAGE / 8 - 1;
/// Byte that no page of the disk is full of.
const UNTOUCHED: u8 = 0x5a;
/// `KEXEC_ON_CRASH`.
const ON_CRASH: libc::c_ulong = 1;
/// Bits of an entry of `/proc/self/pagemap`: the page is in memory, and the number of its frame.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
/// A segment of an ELF program that is loaded.
const LOAD: u32 = 1;

/// `struct kexec_segment`: bytes, and the memory that gets them.
#[repr(C)]
struct Segment {
    from: *const u8,
    bytes: usize,
    to: usize,
    room: usize,
}

impl Segment {
    /// Segment of these bytes, with room for `room` at least.
    fn of(bytes: &[u8], to: usize, room: usize) -> Self {
        let room = room.max(bytes.len()).next_multiple_of(PAGE);
        Self { from: bytes.as_ptr(), bytes: bytes.len(), to, room }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [disk, kernel, requests] = arguments.as_slice() else {
        bail!("usage: crash-kernel DISK KERNEL REQUESTS");
    };
    let count: usize = requests.parse().context("REQUESTS is no number")?;
    ensure!((1..=MOST).contains(&count), "REQUESTS are 1 to {MOST}");
    let mut memory = vec![UNTOUCHED; (count + 1) * PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let pages = &mut memory[start..start + count * PAGE];
    let mut notes = vec![count as u64];
    for page in pages.chunks(PAGE) {
        notes.push(physical(page)?);
    }
    load(&fs::read(kernel).with_context(|| kernel.clone())?, &notes)?;
    crash(Path::new(disk), pages)
}

/// The physical address of a page, which has been written.
fn physical(page: &[u8]) -> Result<u64> {
    let map = File::open("/proc/self/pagemap")?;
    let mut entry = [0; 8];
    map.read_exact_at(&mut entry, (page.as_ptr().addr() / PAGE * 8) as u64)?;
    let entry = u64::from_le_bytes(entry);
    ensure!(entry & PRESENT != 0 && entry & FRAME != 0, "a page is not in memory");
    Ok((entry & FRAME) * PAGE as u64)
}

/// The first and the last address that Linux leaves free for another kernel.
fn left_free() -> Result<[usize; 2]> {
    let all = fs::read_to_string("/proc/iomem")?;
    let line = all.lines().find_map(|line| line.trim().strip_suffix(" : Crash kernel"));
    let (first, last) = line.and_then(|line| line.split_once('-')).context("no memory is free")?;
    let both = [first, last].map(|number| usize::from_str_radix(number, 16));
    let [Ok(first), Ok(last)] = both else { bail!("the kernel shows no addresses") };
    Ok([first, last])
}

/// Has Linux load the program `elf`.
fn load(elf: &[u8], notes: &[u64]) -> Result<()> {
    let [first, last] = left_free()?;
    let told = fs::read("/sys/firmware/fdt").context("there is no device tree")?;
    let notes: Vec<u8> = notes.iter().flat_map(|word| word.to_le_bytes()).collect();
    let bytes = last - first + 1;
    let middle = first + bytes / 2;
    let (entry, mut segments) = segments(elf).context("KERNEL is no ELF program")?;
    segments.push(Segment::of(&told, first, 0));
    segments.push(Segment::of(&notes, middle, 0));
    let number = segments.len();
    // SAFETY: the kernel reads the segments, which are as it wants them, and the bytes that they name.
    let loaded =
        unsafe { libc::syscall(libc::SYS_kexec_load, entry, number, segments.as_ptr(), ON_CRASH) };
    ensure!(loaded == 0, "kexec_load: {}", std::io::Error::last_os_error());
    Ok(())
}

/// The entry and the segments of an ELF program of 64 bits, little-endian.
fn segments(elf: &[u8]) -> Option<(usize, Vec<Segment>)> {
    let half = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(elf.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| {
        let bytes = elf.get(at..at.checked_add(8)?)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let mut segments = Vec::new();
    let (headers, bytes, count) = (long(32)?, half(54)?, half(56)?);
    for number in 0..usize::from(count) {
        let at = headers.checked_add(number * usize::from(bytes))?;
        if word(at)? == LOAD {
            let (offset, to, bytes, room) =
                (long(at + 8)?, long(at + 24)?, long(at + 32)?, long(at + 40)?);
            let loaded = elf.get(offset..offset.checked_add(bytes)?)?;
            segments.push(Segment::of(loaded, to, room));
        }
    }
    Some((long(24)?, segments))
}

/// Reads a page of the disk into each of `pages` at once, and crashes once all are under way or done.
fn crash(disk: &Path, pages: &mut [u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file =
        options.open(disk).with_context(|| format!("{} cannot be opened", disk.display()))?;
    let name = disk.file_name().context("DISK has no name")?;
    let inflight = Path::new("/sys/block").join(name).join("inflight");
    let (done, count) = (AtomicUsize::new(0), pages.len() / PAGE);
    thread::scope(|scope| {
        for (number, page) in pages.chunks_mut(PAGE).enumerate() {
            let (file, done) = (&file, &done);
            scope.spawn(move || {
                if file.read_exact_at(page, (number * PAGE) as u64).is_ok() {
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        loop {
            // In this order, a read that ends meanwhile is not counted twice.
            let done = done.load(Ordering::SeqCst);
            let counts = fs::read_to_string(&inflight)?;
            let reads = counts.split_whitespace().next().and_then(|reads| reads.parse().ok());
            if done + reads.unwrap_or(0) == count {
                println!("crash-kernel: {done} of {count} reads are done");
                fs::write("/proc/sysrq-trigger", "c")?;
                bail!("Linux did not crash");
            }
            thread::yield_now();
        }
    })
}
