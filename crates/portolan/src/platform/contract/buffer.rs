//! Buffers: memory that its owner hands over to a device.

use core::ptr::NonNull;

use crate::addr::{PhysAddr, PhysRange};

/// The pieces of memory that make up a buffer.
///
/// ```
/// use portolan::addr::{PhysAddr, PhysRange};
/// use portolan::dma::Pieces;
///
/// let page = |at| PhysRange::from_len(PhysAddr::new(at), 4096).expect("below 2^64");
/// let scattered = [page(0x8000), page(0x3000)];
/// assert_eq!(Pieces::List(&scattered).into_iter().count(), 2);
/// assert_eq!(Pieces::One(page(0x8000)).as_slice(), [page(0x8000)]);
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces<'b> {
    /// The buffer is contiguous.
    One(PhysRange),
    /// A scatter list; an empty one is not mapped.
    List(&'b [PhysRange]),
}

impl Pieces<'_> {
    /// All of them, as one slice.
    #[inline]
    pub const fn as_slice(&self) -> &[PhysRange] {
        match self {
            Self::One(piece) => core::slice::from_ref(piece),
            Self::List(list) => list,
        }
    }
}

/// Kind of memory behind the addresses of a buffer. Devices and CPUs reach each kind in another way.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory that CPUs may have in their caches: kept coherent for devices that do not snoop.
    #[default]
    Cached,
    /// Memory that no CPU caches.
    Uncached,
    /// Registers: those of a device, a BAR, an interrupt controller. They are never copied or kept
    /// coherent, and mapped as device memory where the table format has that.
    Registers,
}

/// Visibility of memory to the host of a confidential guest, and so to the devices that it emulates
/// or passes through.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HostVisibility {
    /// The guest alone (*private* for TDX and Arm's CCA, *encrypted* for SEV): all memory that was not
    /// shared. Where there is no such guest, devices reach it all the same.
    #[default]
    Private,
    /// The host as well (*shared*, *decrypted*): the guest has converted the pages.
    Shared,
}

/// Promise for the memory of a buffer as long as a device may reach it.
///
/// Either way it stays allocated, at its place, and all of its bytes are initialised.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Sharing {
    /// A driver's own memory. Nothing but the device and the library's copies reaches it: no reference, no
    /// other CPU, no process and no guest. When the buffer is back, it is its owner's again, which may
    /// take references to its bytes. Only where [`Buffer::device_may_write`] says no, others may read it
    /// meanwhile, by references as well.
    #[default]
    Exclusive,
    /// Memory that others reach at any time: a page cache, memory of an application, of other processes or of a
    /// guest, a pool. No Rust reference to its bytes is alive but to atomics, and a view of it is valid for reads
    /// and writes. Its bytes are copied and never lent; the library's copies are relaxed atomics, of aligned words
    /// of 64 bits and of single bytes beside them. A thread of this program whose access may race with these uses
    /// atomics of the same size; code outside of the program does as it likes. Where a device and others write at
    /// once, or a part of it is copied back, either's bytes may be lost.
    Shared,
}

/// The pieces of a buffer, one after the other.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Debug)]
pub struct PiecesIter<'b> {
    one: Option<PhysRange>,
    list: core::slice::Iter<'b, PhysRange>,
}

impl<'b> IntoIterator for Pieces<'b> {
    type Item = PhysRange;
    type IntoIter = PiecesIter<'b>;

    #[inline]
    fn into_iter(self) -> PiecesIter<'b> {
        let (one, list) = match self {
            Self::One(piece) => (Some(piece), &[][..]),
            Self::List(list) => (None, list),
        };
        let list = list.iter();
        PiecesIter { one, list }
    }
}

impl Iterator for PiecesIter<'_> {
    type Item = PhysRange;

    #[inline]
    fn next(&mut self) -> Option<PhysRange> {
        self.one.take().or_else(|| self.list.next().copied())
    }
}

