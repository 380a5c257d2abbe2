//! A split virtqueue in guest RAM. Virtual I/O Device 1.2, section 2.7.
//!
//! Without indirect descriptors, event indices and notifications from the device: it is polled.

use portolan::addr::Iova;
use thiserror::Error;

use crate::dma::{Direction, DmaArea};
use crate::ram::{GuestRam, OutsideRam};

/// Most entries whose three parts fit one page of 4096 bytes.
pub const MAX_ENTRIES: u16 = 128;
/// Bytes of the memory of a queue.
pub const QUEUE_BYTES: u64 = 4096;

const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
/// "Do not interrupt."
const NO_INTERRUPT: u16 = 1;

/// A piece of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address for the device.
    pub iova: Iova,
    /// Its size in bytes.
    pub bytes: u32,
    /// Direction of the transfer, as the device sees it.
    pub direction: Direction,
}

/// A request that the device has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Number that [`Virtqueue::push`] returned for it.
    pub head: u16,
    /// Bytes that the device reported as written.
    pub written: u32,
}

/// Error of a request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The queue is not in guest RAM.
    #[error(transparent)]
    Ram(#[from] OutsideRam),
    /// Not enough free descriptors, or an empty request.
    #[error("no {wanted} free descriptors")]
    Full {
        /// Number of descriptors that the request needs.
        wanted: usize,
    },
    /// The device returned a descriptor that it was not given.
    #[error("the device returned descriptor {head}, which it does not have")]
    Stray {
        /// Number that the device returned.
        head: u32,
    },
}

/// A queue: descriptors, then the available ring, then the used ring, in one page.
#[derive(Debug)]
pub struct Virtqueue {
    ram: GuestRam,
    area: DmaArea,
    entries: u16,
    free: Vec<u16>,
    /// Chain of each head that the device has.
    given: Vec<Option<Vec<u16>>>,
    available: u16,
    used: u16,
}

impl Virtqueue {
    /// A queue of `entries` entries (cut to a power of two of at most [`MAX_ENTRIES`]) in the
    /// page at `area`, which is cleared.
    ///
    /// # Errors
    /// [`QueueError::Ram`].
    pub fn new(ram: &GuestRam, area: DmaArea, entries: u16) -> Result<Self, QueueError> {
        let entries = 1u16 << entries.clamp(1, MAX_ENTRIES).ilog2();
        ram.fill(area.phys, QUEUE_BYTES, 0)?;
        let queue = Self {
            ram: ram.clone(),
            area,
            entries,
            free: (0..entries).rev().collect(),
            given: vec![None; entries.into()],
            available: 0,
            used: 0,
        };
        ram.write16(area.phys_at(queue.available_at())?, NO_INTERRUPT)?;
        Ok(queue)
    }

    /// Number of entries.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Offset of the available ring in bytes.
    fn available_at(&self) -> u64 {
        u64::from(self.entries) * 16
    }

    /// Offset of the used ring in bytes.
    fn used_at(&self) -> u64 {
        (self.available_at() + 6 + 2 * u64::from(self.entries)).next_multiple_of(4)
    }

    /// Addresses of descriptors, available ring and used ring, for the device.
    pub fn addresses(&self) -> [u64; 3] {
        let base = self.area.iova.get();
        [0, self.available_at(), self.used_at()].map(|offset| base.saturating_add(offset))
    }

    /// Offers a request to the device, which has to be notified afterwards. Returns its head.
    ///
    /// # Errors
    /// [`QueueError::Full`].
    pub fn push(&mut self, segments: &[Segment]) -> Result<u16, QueueError> {
        let wanted = segments.len();
        let full = QueueError::Full { wanted };
        let rest = self.free.len().checked_sub(wanted).ok_or(full)?;
        let chain: Vec<u16> = self.free.get(rest..).unwrap_or_default().to_vec();
        let head = *chain.first().ok_or(full)?;
        for (at, segment) in segments.iter().enumerate() {
            let descriptor = u64::from(chain.get(at).copied().unwrap_or(head)) * 16;
            let next = chain.get(at + 1).copied();
            let written = match segment.direction {
                Direction::ToDevice => 0,
                Direction::FromDevice => DEVICE_WRITES,
            };
            let flags = written | if next.is_some() { NEXT } else { 0 };
            let second = u64::from(segment.bytes)
                | u64::from(flags) << 32
                | u64::from(next.unwrap_or(0)) << 48;
            self.ram.write64(self.area.phys_at(descriptor)?, segment.iova.get())?;
            self.ram.write64(self.area.phys_at(descriptor + 8)?, second)?;
        }
        let slot = u64::from(self.available % self.entries);
        self.ram.write16(self.area.phys_at(self.available_at() + 4 + 2 * slot)?, head)?;
        self.available = self.available.wrapping_add(1);
        self.ram.write16(self.area.phys_at(self.available_at() + 2)?, self.available)?;
        self.free.truncate(rest);
        if let Some(given) = self.given.get_mut(usize::from(head)) {
            *given = Some(chain);
        }
        Ok(head)
    }

