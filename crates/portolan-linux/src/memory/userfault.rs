//! Events in memory of this process that its threads cause, reported by the system: `userfaultfd`.
//!
//! Sources: the manual pages userfaultfd(2) and ioctl_userfaultfd(2). Pages that are missing, and the events
//! of their removal (`MADV_DONTNEED`, `MADV_REMOVE`), of unmapping and of moving (`mremap`).
//!
//! Not supported: write protection, minor faults, forks, huge pages of hugetlbfs.

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use thiserror::Error;

use super::HostMemory;

/// The group of its ioctls, and the version of its interface.
const GROUP: u8 = 0xaa;
const API: u64 = 0xaa;
/// `UFFD_USER_MODE_ONLY`: faults in the kernel, such as those of system calls, fail instead of waiting.
const USER_MODE_ONLY: u32 = 1;
/// Features: moving, removal, missing pages of files in memory, unmapping.
const WANTED: u64 = 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;
/// Bytes of a message.
const MESSAGE: usize = 32;
/// Kinds of messages.
const PAGE_FAULT: u8 = 0x12;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;

#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register` of Linux.
#[repr(C)]
struct UffdioRegister {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ZeroPage {
    start: u64,
    bytes: u64,
    mode: u64,
    zeroed: i64,
}

/// A structure that an ioctl reads and writes.
trait Argument {
    const OPCODE: Opcode;
}

impl Argument for Handshake {
    const OPCODE: Opcode = opcode::read_write::<Self>(GROUP, 0x3f);
}

impl Argument for UffdioRegister {
    const OPCODE: Opcode = opcode::read_write::<Self>(GROUP, 0);
}

impl Argument for ZeroPage {
    const OPCODE: Opcode = opcode::read_write::<Self>(GROUP, 4);
}

/// Reason why the system reports no events.
#[derive(Debug, Error)]
pub enum UserFaultError {
    /// It has no userfaultfd, or none for this process.
    #[error("the system gives this process no userfaultfd: {0} (see vm.unprivileged_userfaultfd)")]
    Refused(io::Error),
    /// It lacks a feature.
    #[error(
        "the system's userfaultfd tells of no removals, of no missing pages, or not of this memory: {0}"
    )]
    Unsupported(io::Error),
}

/// Event that the system reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A thread waits for the page there, which is missing.
    Missing {
        /// First byte of the page.
        page: PhysAddr,
    },
    /// A thread gives pages back. It has waited until this was read; they go at any time now, and read as
    /// zero then.
    Removed {
        /// The pages.
        range: PhysRange,
    },
    /// There is no such memory any more: unmapped, replaced, or moved elsewhere.
    Gone {
        /// The pages.
        range: PhysRange,
    },
}

/// Maker of a page that was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeBy {
    /// The caller, just now: it was missing until then.
    Caller,
    /// Another thread, before.
    Others,
}

/// Events of one memory, in order. As long as this lives, threads that touch pages which are not there wait
/// until [`UserFaults::zero`] makes them; and those that give pages back until that is read.
#[derive(Debug)]
pub struct UserFaults {
    file: OwnedFd,
    memory: HostMemory,
}

impl UserFaults {
    /// Has the system tell of all of `memory` from now on.
    ///
    /// # Errors
    /// See [`UserFaultError`].
    pub fn new(memory: HostMemory) -> Result<Self, UserFaultError> {
        let file = open().map_err(|error| UserFaultError::Refused(error.into()))?;
        let unsupported = |error: Errno| UserFaultError::Unsupported(error.into());
        let mut handshake = Handshake { api: API, features: WANTED, ioctls: 0 };
        update(&file, &mut handshake).map_err(unsupported)?;
        let mut register = UffdioRegister {
            start: memory.mapping.start.addr().get() as u64,
            bytes: memory.bytes(),
            mode: MISSING,
            ioctls: 0,
        };
        update(&file, &mut register).map_err(unsupported)?;
        Ok(Self { file, memory })
    }