/// Memory that a device is to reach.
///
/// ```
/// use core::ptr::NonNull;
/// use portolan::addr::{PhysAddr, PhysRange};
/// use portolan::dma::{Buffer, Pieces};
///
/// /// A kernel's page: it belongs to the value's owner, and nothing else leads to it.
/// struct Page {
///     phys: PhysRange,
///     virt: NonNull<[u8]>,
/// }
/// // SAFETY: the page belongs to the value, which has no method that reads or writes it.
/// unsafe impl Send for Page {}
/// // SAFETY: the page stays where it is until the value is dropped; `virt` is mapped to `phys`.
/// unsafe impl Buffer for Page {
///     fn pieces(&self) -> Pieces<'_> {
///         Pieces::One(self.phys)
///     }
///     fn device_may_write(&self) -> bool {
///         true
///     }
///     fn view(&self) -> Option<NonNull<[u8]>> {
///         Some(self.virt)
///     }
/// }
/// ```
///
/// *Context.* Interrupt, all methods.
///
/// # Safety
/// As long as the value lives:
///
/// * [`pieces`](Self::pieces) returns the same list at every call, wherever the value is moved, and
///   the memory that it names stays allocated, at its place.
/// * It is as the [`Sharing`] says that [`sharing`](Self::sharing) returns, always the same. No method of a
///   copy or of a part of an exclusive value leads to it; a shared value lends none of its bytes.
/// * The memory that [`view`](Self::view) returns is that of the pieces, byte by byte, and
///   valid for reads; for writes as well where the device may write, or it is shared. A pointer made of `&self`
///   and plain bytes is not: keep a raw one, or bytes in cells.
///
/// When the value is dropped, the memory is its owner's again. The library drops or returns a value
/// only once no device can reach its memory.
pub unsafe trait Buffer: Send + 'static {
    /// The pieces of memory that make up the buffer, to the byte, in the order in which the device
    /// goes through them.
    fn pieces(&self) -> Pieces<'_>;

    /// Tells if the memory may be written: not if it is shared, as that behind an `Arc` is, or
    /// constant. A buffer that may not be written can be mapped [`ToDevice`](crate::dma::ToDevice)
    /// alone.
    fn device_may_write(&self) -> bool;

    /// Returns if others reach its memory while a device does.
    fn sharing(&self) -> Sharing {
        Sharing::Exclusive
    }

    /// Kind of its memory.
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Cached
    }

    /// Visibility of its memory to the host of a confidential guest.
    fn host_visibility(&self) -> HostVisibility {
        HostVisibility::Private
    }

    /// All bytes of the buffer as the CPU sees them, in the order of the pieces, where they are
    /// contiguous for the CPU. [`Mapping::read`](crate::dma::Mapping::read) and
    /// [`Mapping::write`](crate::dma::Mapping::write) need it.
    fn view(&self) -> Option<NonNull<[u8]>> {
        None
    }
}

/// Buffer that can be cut in two.
///
/// *Context.* Interrupt, as far as the cut needs no heap memory; task otherwise.
///
/// # Safety
/// The two that [`split_at`](Self::split_at) returns have the memory that the one had, cut there: its pieces in the
/// same order, a piece with bytes on both sides in two, and its view likewise. What else they promise is as it was.
pub unsafe trait SplitBuffer: Buffer + Sized {
    /// The first `at` bytes, and the others; there are both.
    fn split_at(self, at: u64) -> (Self, Self);
}

/// The bytes of a buffer, all pieces together.
pub(crate) fn bytes_of<B: Buffer>(buffer: &B) -> u64 {
    buffer
        .pieces()
        .into_iter()
        .fold(0u64, |sum, piece| sum.saturating_add(piece.len_minus_one()).saturating_add(1))
}

/// The first piece of `buffer` that a device with such a reach does not get to in place.
#[inline]
pub(crate) fn hidden_from<B: Buffer>(reach: HostVisibility, buffer: &B) -> Option<PhysRange> {
    let seen = reach == HostVisibility::Private
        || buffer.host_visibility() == HostVisibility::Shared
        || buffer.memory_kind() == MemoryKind::Registers;
    let pieces = buffer.pieces();
    (!seen).then(|| pieces.into_iter().next()).flatten()
}

