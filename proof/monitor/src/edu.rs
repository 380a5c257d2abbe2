//! A device that copies bytes, as a vfio-user server: QEMU's educational device without its factorials.
//!
//! QEMU, `docs/specs/edu.rst`; the vfio-user protocol by the crate `vfio_user`. Registers of our own are those from
//! [`REFUSED`] on. Not supported: the legacy interrupt, and clients that send no files for memory, of which this device
//! reaches nothing.
//!
//! Each mapping is a mapping of this process: memory that was unmapped is not there any more.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Value that tells the device.
pub const IDENTIFICATION: u64 = 0x0100_00ed;
/// Register of the interrupts that were raised; writes to [`RAISE`] add to it, those to [`ACKNOWLEDGE`] take away.
pub const RAISED: u64 = 0x24;
/// Raises interrupts.
pub const RAISE: u64 = 0x60;
/// Acknowledges interrupts.
pub const ACKNOWLEDGE: u64 = 0x64;
/// First address of a transfer.
pub const FROM: u64 = 0x80;
/// The address that it goes to.
pub const TO: u64 = 0x88;
/// Its length.
pub const COUNT: u64 = 0x90;
/// Starts it; it is over when the write is.
pub const COMMAND: u64 = 0x98;
/// Command: a transfer from memory.
pub const RUN: u64 = 1;
/// Command, beside [`RUN`]: to memory.
pub const TO_MEMORY: u64 = 1 << 1;
/// Command, beside [`RUN`]: raises an interrupt afterwards.
pub const INTERRUPT: u64 = 1 << 2;
/// Number of transfers that were refused, whole.
pub const REFUSED: u64 = 0xa0;
/// Number of mappings.
pub const MAPPINGS: u64 = 0xa8;
/// Number of the message about mappings, from the write on, that is refused; none if 0.
pub const REFUSE: u64 = 0xb0;
/// First address of the device's own memory.
pub const BUFFER: u64 = 0x4_0000;
/// Its size.
pub const BUFFER_BYTES: usize = 4096;

/// Bytes of BAR 0.
const BAR_BYTES: u64 = 1 << 20;
/// Bit of [`RAISED`] for the end of a transfer.
const TRANSFERRED: u64 = 0x100;
const MSI: usize = 0x40;

/// Memory of the guest, mapped.
struct Window {
    last: u64,
    flags: DmaMapFlags,
    /// None without a file.
    region: Option<MmapRegion>,
}

/// The device.
struct Edu {
    windows: BTreeMap<u64, Window>,
    config: [u8; 256],
    buffer: [u8; BUFFER_BYTES],
    /// [`FROM`], [`TO`] and [`COUNT`].
    transfer: [u64; 3],
    raised: u64,
    transfers: u64,
    refused: u64,
    refuse: u64,
    interrupt: Option<File>,
}

/// Serves one client after the other at `socket`.
///
/// # Errors
/// If the socket cannot be.
pub fn serve(socket: &Path) -> Result<(), vfio_user::Error> {
    let server = Server::new(socket, true, interrupts(), regions())?;
    say("listening");
    loop {
        let mut edu = Edu::new();
        // One that dies is as good as one that goes.
        let _ = server.run(&mut edu);
        let (mappings, transfers, refused) = (edu.windows.len(), edu.transfers, edu.refused);
        say(&format!("gone with {mappings} mappings, {transfers} transfers, {refused} refused"));
    }
}

pub(crate) fn say(line: &str) {
    let mut out = io::stdout();
    // A test that has gone does not read it.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

pub(crate) fn regions() -> Vec<ServerRegion> {
    let region = |index| {
        let size = match index {
            VFIO_PCI_BAR0_REGION_INDEX => BAR_BYTES,
            VFIO_PCI_CONFIG_REGION_INDEX => 256,
            _ => 0,
        };
        let access = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        let flags = if size == 0 { 0 } else { access };
        let argsz = size_of::<vfio_region_info>() as u32;
        let region_info = vfio_region_info { argsz, index, flags, size, ..Default::default() };
        ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
    };
    (0..VFIO_PCI_NUM_REGIONS).map(region).collect()
}

pub(crate) fn interrupts() -> Vec<IrqInfo> {
    let count = |index| u32::from(index == VFIO_PCI_MSI_IRQ_INDEX);
    let interrupt = |index| IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD, count: count(index) };
    (0..VFIO_PCI_NUM_IRQS).map(interrupt).collect()
}

/// Mapped memory, and the bytes of the buffer that go there or come from there.
type Piece<'d> = (VolatileSlice<'d>, &'d mut [u8]);

impl Edu {
    fn new() -> Self {
        let mut config = [0; 256];
        // Vendor and device; a list of capabilities; "other" class.
        config[..4].copy_from_slice(&[0x34, 0x12, 0xe8, 0x11]);
        (config[6], config[0xb], config[0x34]) = (0x10, 0xff, MSI as u8);
        // One message, with an address of 64 bits.
        (config[MSI], config[MSI + 2]) = (5, 0x80);
        Self {
            windows: BTreeMap::new(),
            config,
            buffer: [0; BUFFER_BYTES],
            transfer: [0; 3],
            raised: 0,
            transfers: 0,
            refused: 0,
            refuse: 0,
            interrupt: None,
        }
    }

