//! The C library's count of its heap.

/// `struct mallinfo2` of mallinfo(3).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[repr(C)]
struct HeapCounts {
    _before: [usize; 4],
    /// Bytes in mappings of their own (`hblkhd`).
    mapped: usize,
    _between: [usize; 2],
    /// Bytes in use elsewhere (`uordblks`).
    used: usize,
    _after: [usize; 2],
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    safe fn mallinfo2() -> HeapCounts;
}

/// Bytes of heap in use by the process; `None` if nothing counts them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn heap_in_use() -> Option<usize> {
    let counts = mallinfo2();
    Some(counts.mapped + counts.used)
}

/// Bytes of heap in use by the process; `None` if nothing counts them.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn heap_in_use() -> Option<usize> {
    None
}
