//! Memory that the kernel owns, and may hand to a device.

use core::alloc::Layout;
use core::ptr::NonNull;

use portolan::addr::{PageSize, PhysRange};
use portolan::dma::{Buffer, Pieces};

use super::Machine;

/// Whole pages of the machine's heap, contiguous, zeroed at first.
///
/// *Context.* Interrupt.
pub struct Pages {
    machine: Machine,
    memory: PhysRange,
    bytes: NonNull<[u8]>,
}

// SAFETY: the value is the only way to its memory.
unsafe impl Send for Pages {}

impl Machine {
    /// Pages that hold at least `bytes` bytes; `None` if there is no memory.
    ///
    /// *Context.* Interrupt.
    pub fn pages(&self, bytes: usize) -> Option<Pages> {
        let layout = layout(bytes)?;
        let at = self.heap().take_zeroed(layout)?;
        let memory = PhysRange::from_len(at, layout.size() as u64)?;
        let first = self.heap().map().virt(memory)?;
        let bytes = NonNull::slice_from_raw_parts(first, layout.size());
        Some(Pages { machine: *self, memory, bytes })
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    let page = PageSize::SIZE_4K.bytes() as usize;
    let bytes = bytes.max(1).checked_next_multiple_of(page)?;
    Layout::from_size_align(bytes, page).ok()
}

impl Pages {
    /// Physical memory of the pages.
    pub fn memory(&self) -> PhysRange {
        self.memory
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is the value's as long as it lives, and it is initialised. While a device
        // may write, a mapping has the value.
        unsafe { self.bytes.as_ref() }
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.bytes.len()) {
            self.machine.heap().give(self.memory.start(), layout);
        }
    }
}

// SAFETY: the memory stays where it is until the value is dropped, and only its methods lead to it.
unsafe impl Buffer for Pages {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(self.memory)
    }

    fn device_may_write(&self) -> bool {
        true
    }

    fn view(&self) -> Option<NonNull<[u8]>> {
        Some(self.bytes)
    }
}
