//! The disk: requests of virtio-blk, carried out on a file.
//!
//! Virtio 1.2, section 5.2. Not supported: discarding, write zeroes, several sizes of blocks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use portolan_vmm::backend::{Device, DeviceMemory, Request};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

const SECTOR: u64 = 512;
/// Kinds of requests.
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
/// Outcomes, as the last byte of a request says them.
const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;
/// Feature bits: a size of blocks, flushing, several rings.
const BLK_SIZE: u64 = 1 << 6;
const HAS_FLUSH: u64 = 1 << 9;
const HAS_QUEUES: u64 = 1 << 12;
const QUEUES: u16 = 2;
/// Bytes that are copied at a time: a guest may ask for 4 GiB.
const CHUNK: usize = 64 << 10;

pub struct Disk {
    file: File,
    bytes: u64,
    config: [u8; 60],
}

/// Reason why a request ends without an outcome that the guest can read.
enum Lost {
    /// It has no header, or no place for the outcome.
    Chain,
    /// A part of it is in memory that the device cannot reach.
    Memory,
}

impl From<GuestMemoryError> for Lost {
    fn from(_: GuestMemoryError) -> Self {
        Self::Memory
    }
}

/// A part of a request's data.
#[derive(Clone, Copy)]
struct Part {
    at: GuestAddress,
    bytes: usize,
    writable: bool,
}

impl Disk {
    pub fn new(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len() / SECTOR * SECTOR;
        let mut config = [0; 60];
        config[..8].copy_from_slice(&(bytes / SECTOR).to_le_bytes());
        config[20..24].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        config[34..36].copy_from_slice(&QUEUES.to_le_bytes());
        Ok(Self { file, bytes, config })
    }

    fn carry_out(&self, memory: &DeviceMemory, request: &Request) -> Result<u32, Lost> {
        let [head, data @ .., outcome] = request.descriptors() else {
            return Err(Lost::Chain);
        };
        if head.is_write_only() || head.len() < 16 || !outcome.is_write_only() {
            return Err(Lost::Chain);
        }
        // Read once: the guest may change it meanwhile.
        let header: [u8; 16] = memory.read_obj(head.addr())?;
        let [kind, _, sector @ ..] = words(header);
        let parts = data.iter().map(|descriptor| Part {
            at: descriptor.addr(),
            bytes: descriptor.len() as usize,
            writable: descriptor.is_write_only(),
        });
        let start = u64::from(sector[1]) << 32 | u64::from(sector[0]);
        let (status, written) = match kind {
            IN | OUT => self.transfer(memory, parts, start, kind == IN),
            FLUSH if self.file.sync_data().is_ok() => (OK, 0),
            FLUSH => (IO_ERROR, 0),
            GET_ID => name(memory, parts),
            _ => (UNSUPPORTED, 0),
        };
        memory.write_obj(status, outcome.addr())?;
        Ok(written + 1)
    }

    /// Moves data between the disk, from sector `start` on, and `parts`; returns the outcome, and the number
    /// of bytes that the guest got.
    fn transfer(
        &self,
        memory: &DeviceMemory,
        parts: impl Iterator<Item = Part>,
        start: u64,
        to_guest: bool,
    ) -> (u8, u32) {
        let mut buffer = vec![0; CHUNK];
        let (mut at, mut moved) = (start.checked_mul(SECTOR), 0u32);
        for part in parts {
            let mut done = 0;
            while done < part.bytes {
                let bytes = (part.bytes - done).min(CHUNK);
                let place = at.filter(|at| {
                    let end = at.checked_add(bytes as u64);
                    part.writable == to_guest && end.is_some_and(|end| end <= self.bytes)
                });
                let Some(place) = place else {
                    return (IO_ERROR, moved);
                };
                let guest = GuestAddress(part.at.0.wrapping_add(done as u64));
                if self.piece(memory, guest, place, &mut buffer[..bytes], to_guest).is_err() {
                    return (IO_ERROR, moved);
                }
                done += bytes;
                at = Some(place + bytes as u64);
                moved = moved.saturating_add(if to_guest { bytes as u32 } else { 0 });
            }
        }
        (OK, moved)
    }

    fn piece(
        &self,
        memory: &DeviceMemory,
        guest: GuestAddress,
        place: u64,
        buffer: &mut [u8],
        to_guest: bool,
    ) -> io::Result<()> {
        match to_guest {
            true => {
                self.file.read_exact_at(buffer, place)?;
                memory.write_slice(buffer, guest).map_err(io::Error::other)
            }
            false => {
                memory.read_slice(buffer, guest).map_err(io::Error::other)?;
                self.file.write_all_at(buffer, place)
            }
        }
    }
}

/// The four words of a header.
fn words(header: [u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(header.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}

/// Writes the name of the disk; returns the status and the number of bytes.
fn name(memory: &DeviceMemory, mut parts: impl Iterator<Item = Part>) -> (u8, u32) {
    let name = b"portolan\0\0\0\0\0\0\0\0\0\0\0\0";
    let place = parts.next().filter(|part| part.writable && part.bytes >= 20);
    match place.map(|part| memory.write_slice(name, part.at)) {
        Some(Ok(())) => (OK, 20),
        _ => (IO_ERROR, 0),
    }
}

impl Device for Disk {
    fn features(&self) -> u64 {
        BLK_SIZE | HAS_FLUSH | HAS_QUEUES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn queues(&self) -> u16 {
        QUEUES
    }

    fn request(&self, memory: &DeviceMemory, request: &Request) -> u32 {
        // A request that is lost has an outcome that the device did not write.
        self.carry_out(memory, request).unwrap_or(0)
    }
}