    /// Takes the next finished request, if there is one; its descriptors are free again.
    ///
    /// # Errors
    /// [`QueueError::Stray`]; the entry is passed over.
    pub fn pop(&mut self) -> Result<Option<Used>, QueueError> {
        let index = self.ram.read16(self.area.phys_at(self.used_at() + 2)?)?;
        if index == self.used {
            return Ok(None);
        }
        let slot = u64::from(self.used % self.entries);
        let entry = self.used_at() + 4 + 8 * slot;
        let head = self.ram.read32(self.area.phys_at(entry)?)?;
        let written = self.ram.read32(self.area.phys_at(entry + 4)?)?;
        self.used = self.used.wrapping_add(1);
        let given = usize::try_from(head).ok().and_then(|at| self.given.get_mut(at));
        let chain = given.and_then(Option::take).ok_or(QueueError::Stray { head })?;
        self.free.extend(chain.iter().rev());
        Ok(Some(Used { head: head as u16, written }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::tests::ram;

    fn segment(at: u64, direction: Direction) -> Segment {
        Segment { iova: Iova::new(at), bytes: 16, direction }
    }

    #[test]
    fn chains_are_laid_out_and_come_back() {
        let ram = ram(0x2000);
        let iova = Iova::new(0x8000_0000);
        let mut queue = Virtqueue::new(&ram, DmaArea::new(ram.base(), iova), 4).unwrap();
        assert_eq!(queue.addresses(), [0x8000_0000, 0x8000_0040, 0x8000_0050]);
        let at = |offset| ram.base().checked_add(offset).unwrap();
        let pieces = [segment(0x1000, Direction::ToDevice), segment(0x2000, Direction::FromDevice)];
        let head = queue.push(&pieces).unwrap();
        let first = at(16 * u64::from(head));
        let second = ram.read64(first.checked_add(8).unwrap()).unwrap();
        assert_eq!(ram.read64(first), Ok(0x1000));
        assert_eq!(second & 0xffff_ffff_ffff, 1 << 32 | 16);
        let next = at(16 * (second >> 48));
        assert_eq!(ram.read64(next), Ok(0x2000));
        assert_eq!(ram.read64(next.checked_add(8).unwrap()), Ok(2 << 32 | 16));
        assert_eq!(ram.read16(at(0x42)), Ok(1));
        let three = [pieces[0]; 3];
        assert_eq!(queue.push(&three), Err(QueueError::Full { wanted: 3 }));
        assert_eq!(queue.push(&[]), Err(QueueError::Full { wanted: 0 }));

        assert_eq!(queue.pop(), Ok(None));
        ram.write32(at(0x54), head.into()).unwrap();
        ram.write32(at(0x58), 9).unwrap();
        ram.write16(at(0x52), 1).unwrap();
        assert_eq!(queue.pop(), Ok(Some(Used { head, written: 9 })));
        // The same again, and nonsense.
        ram.write32(at(0x5c), head.into()).unwrap();
        ram.write32(at(0x64), u32::MAX).unwrap();
        ram.write16(at(0x52), 3).unwrap();
        assert_eq!(queue.pop(), Err(QueueError::Stray { head: head.into() }));
        assert_eq!(queue.pop(), Err(QueueError::Stray { head: u32::MAX }));
        assert!(queue.push(&three).is_ok());
    }

    #[test]
    fn parts_fit_the_page() {
        let ram = ram(0x1000);
        let area = DmaArea::identity(ram.base());
        for entries in [0, 1, 100, 128, u16::MAX] {
            let queue = Virtqueue::new(&ram, area, entries).unwrap();
            assert!(queue.used_at() + 6 + 8 * u64::from(queue.entries()) <= QUEUE_BYTES);
        }
    }
}