    fn raise(&mut self, bits: u64) -> io::Result<()> {
        self.raised |= bits;
        match &mut self.interrupt {
            Some(event) => event.write_all(&1_u64.to_ne_bytes()),
            None => Ok(()),
        }
    }

    /// Writes a register.
    fn write(&mut self, offset: u64, value: u64) -> io::Result<()> {
        match offset {
            RAISE => self.raise(value)?,
            ACKNOWLEDGE => self.raised &= !value,
            FROM => self.transfer[0] = value,
            TO => self.transfer[1] = value,
            COUNT => self.transfer[2] = value,
            COMMAND if value & RUN != 0 => {
                self.transfers += 1;
                self.refused += u64::from(!self.transfer(value));
                if value & INTERRUPT != 0 {
                    self.raise(TRANSFERRED)?;
                }
            }
            REFUSE => self.refuse = value,
            _ => {}
        }
        Ok(())
    }

    /// Carries out the transfer, or nothing of it; tells which.
    fn transfer(&mut self, command: u64) -> bool {
        let to_memory = command & TO_MEMORY != 0;
        let Some(pieces) = self.pieces(to_memory) else {
            return false;
        };
        pieces.into_iter().all(|(slice, piece)| match to_memory {
            true => slice.write_slice(piece, 0).is_ok(),
            false => slice.read_slice(piece, 0).is_ok(),
        })
    }

    /// Pieces of the transfer; `None` if a byte of its memory is not mapped so.
    fn pieces(&mut self, to_memory: bool) -> Option<Vec<Piece<'_>>> {
        let [from, to, count] = self.transfer;
        let (mut at, inside) = if to_memory { (to, from) } else { (from, to) };
        let first = usize::try_from(inside.checked_sub(BUFFER)?).ok()?;
        let end = first.checked_add(usize::try_from(count).ok()?)?;
        let mut rest = self.buffer.get_mut(first..end)?;
        let wanted = if to_memory { DmaMapFlags::WRITE } else { DmaMapFlags::READ };
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let (start, window) = self.windows.range(..=at).next_back()?;
            let room = window.last.checked_sub(at)?.saturating_add(1);
            let region = window.region.as_ref().filter(|_| window.flags.contains(wanted))?;
            let length = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (piece, after) = rest.split_at_mut(length);
            let slice = region.get_slice(usize::try_from(at - start).ok()?, length).ok()?;
            pieces.push((slice, piece));
            (rest, at) = (after, at.checked_add(length as u64)?);
        }
        Some(pieces)
    }

    /// Counts a message about mappings.
    fn message(&mut self) -> io::Result<()> {
        let is_refused = self.refuse == 1;
        self.refuse = self.refuse.saturating_sub(1);
        if is_refused { Err(io::Error::other("it was asked to")) } else { Ok(()) }
    }
}

impl ServerBackend for Edu {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            let from = self.config.get(usize::try_from(offset).unwrap_or(usize::MAX)..);
            data.iter_mut().zip(from.unwrap_or_default()).for_each(|(to, from)| *to = *from);
            return Ok(());
        }
        let value = match offset {
            0 => IDENTIFICATION,
            RAISED => self.raised,
            FROM => self.transfer[0],
            TO => self.transfer[1],
            COUNT => self.transfer[2],
            REFUSED => self.refused,
            MAPPINGS => self.windows.len() as u64,
            // Transfers are over at once.
            _ => 0,
        };
        data.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            // What the client does not keep itself: the command, and the message.
            let place = self.config.get_mut(usize::try_from(offset).unwrap_or(usize::MAX)..);
            if offset == 4 || offset >= MSI as u64 + 2 {
                let place = place.unwrap_or_default();
                place.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
            }
            return Ok(());
        }
        for (bytes, offset) in data.chunks(8).zip((offset..).step_by(8)) {
            let bytes = bytes.iter().enumerate();
            let value = bytes.map(|(at, byte)| u64::from(*byte) << (8 * at)).sum();
            self.write(offset, value)?;
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        self.message()?;
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let last = size.checked_sub(1).and_then(|size| address.checked_add(size));
        let last = last.ok_or_else(invalid)?;
        let below = self.windows.range(..=last).next_back();
        if below.is_some_and(|(_, window)| window.last >= address) {
            return Err(invalid());
        }
        let bytes = usize::try_from(size).map_err(|_| invalid())?;
        let map = |file| MmapRegion::from_file(FileOffset::new(file, offset), bytes);
        let region = file.map(map).transpose().map_err(io::Error::other)?;
        self.windows.insert(address, Window { last, flags, region });
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.message()?;
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.windows.clear();
            return Ok(());
        }
        let end = size.checked_sub(1).and_then(|size| address.checked_add(size));
        let last = end.ok_or(io::ErrorKind::InvalidInput)?;
        // None is cut.
        let cut = |at: u64| {
            let below = self.windows.range(..at).next_back();
            below.is_some_and(|(_, window)| window.last >= at)
        };
        if cut(address) || last.checked_add(1).is_some_and(cut) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.windows.retain(|start, _| !(address..=last).contains(start));
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        (self.raised, self.refuse, self.transfer) = (0, 0, [0; 3]);
        self.buffer.fill(0);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        _start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        if index == VFIO_PCI_MSI_IRQ_INDEX {
            let has_files = flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 && count == 1;
            self.interrupt = files.into_iter().next().filter(|_| has_files);
        }
        Ok(())
    }
}