/// Memory or registers that another owner keeps: for drivers that cannot hand over memory of their own.
///
/// ```no_run
/// # use portolan::addr::{PhysAddr, PhysRange};
/// # use portolan::dma::{Device, FromDevice, Unowned};
/// # use portolan::platform::Platform;
/// /// A camera's frame buffer, which the boot loader has kept out of the kernel's memory.
/// fn film<P: Platform>(camera: &Device<P>, carved_out: PhysRange) {
///     // SAFETY: the kernel's allocator never had that memory, and only this driver maps it.
///     let frames = unsafe { Unowned::new(carved_out) };
///     let film = camera.map(frames, FromDevice).expect("addresses and table pages");
///     // ... the camera writes at film.iova() ...
///     let frames = film.unmap().expect("the unit answered");
///     assert_eq!(frames.memory(), carved_out);
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Unowned {
    memory: PhysRange,
    /// It is as long as the memory. A map moves the value some ten times, so it is small.
    view: Option<View>,
    contents: Contents,
}

/// The memory that the value names, and its visibility to the host. In a word as the rest of the value, which is then
/// moved word by word: bytes that are stored as bytes and loaded with their neighbours make a CPU wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Contents {
    Exclusive,
    ExclusiveVisible,
    Shared,
    SharedVisible,
    Registers,
}

/// First byte of the CPU's view of shared memory.
#[derive(Debug, PartialEq, Eq)]
struct View(NonNull<u8>);

// SAFETY: `Unowned::shared` has the promise that all CPUs may reach it.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl Unowned {
    /// Names `memory`, which is [exclusive](Sharing).
    ///
    /// *Context.* Interrupt.
    ///
    /// # Safety
    /// From now on until devices cannot reach the memory any more, it is as
    /// [`Sharing::Exclusive`] says. That is so
    ///
    /// * once the value came back, or was dropped without having been mapped;
    /// * for [`DmaSpace::map_range`](crate::dma::DmaSpace::map_range) and
    ///   [`Reservation::link`](crate::dma::Reservation::link): once unmapping has returned `Ok`, under
    ///   [`Policy::Lazy`](crate::dma::Policy::Lazy) once the space has been flushed after that;
    /// * for a [`Pool`](crate::bounce::Pool): once [`Pool::into_memory`](crate::bounce::Pool::into_memory)
    ///   gave it back, the devices and mappings for which it stayed mapped
    ///   ([`Device::with_premapped_pool`](crate::dma::Device::with_premapped_pool)) are gone, and spaces in which it
    ///   was mapped have been flushed after that;
    /// * after any failure: once the space has recovered.
    pub const unsafe fn new(memory: PhysRange) -> Self {
        Self { memory, view: None, contents: Contents::Exclusive }
    }

    /// Names `memory` that others reach as well: [shared](Sharing). `view` is where this program has it, for
    /// [`Mapping::read`](crate::dma::Mapping::read) and [`Mapping::write`](crate::dma::Mapping::write).
    ///
    /// ```no_run
    /// # use core::ptr::NonNull;
    /// # use portolan::addr::PhysRange;
    /// # use portolan::dma::{Device, FromDevice, Unowned};
    /// # use portolan::platform::Platform;
    /// /// Reads a block into a page of the page cache, which processes have mapped.
    /// fn fill<P: Platform>(disk: &Device<P>, page: PhysRange, at: NonNull<[u8]>) {
    ///     // SAFETY: the page is pinned, and the kernel gets at its bytes by atomics alone.
    ///     let page = unsafe { Unowned::shared(page, Some(at)) };
    ///     let filled = disk.map(page, FromDevice).expect("addresses and table pages");
    ///     // ... the disk writes at filled.iova() ...
    ///     assert!(filled.unmap().is_ok());
    /// }
    /// ```
    ///
    /// *Context.* Interrupt.
    ///
    /// # Safety
    /// As long as [`Unowned::new`] says, the memory is as [`Sharing::Shared`] says. The view is
    /// `memory`, byte by byte, and valid for reads and writes on every CPU.
    pub const unsafe fn shared(memory: PhysRange, view: Option<NonNull<[u8]>>) -> Self {
        Self {
            memory,
            view: match view {
                Some(view) => Some(View(view.cast())),
                None => None,
            },
            contents: Contents::Shared,
        }
    }

    /// Names the registers at `window`: another device's, for transfers from device to device. The
    /// caller has to know if the machine brings such transfers there.
    ///
    /// ```no_run
    /// # use portolan::addr::{PhysAddr, PhysRange};
    /// # use portolan::dma::{Device, Direction, Unowned};
    /// # use portolan::platform::Platform;
    /// fn peer<P: Platform>(disk: &Device<P>, bar: PhysRange) {
    ///     // SAFETY: the card whose memory is behind the BAR expects the disk to write there.
    ///     let bar = unsafe { Unowned::registers(bar) };
    ///     let there = disk.map(bar, Direction::FromDevice).expect("addresses and table pages");
    ///     // ... there.iova() goes into the disk's command ...
    ///     assert!(there.unmap().is_ok());
    /// }
    /// ```
    ///
    /// *Context.* Interrupt.
    ///
    /// # Safety
    /// The window holds no memory of the program. As long as [`Unowned::new`] says, the devices for
    /// which it is mapped may reach it.
    pub const unsafe fn registers(window: PhysRange) -> Self {
        Self { memory: window, view: None, contents: Contents::Registers }
    }

    /// The same, of memory that a confidential guest has shared with its host.
    ///
    /// *Context.* Interrupt.
    #[must_use]
    pub const fn host_visible(mut self) -> Self {
        self.contents = match self.contents {
            Contents::Exclusive | Contents::ExclusiveVisible => Contents::ExclusiveVisible,
            Contents::Shared | Contents::SharedVisible => Contents::SharedVisible,
            Contents::Registers => Contents::Registers,
        };
        self
    }

    /// The memory.
    ///
    /// *Context.* Interrupt.
    pub const fn memory(&self) -> PhysRange {
        self.memory
    }
}

