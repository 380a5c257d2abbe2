//! The client's half of vfio-user, for a device behind a virtual IOMMU.
//!
//! The vfio-user protocol (libvfio-user's `vfio-user.rst`), versions 0.0 and 0.1: `VERSION`, `DMA_MAP`, `DMA_UNMAP`,
//! `SET_IRQS`, `REGION_READ`, `REGION_WRITE` and `DEVICE_RESET`. Not supported: what the device asks of its client
//! (`DMA_READ`, `DMA_WRITE`), and regions that are mapped.
//!
//! The client of the crate `vfio_user` 0.1.7 does not serve here: it takes a refused map for done, and waits without
//! end after a refused unmap.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use portolan_vmm::viommu::{Grant, Listener, MemoryKind};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_MSI_IRQ_INDEX,
};
use vm_memory::Permissions;

const HEADER: usize = 16;
/// Bytes of a reply at most.
const LONGEST: u32 = 4096;
const REPLY: u32 = 1;
const ERROR: u32 = 1 << 5;
/// Flags of a mapping.
const READ: u32 = 1;
const WRITE: u32 = 1 << 1;

/// Kinds of messages.
mod command {
    pub(super) const VERSION: u16 = 1;
    pub(super) const DMA_MAP: u16 = 2;
    pub(super) const DMA_UNMAP: u16 = 3;
    pub(super) const SET_IRQS: u16 = 8;
    pub(super) const REGION_READ: u16 = 9;
    pub(super) const REGION_WRITE: u16 = 10;
    pub(super) const DEVICE_RESET: u16 = 13;
}

/// Memory of the guest, from address 0 on.
#[derive(Clone, Debug)]
pub struct Ram {
    /// File behind it.
    pub file: Arc<File>,
    /// Its size.
    pub bytes: u64,
}

/// Death that waits for a number of messages.
#[derive(Clone, Debug, Default)]
pub struct Death(Arc<AtomicU32>);

impl Death {
    /// Ends the process after `messages` messages about mappings; not at all if that is 0.
    pub fn after(&self, messages: u32) {
        self.0.store(messages, SeqCst);
    }

    fn acknowledged(&self) {
        let left = self.0.load(SeqCst);
        if left == 1 {
            std::process::exit(1);
        }
        self.0.store(left.saturating_sub(1), SeqCst);
    }
}

/// A device in another process, as the listener of its endpoint.
#[derive(Debug)]
pub struct Passed {
    ram: Ram,
    death: Death,
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    number: u16,
}

impl Passed {
    /// Connects to the server at `socket`.
    ///
    /// # Errors
    /// The system's, or that it does not speak the protocol.
    pub fn connect(socket: &Path, ram: Ram, death: Death) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let device = Self { ram, death, connection: Mutex::new(Connection { stream, number: 0 }) };
        let version = [&[0, 0, 1, 0], &b"{\"capabilities\":{\"max_msg_fds\":1}}\0"[..]].concat();
        device.call(command::VERSION, &version, &[])?;
        Ok(device)
    }

    /// Sends a message, and returns the reply's payload.
    fn call(&self, command: u16, payload: &[u8], files: &[BorrowedFd]) -> io::Result<Vec<u8>> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.number = connection.number.wrapping_add(1);
        let replied = connection.exchange(command, payload, files);
        if replied.is_err() {
            // A late reply would be taken for that of the next message. It may have been closed before.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        replied?.ok_or_else(|| io::Error::other("the device has refused"))
    }

    /// Reads a register of BAR 0.
    ///
    /// # Errors
    /// If the device refuses or has gone.
    pub fn read(&self, offset: u64) -> io::Result<u64> {
        let reply = self.call(command::REGION_READ, &access(offset, 1), &[])?;
        let value = reply.last_chunk().ok_or(io::ErrorKind::InvalidData)?;
        Ok(u64::from_le_bytes(*value))
    }

    /// Writes registers of BAR 0 that follow each other.
    ///
    /// # Errors
    /// As for [`Passed::read`].
    pub fn write(&self, offset: u64, values: &[u64]) -> io::Result<()> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let payload: Vec<u8> = access(offset, values.len()).into_iter().chain(bytes).collect();
        self.call(command::REGION_WRITE, &payload, &[]).map(drop)
    }

    /// Resets the device.
    ///
    /// # Errors
    /// As for [`Passed::read`].
    pub fn reset(&self) -> io::Result<()> {
        self.call(command::DEVICE_RESET, &[], &[]).map(drop)
    }

    /// Has the device raise its interrupt by `event`.
    ///
    /// # Errors
    /// As for [`Passed::read`].
    pub fn interrupt_by(&self, event: BorrowedFd) -> io::Result<()> {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        let words = [20, flags, VFIO_PCI_MSI_IRQ_INDEX, 0, 1];
        let payload = words.map(u32::to_le_bytes).concat();
        self.call(command::SET_IRQS, &payload, &[event]).map(drop)
    }

    /// Address in the guest, its length and the flags of a grant.
    fn memory(&self, grant: &Grant) -> io::Result<Memory> {
        let Grant::Mapping(of) = grant else {
            return Ok(Memory { iova: 0, offset: 0, bytes: self.ram.bytes, flags: READ | WRITE });
        };
        let bytes = of.iova.len_minus_one().saturating_add(1);
        let end = of.target.get().checked_add(bytes);
        if of.kind != MemoryKind::Ram || end.is_none_or(|end| end > self.ram.bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = match of.access {
            Permissions::No => 0,
            Permissions::Read => READ,
            Permissions::Write => WRITE,
            Permissions::ReadWrite => READ | WRITE,
        };
        Ok(Memory { iova: of.iova.start().get(), offset: of.target.get(), bytes, flags })
    }
}

