//! A queue as a device sees it.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 2.7 (split virtqueues).

use std::ptr::NonNull;

use zerocopy::FromBytes;

/// Place where the device finds what is at an address of its own.
pub(super) type Seen<'s> = &'s dyn Fn(u64) -> NonNull<u8>;

pub(super) fn load<T: FromBytes>(seen: Seen<'_>, at: u64) -> T {
    // SAFETY: the driver's rings and buffers are there as long as the device has them.
    unsafe { seen(at).cast::<T>().as_ptr().read_volatile() }
}

pub(super) fn store<T>(seen: Seen<'_>, at: u64, value: T) {
    // SAFETY: as above.
    unsafe { seen(at).cast::<T>().as_ptr().write_volatile(value) }
}

/// A part of a chain.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub at: u64,
    pub bytes: u32,
    /// The device writes it.
    pub is_writable: bool,
}

impl Part {
    /// The addresses of its bytes.
    pub fn addresses(self) -> std::ops::Range<u64> {
        self.at..self.at + u64::from(self.bytes)
    }
}

/// Addresses of the rings of a queue, and the number of requests that the device has taken.
#[derive(Clone, Copy, Default)]
pub(super) struct Rings {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub size: u16,
    pub taken: u16,
}

impl Rings {
    /// The next chain that the driver offers: its head and its parts.
    pub fn take(&mut self, seen: Seen<'_>) -> Option<(u16, Vec<Part>)> {
        if load::<u16>(seen, self.available + 2) == self.taken {
            return None;
        }
        let place = u64::from(self.taken % self.size);
        self.taken = self.taken.wrapping_add(1);
        let head: u16 = load(seen, self.available + 4 + 2 * place);
        let (mut parts, mut at) = (Vec::new(), head);
        loop {
            let descriptor = self.descriptors + 16 * u64::from(at);
            let flags: u16 = load(seen, descriptor + 12);
            let (at_part, bytes) = (load(seen, descriptor), load(seen, descriptor + 8));
            parts.push(Part { at: at_part, bytes, is_writable: flags & 2 != 0 });
            if flags & 1 == 0 {
                return Some((head, parts));
            }
            at = load(seen, descriptor + 14);
        }
    }

    pub fn give(&self, seen: Seen<'_>, head: u16, bytes: u32) {
        let index: u16 = load(seen, self.used + 2);
        let entry = self.used + 4 + 8 * u64::from(index % self.size);
        store(seen, entry, u32::from(head));
        store(seen, entry + 4, bytes);
        store(seen, self.used + 2, index.wrapping_add(1));
    }
}
