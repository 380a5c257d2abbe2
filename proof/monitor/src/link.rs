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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_vmm::viommu::{Grant, Listener, MemoryKind};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_MSI_IRQ_INDEX,
};
use vm_memory::Permissions;

const HEADER: usize = 16;
/// Bytes of a message about a region, before the data.
const ACCESS: usize = 16;
/// Bytes of a reply at most.
const LONGEST: u32 = 8192;
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

/// Memory of the guest.
#[derive(Clone, Debug, Default)]
pub struct Ram(Arc<Mutex<Vec<Part>>>);

/// Part of the guest's memory, in a file.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its first address.
    pub at: u64,
    /// Its size.
    pub bytes: u64,
    /// The file.
    pub file: Arc<File>,
    /// Place of the first byte in the file.
    pub offset: u64,
}

impl Ram {
    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a part.
    pub fn add(&self, part: Part) {
        self.parts().push(part);
    }

    /// Takes out the parts that begin there.
    pub fn remove(&self, at: u64, bytes: u64) {
        self.parts().retain(|part| part.at.checked_sub(at).is_none_or(|inside| inside >= bytes));
    }

    /// File and place of memory that is in one part.
    fn find(&self, at: u64, bytes: u64) -> Option<(Arc<File>, u64)> {
        let parts = self.parts();
        let inside = |part: &Part| at.checked_sub(part.at).filter(|inside| *inside < part.bytes);
        let mut found = parts.iter().filter_map(|part| Some((part, inside(part)?)));
        let (part, inside) = found.next()?;
        let fits = bytes <= part.bytes - inside;
        fits.then(|| (Arc::clone(&part.file), part.offset + inside))
    }
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

    /// Reads a part of a region.
    ///
    /// # Errors
    /// If the device refuses or has gone.
    pub fn read_region(&self, region: u32, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let reply = self.call(command::REGION_READ, &access(region, offset, into.len()), &[])?;
        let data = reply.get(ACCESS..).filter(|data| data.len() == into.len());
        into.copy_from_slice(data.ok_or(io::ErrorKind::InvalidData)?);
        Ok(())
    }

    /// Writes a part of a region.
    ///
    /// # Errors
    /// As for [`Passed::read_region`].
    pub fn write_region(&self, region: u32, offset: u64, from: &[u8]) -> io::Result<()> {
        let payload = [&access(region, offset, from.len())[..], from].concat();
        self.call(command::REGION_WRITE, &payload, &[]).map(drop)
    }

    /// Reads a register of BAR 0.
    ///
    /// # Errors
    /// As for [`Passed::read_region`].
    pub fn read(&self, offset: u64) -> io::Result<u64> {
        let mut value = [0; 8];
        self.read_region(VFIO_PCI_BAR0_REGION_INDEX, offset, &mut value)?;
        Ok(u64::from_le_bytes(value))
    }

    /// Writes registers of BAR 0 that follow each other.
    ///
    /// # Errors
    /// As for [`Passed::read_region`].
    pub fn write(&self, offset: u64, values: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.write_region(VFIO_PCI_BAR0_REGION_INDEX, offset, &bytes)
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
    /// As for [`Passed::read_region`].
    pub fn interrupt_by(&self, event: BorrowedFd) -> io::Result<()> {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        self.set_irqs([flags, VFIO_PCI_MSI_IRQ_INDEX, 0, 1], &[event])
    }

    /// Sets interrupts: flags, index, the first one and their number, with a file for one at most.
    ///
    /// # Errors
    /// As for [`Passed::read_region`].
    pub fn set_irqs(
        &self,
        [flags, index, start, count]: [u32; 4],
        files: &[BorrowedFd],
    ) -> io::Result<()> {
        let payload = [20, flags, index, start, count].map(u32::to_le_bytes).concat();
        self.call(command::SET_IRQS, &payload, files).map(drop)
    }

    /// The pieces of memory of a grant.
    fn pieces(&self, grant: &Grant) -> io::Result<Vec<Piece>> {
        let Grant::Mapping(of) = grant else {
            let all = |part: &Part| Piece {
                iova: part.at,
                bytes: part.bytes,
                flags: READ | WRITE,
                file: Arc::clone(&part.file),
                offset: part.offset,
            };
            return Ok(self.ram.parts().iter().map(all).collect());
        };
        let bytes = of.iova.len_minus_one().saturating_add(1);
        let flags = match of.access {
            Permissions::No => 0,
            Permissions::Read => READ,
            Permissions::Write => WRITE,
            Permissions::ReadWrite => READ | WRITE,
        };
        let found = self.ram.find(of.target.get(), bytes).filter(|_| of.kind == MemoryKind::Ram);
        let (file, offset) = found.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(vec![Piece { iova: of.iova.start().get(), bytes, flags, file, offset }])
    }

    fn map_piece(&self, piece: &Piece) -> io::Result<()> {
        let Piece { iova, bytes, flags, file, offset } = piece;
        let head = [32, *flags].map(u32::to_le_bytes).concat();
        let payload = [&head[..], &[*offset, *iova, *bytes].map(u64::to_le_bytes).concat()];
        self.call(command::DMA_MAP, &payload.concat(), &[file.as_fd()])?;
        self.death.acknowledged();
        Ok(())
    }

    fn unmap_piece(&self, piece: &Piece) -> io::Result<()> {
        let head = [24, 0].map(u32::to_le_bytes).concat();
        let payload = [&head[..], &[piece.iova, piece.bytes].map(u64::to_le_bytes).concat()];
        self.call(command::DMA_UNMAP, &payload.concat(), &[])?;
        self.death.acknowledged();
        Ok(())
    }
}

/// Memory of one mapping of the device.
struct Piece {
    iova: u64,
    bytes: u64,
    flags: u32,
    file: Arc<File>,
    offset: u64,
}

/// Makes calls for all pieces, or for none: those before one that fails are undone.
fn all_or_none(
    pieces: &[Piece],
    go: impl Fn(&Piece) -> io::Result<()>,
    undo: impl Fn(&Piece) -> io::Result<()>,
) -> io::Result<()> {
    for (number, piece) in pieces.iter().enumerate() {
        if let Err(error) = go(piece) {
            // Of a device that has gone nothing can be undone.
            pieces.iter().take(number).rev().for_each(|piece| drop(undo(piece)));
            return Err(error);
        }
    }
    Ok(())
}

/// A part of a region.
fn access(region: u32, offset: u64, bytes: usize) -> [u8; ACCESS] {
    let rest = u64::from(region) | (bytes as u64) << 32;
    let mut payload = [0; ACCESS];
    payload[..8].copy_from_slice(&offset.to_le_bytes());
    payload[8..].copy_from_slice(&rest.to_le_bytes());
    payload
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
        let pieces = self.pieces(grant)?;
        all_or_none(&pieces, |piece| self.map_piece(piece), |piece| self.unmap_piece(piece))
    }

    fn unmap(&self, grant: &Grant) -> io::Result<()> {
        let pieces = self.pieces(grant)?;
        all_or_none(&pieces, |piece| self.unmap_piece(piece), |piece| self.map_piece(piece))
    }
}