/// A register that takes messages: a device's write there is an interrupt.
///
/// ```
/// # use portolan::addr::PhysAddr;
/// # use portolan::dma::Doorbell;
/// // SAFETY: the GICv2m's frame of 4 KiB at that address is a register page by itself.
/// let doorbell = unsafe { Doorbell::new(PhysAddr::new(0x802_0040)) };
/// assert_eq!(doorbell.at(), PhysAddr::new(0x802_0040));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell(PhysAddr);

impl Doorbell {
    /// Names the register at `at`: on Arm GITS_TRANSLATER of an interrupt translation service, the
    /// frame of a GICv2m, or the register that the interrupt controller's driver names.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Safety
    /// The page around it, of the size that the spaces have in which it is mapped, holds no memory,
    /// and no register that its devices must not write.
    pub const unsafe fn new(at: PhysAddr) -> Self {
        Self(at)
    }

    /// The register.
    ///
    /// *Context.* Interrupt.
    pub const fn at(self) -> PhysAddr {
        self.0
    }
}

// SAFETY: the maker of the value promised that the memory stays, and is reached as `sharing` says.
unsafe impl Buffer for Unowned {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.memory)
    }

    fn memory_kind(&self) -> MemoryKind {
        match self.contents {
            Contents::Registers => MemoryKind::Registers,
            _ => MemoryKind::Cached,
        }
    }

    fn sharing(&self) -> Sharing {
        match self.contents {
            Contents::Exclusive | Contents::ExclusiveVisible => Sharing::Exclusive,
            Contents::Shared | Contents::SharedVisible | Contents::Registers => Sharing::Shared,
        }
    }

    fn host_visibility(&self) -> HostVisibility {
        match self.contents {
            Contents::Exclusive | Contents::Shared => HostVisibility::Private,
            _ => HostVisibility::Shared,
        }
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        let bytes = usize::try_from(self.memory.len_minus_one().checked_add(1)?).ok()?;
        let View(first) = self.view.as_ref()?;
        Some(NonNull::slice_from_raw_parts(*first, bytes))
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

// SAFETY: the memory is one piece, and its view is as long.
unsafe impl SplitBuffer for Unowned {
    fn split_at(self, at: u64) -> (Self, Self) {
        let Self { memory, view, contents } = self;
        let start = memory.start().get().saturating_add(at);
        // There are bytes on both sides.
        let other = PhysRange::new(PhysAddr::new(start), memory.last()).unwrap_or(memory);
        let one = PhysRange::from_len(memory.start(), at).unwrap_or(memory);
        // SAFETY: `at` is inside the view, which is as long as the memory.
        let behind = view.as_ref().map(|view| View(unsafe { view.0.add(at as usize) }));
        let half = |memory, view| Self { memory, view, contents };
        (half(one, view), half(other, behind))
    }
}
