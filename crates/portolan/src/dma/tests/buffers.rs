//! Buffers of tests.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::addr::{PageSize, PhysAddr, PhysRange};
use crate::dma::{Buffer, Doorbell, Pieces, Unowned};
use crate::platform::TrustedBase;

/// Memory without an owner.
pub(crate) fn unowned(memory: PhysRange) -> Unowned {
    // SAFETY: the addresses are names: no memory of the test is behind them.
    unsafe { Unowned::new(memory) }
}

/// Parts of a machine that has no memory.
pub(crate) fn nothing() -> TrustedBase {
    // SAFETY: the tests' devices reach nothing.
    unsafe { TrustedBase::new() }
}

/// Registers without an owner.
pub(crate) fn registers(window: PhysRange) -> Unowned {
    // SAFETY: the addresses are names: no register is behind them.
    unsafe { Unowned::registers(window) }
}

/// A doorbell.
pub(super) fn doorbell(at: u64) -> Doorbell {
    // SAFETY: the tests have no such memory, and no device.
    unsafe { Doorbell::new(PhysAddr::new(at)) }
}

/// A buffer that counts the living ones of its kind.
#[derive(Debug)]
pub(super) struct Pages {
    pieces: Vec<PhysRange>,
    alive: Arc<AtomicUsize>,
}

impl Pages {
    pub fn new(alive: &Arc<AtomicUsize>, pieces: &[(u64, u64)]) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        let piece = |&(start, bytes)| PhysRange::from_len(PhysAddr::new(start), bytes).unwrap();
        Self { pieces: pieces.iter().map(piece).collect(), alive: alive.clone() }
    }

    pub fn first(&self) -> PhysAddr {
        self.pieces[0].start()
    }
}

// SAFETY: the addresses are names: no memory of the test is behind them.
unsafe impl Buffer for Pages {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::List(&self.pieces)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A buffer of one word.
pub(super) struct Word(u64);

// SAFETY: the address is a name: no memory of the test is behind it.
unsafe impl Buffer for Word {
    fn pieces(&self) -> Pieces<'_> {
        let piece = PhysRange::page(PhysAddr::new(self.0), PageSize::SIZE_4K);
        Pieces::One(piece)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

/// Bytes that a device sees at a physical address, and the CPU in a box or behind a count.
pub(super) struct Bytes<T> {
    pub bytes: T,
    pub at: PhysRange,
}

/// Bytes that are written through shared references: plain ones of a box may not be.
type Boxed<const N: usize> = alloc::boxed::Box<[Cell<u8>; N]>;

impl<const N: usize> Bytes<Boxed<N>> {
    pub fn boxed(at: u64, bytes: [u8; N]) -> Self {
        let at = PhysRange::from_len(PhysAddr::new(at), N as u64).unwrap();
        let bytes = alloc::boxed::Box::new(bytes.map(Cell::new));
        Self { bytes, at }
    }
}

// SAFETY: nothing but the device of a test, which has no memory, is at the physical address.
unsafe impl<const N: usize> Buffer for Bytes<Boxed<N>> {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.at)
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        let first = NonNull::from(&self.bytes[..]).cast();
        Some(NonNull::slice_from_raw_parts(first, N))
    }
}

// SAFETY: as above; the memory is shared, and says so.
unsafe impl Buffer for Bytes<Arc<[u8]>> {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.at)
    }

    fn device_may_write(&self) -> bool {
        false
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        Some(NonNull::from(&self.bytes[..]))
    }
}
