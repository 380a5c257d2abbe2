//! A guest: its memory, and rings that it has there.
//!
//! Virtio 1.2, section 2.7. Memory that the guest has mapped for the device begins at [`IOVA`];
//! behind it is memory that the device must not reach.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

pub const PAGE: u64 = 4096;
/// Rings, and descriptors of one.
pub const RINGS: usize = 2;
pub const SIZE: u16 = 8;
/// Pages of a ring: descriptors, available, used, from, to.
const PAGES: u64 = 5;
/// Bytes of the guest's memory, and those from its start that are mapped for the device.
pub const BYTES: u64 = 64 * PAGE;
pub const GRANTED: u64 = RINGS as u64 * PAGES * PAGE;
/// Address at which the device has it.
pub const IOVA: u64 = 0x12_3450_0000;
/// Value of the bytes that are not granted.
const SECRET: u8 = 0xa5;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

pub struct Guest {
    pub memory: File,
}

impl Guest {
    pub fn new() -> Self {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(BYTES).unwrap();
        let secret = vec![SECRET; (BYTES - GRANTED) as usize];
        memory.write_all_at(&secret, GRANTED).unwrap();
        Self { memory }
    }

    /// Checks that nothing that was not granted has changed.
    pub fn check_secret(&self) {
        let mut secret = vec![0; (BYTES - GRANTED) as usize];
        self.memory.read_exact_at(&mut secret, GRANTED).unwrap();
        assert!(secret.iter().all(|byte| *byte == SECRET));
        // Nor did any of it get where the device writes.
        for ring in 0..RINGS {
            let mut to = vec![0; PAGE as usize];
            self.memory.read_exact_at(&mut to, place(ring, 4)).unwrap();
            assert!(!to.windows(8).any(|bytes| bytes == [!SECRET; 8]));
        }
    }

    /// Device addresses of a ring's descriptors, available and used ring.
    pub fn addresses(ring: usize) -> [u64; 3] {
        [0, 1, 2].map(|page| IOVA + place(ring, page))
    }

    pub fn fill(&self, ring: usize, round: u8) {
        let bytes = [round.wrapping_mul(7) | 1; 512];
        self.memory.write_all_at(&bytes, place(ring, 3)).unwrap();
    }

    pub fn check(&self, ring: usize, round: u8) {
        let mut found = [0; 512];
        self.memory.read_exact_at(&mut found, place(ring, 4)).unwrap();
        assert_eq!(found, [!(round.wrapping_mul(7) | 1); 512]);
    }

    /// Writes descriptor `number` of `ring`.
    pub fn describe(
        &self,
        ring: usize,
        number: u16,
        (at, bytes): (u64, u32),
        flags: u16,
        next: u16,
    ) {
        let mut descriptor = at.to_le_bytes().to_vec();
        descriptor.extend(bytes.to_le_bytes());
        descriptor.extend(flags.to_le_bytes());
        descriptor.extend(next.to_le_bytes());
        let offset = place(ring, 0) + u64::from(number) * 16;
        self.memory.write_all_at(&descriptor, offset).unwrap();
    }

    /// Writes as many bytes as fit into the pages of `ring`.
    pub fn write(&self, ring: usize, offset: u16, bytes: &[u8]) {
        let room = (PAGES * PAGE).saturating_sub(offset.into()) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        let at = place(ring, 0) + u64::from(offset);
        self.memory.write_all_at(bytes, at).unwrap();
    }

    /// Makes a request available: 512 bytes to be inverted.
    pub fn submit(&self, ring: usize) {
        let [from, to] = [3, 4].map(|page| (IOVA + place(ring, page), 512));
        self.describe(ring, 0, from, NEXT, 1);
        self.describe(ring, 1, to, WRITE, 0);
        self.offer(ring, 0);
    }

    /// Makes the chain from descriptor `head` on available.
    pub fn offer(&self, ring: usize, head: u16) {
        let index = self.word(ring, 1, 2);
        let slot = 4 + u64::from(index % SIZE) * 2;
        self.set_word(ring, 1, slot, head);
        self.set_word(ring, 1, 2, index.wrapping_add(1));
    }

    fn word(&self, ring: usize, page: u64, offset: u64) -> u16 {
        let mut word = [0; 2];
        let at = place(ring, page) + offset;
        self.memory.read_exact_at(&mut word, at).unwrap();
        u16::from_le_bytes(word)
    }

    pub fn set_word(&self, ring: usize, page: u64, offset: u64, word: u16) {
        let at = place(ring, page) + offset;
        self.memory.write_all_at(&word.to_le_bytes(), at).unwrap();
    }
}

/// Address of a ring's page in the guest's memory.
fn place(ring: usize, page: u64) -> u64 {
    (ring as u64 * PAGES + page) * PAGE
}