    /// The memory.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// The oldest message, waited for no longer than `milliseconds`. Messages that are not about the
    /// memory are skipped.
    ///
    /// # Errors
    /// The error of the system.
    pub fn next(&self, milliseconds: u32) -> io::Result<Option<Told>> {
        let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
        let nanoseconds = i64::from(milliseconds) * 1_000_000;
        let limit =
            Timespec { tv_sec: nanoseconds / 1_000_000_000, tv_nsec: nanoseconds % 1_000_000_000 };
        if poll(&mut ready, Some(&limit))? == 0 {
            return Ok(None);
        }
        let mut message = [0; MESSAGE];
        match rustix::io::read(&self.file, &mut message) {
            Ok(MESSAGE) => Ok(self.decode(&message)),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            // Another thread has read it.
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn decode(&self, message: &[u8; MESSAGE]) -> Option<Told> {
        let word = |at: usize| {
            let bytes = message.get(at..)?.first_chunk();
            bytes.map(|bytes| u64::from_ne_bytes(*bytes))
        };
        let [first, second, third] = [word(8)?, word(16)?, word(24)?];
        match *message.first()? {
            PAGE_FAULT => {
                let at = self.inside(second, 1)?.start();
                let page = at.align_down(PageSize::SIZE_4K);
                Some(Told::Missing { page })
            }
            REMOVE => {
                let range = self.inside(first, second.checked_sub(first)?)?;
                Some(Told::Removed { range })
            }
            UNMAP => {
                let range = self.inside(first, second.checked_sub(first)?)?;
                Some(Told::Gone { range })
            }
            REMAP => {
                let range = self.inside(first, third)?;
                Some(Told::Gone { range })
            }
            _ => None,
        }
    }

    /// The part of the memory among `bytes` bytes of this process from `start` on.
    fn inside(&self, start: u64, bytes: u64) -> Option<PhysRange> {
        let host = PhysAddr::new(self.memory.mapping.start.addr().get() as u64);
        let all = PhysRange::from_len(host, self.memory.bytes())?;
        let part = PhysRange::from_len(PhysAddr::new(start), bytes)?.intersection(all)?;
        let offset = part.start().get() - host.get();
        let first = self.memory.range().start().checked_add(offset)?;
        PhysRange::from_len(first, part.len_minus_one() + 1)
    }

    /// Makes the page at `page` zero if it is missing, and lets threads that wait for it go on.
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` while a thread waits to give pages back: read on, and repeat it.
    pub fn zero(&self, page: PhysAddr) -> io::Result<MadeBy> {
        let bytes = PageSize::SIZE_4K.bytes();
        let start = self.memory.host_address(page, bytes);
        let mut zero = ZeroPage {
            start: start.map_err(|_| io::ErrorKind::InvalidInput)?,
            bytes,
            mode: 0,
            zeroed: 0,
        };
        match update(&self.file, &mut zero) {
            Ok(()) => Ok(MadeBy::Caller),
            Err(Errno::EXIST) => Ok(MadeBy::Others),
            Err(error) => Err(error.into()),
        }
    }
}

/// A userfaultfd for faults of any mode if this process may have that, for its own otherwise.
#[allow(unsafe_code)]
fn open() -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let own = flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: no memory is registered with it. Memory that is registered later is a `HostMemory`'s, whose
    // bytes change at any time for all code that has it.
    unsafe { userfaultfd(flags).or_else(|_| userfaultfd(own)) }
}

fn update<T: Argument>(file: &OwnedFd, value: &mut T) -> Result<(), Errno> {
    // SAFETY: `Update` has the layouts; the system writes to the structure, and to pages of the `HostMemory`
    // that is registered, which are missing.
    #[allow(unsafe_code)]
    unsafe {
        ioctl(file, Update(value))
    }
}

/// An ioctl that reads a structure and writes to it.
struct Update<'a, T>(&'a mut T);

// SAFETY: the codes are those of the manual pages for structures of these layouts.
#[allow(unsafe_code)]
unsafe impl<T: Argument> Ioctl for Update<'_, T> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        T::OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}
