//! Copies of bytes that a device, and where they are shared others too, reach at the same time.
//!
//! Of an exclusive buffer they are volatile, since the device alone changes it, without the compiler's knowledge.
//! Of a shared one they are relaxed atomics, so that another CPU's store is no data race: aligned words of 64 bits,
//! and single bytes beside them.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::buffer::{Buffer, Sharing};

/// Unit of a copy.
trait Unit: Copy {
    /// # Safety
    /// `at` is aligned, and valid for reads and writes.
    unsafe fn load(at: NonNull<Self>) -> Self;

    /// # Safety
    /// As of `load`.
    unsafe fn store(at: NonNull<Self>, value: Self);
}

macro_rules! units {
    ($($unit:ty as $atomic:ty),*) => {$(
        impl Unit for $unit {
            #[inline]
            unsafe fn load(at: NonNull<Self>) -> Self {
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(at.as_ptr()) }.load(Ordering::Relaxed)
            }

            #[inline]
            unsafe fn store(at: NonNull<Self>, value: Self) {
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(at.as_ptr()) }.store(value, Ordering::Relaxed);
            }
        }
    )*};
}

units!(u8 as AtomicU8, u64 as AtomicU64);

/// # Safety
/// `at` is aligned and valid for reads; where it is shared, for writes as well.
#[inline]
unsafe fn get<U: Unit>(at: NonNull<U>, sharing: Sharing) -> U {
    // SAFETY: the caller's promise.
    unsafe {
        match sharing {
            Sharing::Exclusive => at.read_volatile(),
            Sharing::Shared => U::load(at),
        }
    }
}

/// # Safety
/// `at` is aligned and valid for reads and writes.
#[inline]
unsafe fn put<U: Unit>(at: NonNull<U>, value: U, sharing: Sharing) {
    // SAFETY: the caller's promise.
    unsafe {
        match sharing {
            Sharing::Exclusive => at.write_volatile(value),
            Sharing::Shared => U::store(at, value),
        }
    }
}

/// Copies bytes of `buffer` from `at`; `false`, and nothing is copied, if it has no view or if that
/// does not hold them.
pub(crate) fn read<B: Buffer>(buffer: &B, at: usize, to: &mut [u8]) -> bool {
    let view = buffer.view();
    let Some(from) = view.and_then(|view| inside(view, at, to.len())) else {
        return false;
    };
    let sharing = buffer.sharing();
    let mut done = 0;
    while let Some(left) = to.get_mut(done..).filter(|left| !left.is_empty()) {
        // SAFETY: `done` is below the length that `inside` has checked, and the view is valid, as
        // `Buffer` and `Sharing` say, as long as the buffer lives.
        unsafe {
            let from = from.add(done);
            match left.first_chunk_mut() {
                Some(word) if from.cast::<u64>().is_aligned() => {
                    *word = get(from.cast::<u64>(), sharing).to_ne_bytes();
                    done += word.len();
                }
                _ => {
                    left[0] = get(from, sharing);
                    done += 1;
                }
            }
        }
    }
    true
}

/// Copies `from` to the bytes of `buffer` from `at`; `false`, and nothing is copied, if it has no
/// view or if that does not hold them. The caller has the value to itself, and it may be written.
pub(crate) fn write<B: Buffer>(buffer: &mut B, at: usize, from: &[u8]) -> bool {
    if !buffer.device_may_write() {
        return false;
    }
    let view = buffer.view();
    let Some(to) = view.and_then(|view| inside(view, at, from.len())) else {
        return false;
    };
    let sharing = buffer.sharing();
    let mut done = 0;
    while let Some(left) = from.get(done..).filter(|left| !left.is_empty()) {
        // SAFETY: as in `read`; the view of a buffer that may be written is valid for writes, and
        // no other part of the program writes to one that is exclusive.
        unsafe {
            let to = to.add(done);
            match left.first_chunk() {
                Some(word) if to.cast::<u64>().is_aligned() => {
                    put(to.cast::<u64>(), u64::from_ne_bytes(*word), sharing);
                    done += word.len();
                }
                _ => {
                    put(to, left[0], sharing);
                    done += 1;
                }
            }
        }
    }
    true
}

/// Copies shared bytes: words where both places are aligned to them.
///
/// # Safety
/// Both places are valid for reads and writes of `bytes` bytes, and do not overlap.
pub(super) unsafe fn copy_shared(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        // SAFETY: the caller's promise; `done` is below `bytes`, and a word's bytes are left.
        unsafe {
            let (from, to) = (from.add(done), to.add(done));
            let (word_from, word_to) = (from.cast::<u64>(), to.cast::<u64>());
            let whole = bytes - done >= size_of::<u64>();
            if whole && word_from.is_aligned() && word_to.is_aligned() {
                u64::store(word_to, u64::load(word_from));
                done += size_of::<u64>();
            } else {
                u8::store(to, u8::load(from));
                done += 1;
            }
        }
    }
}

/// Beginning of `bytes` bytes from `at`, if `view` holds them.
fn inside(view: NonNull<[u8]>, at: usize, bytes: usize) -> Option<NonNull<u8>> {
    let after = at.checked_add(bytes)?;
    // SAFETY: `at` is inside the view, or its end.
    (after <= view.len()).then(|| unsafe { view.cast::<u8>().add(at) })
}