struct Memory {
    iova: u64,
    offset: u64,
    bytes: u64,
    flags: u32,
}

/// Registers of BAR 0, of 8 bytes each.
fn access(offset: u64, registers: usize) -> [u8; 16] {
    let rest = u64::from(VFIO_PCI_BAR0_REGION_INDEX) | (8 * registers as u64) << 32;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes[8..].copy_from_slice(&rest.to_le_bytes());
    bytes
}

impl Connection {
    /// The payload of the reply; `None` if the device has refused.
    fn exchange(
        &mut self,
        command: u16,
        payload: &[u8],
        files: &[BorrowedFd],
    ) -> io::Result<Option<Vec<u8>>> {
        let size = (HEADER + payload.len()) as u32;
        let [number, kind] = [self.number, command].map(u16::to_le_bytes);
        let words = [size, 0, 0].map(u32::to_le_bytes).concat();
        let message = [&number[..], &kind, &words, payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
        if sent != message.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header)?;
        let (first, rest) = header.split_at(4);
        let word = |at: usize| {
            let bytes = rest.get(at..).and_then(|rest| rest.first_chunk());
            bytes.copied().map(u32::from_le_bytes).ok_or(io::ErrorKind::InvalidData)
        };
        let (size, flags) = (word(0)?, word(4)?);
        let length = size.checked_sub(HEADER as u32).filter(|_| size <= LONGEST);
        let (Some(length), true) = (length, first == &message[..4] && flags & 0xf == REPLY) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut reply = vec![0; length as usize];
        self.stream.read_exact(&mut reply)?;
        Ok((flags & ERROR == 0).then_some(reply))
    }
}

impl Listener for Passed {
    fn map(&self, grant: &Grant) -> io::Result<()> {
        let Memory { iova, offset, bytes, flags } = self.memory(grant)?;
        let head = [32, flags].map(u32::to_le_bytes).concat();
        let payload = [&head[..], &[offset, iova, bytes].map(u64::to_le_bytes).concat()].concat();
        self.call(command::DMA_MAP, &payload, &[self.ram.file.as_fd()])?;
        self.death.acknowledged();
        Ok(())
    }

    fn unmap(&self, grant: &Grant) -> io::Result<()> {
        let Memory { iova, bytes, .. } = self.memory(grant)?;
        let head = [24, 0].map(u32::to_le_bytes).concat();
        let payload = [&head[..], &[iova, bytes].map(u64::to_le_bytes).concat()].concat();
        self.call(command::DMA_UNMAP, &payload, &[])?;
        self.death.acknowledged();
        Ok(())
    }
}
