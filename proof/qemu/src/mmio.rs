//! Device registers through qtest, and the host's clock.

use std::time::Instant;

use portolan::platform::{Clock, Mmio, Nanos};

use crate::qtest::Qtest;

/// A window of registers at a guest-physical address.
///
/// Accesses reach QEMU before they return, so they are in program order with each other and with
/// accesses to guest RAM. Reads outside the window, or of a QEMU that is gone, give all ones, as
/// those of a removed device do; [`Qtest::failed`] tells why.
#[derive(Clone, Debug)]
pub struct Registers {
    qtest: Qtest,
    base: u64,
    bytes: u64,
}

impl Registers {
    /// `bytes` bytes of registers at `base`.
    pub fn new(qtest: Qtest, base: u64, bytes: u64) -> Self {
        Self { qtest, base, bytes }
    }

    /// Guest-physical address of the first register.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Size of the window in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The connection they are reached through.
    pub fn qtest(&self) -> &Qtest {
        &self.qtest
    }

    /// Part of the window, `bytes` bytes from `offset` on, cut at its end.
    #[must_use]
    pub fn part(&self, offset: u64, bytes: u64) -> Self {
        let offset = offset.min(self.bytes);
        Self {
            qtest: self.qtest.clone(),
            base: self.base.saturating_add(offset),
            bytes: bytes.min(self.bytes - offset),
        }
    }

    /// Address of `width` bytes at `offset`, if they lie in the window.
    fn at(&self, offset: usize, width: u64) -> Option<u64> {
        let offset = u64::try_from(offset).ok()?;
        let end = offset.checked_add(width)?;
        if end > self.bytes {
            return None;
        }
        self.base.checked_add(offset)
    }

    /// Reads one byte.
    pub fn read8(&self, offset: usize) -> u8 {
        let read = self.at(offset, 1).map(|at| self.qtest.read8(at));
        read.and_then(Result::ok).unwrap_or(u8::MAX)
    }

    /// Reads two bytes.
    pub fn read16(&self, offset: usize) -> u16 {
        let read = self.at(offset, 2).map(|at| self.qtest.read16(at));
        read.and_then(Result::ok).unwrap_or(u16::MAX)
    }

    /// Writes one byte.
    pub fn write8(&self, offset: usize, value: u8) {
        // A failure stays in the connection.
        let _ = self.at(offset, 1).map(|at| self.qtest.write8(at, value));
    }

    /// Writes two bytes.
    pub fn write16(&self, offset: usize, value: u16) {
        let _ = self.at(offset, 2).map(|at| self.qtest.write16(at, value));
    }
}

impl Mmio for Registers {
    fn read32(&self, offset: usize) -> u32 {
        let read = self.at(offset, 4).map(|at| self.qtest.read32(at));
        read.and_then(Result::ok).unwrap_or(u32::MAX)
    }

    fn write32(&self, offset: usize, value: u32) {
        let _ = self.at(offset, 4).map(|at| self.qtest.write32(at, value));
    }

    fn read64(&self, offset: usize) -> u64 {
        let read = self.at(offset, 8).map(|at| self.qtest.read64(at));
        read.and_then(Result::ok).unwrap_or(u64::MAX)
    }

    fn write64(&self, offset: usize, value: u64) {
        let _ = self.at(offset, 8).map(|at| self.qtest.write64(at, value));
    }
}

/// The host's monotonic clock, from when it was made.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    start: Instant,
}

impl HostClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        let start = Instant::now();
        Self { start }
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self::new()
    }
}

portolan::one_cpu!(HostClock);

impl Clock for HostClock {
    fn now(&self) -> Nanos {
        Nanos::new(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Lets QEMU run, which may share the core.
    fn relax(&self) {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn outside_and_gone_read_as_ones() {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(b"OK 0x5\nOK\n").unwrap();
        let qtest = Qtest::new(ours, Duration::from_secs(1)).unwrap();
        let window = Registers::new(qtest, 0x1000, 0x100).part(0x80, 0x1000);
        assert_eq!(window.bytes(), 0x80);
        assert_eq!(window.read32(0x10), 5);
        window.write64(0x78, 1);
        window.write64(0x79, 2);
        window.write32(usize::MAX, 2);
        assert_eq!(window.read64(0x79), u64::MAX);
        let mut sent = [0; 64];
        let count = peer.read(&mut sent).unwrap();
        assert_eq!(&sent[..count], b"readl 0x1090\nwriteq 0x10f8 0x1\n");
        drop(peer);
        assert_eq!(window.read32(0), u32::MAX);
        assert!(window.qtest().failed().is_some());
    }
}
