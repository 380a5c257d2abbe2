//! Values of any type, in memory that was taken before.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// The longest value, in words.
const WORDS: usize = 16;

type Words = [MaybeUninit<u64>; WORDS];

/// Room for one value of any type of up to 16 words. A value that is in it is dropped by [`Parked::end`] alone.
///
/// *Context.* Interrupt; that of the value's drop.
pub(crate) struct Parked {
    words: Words,
    /// Drops the value, if there is one.
    end: Option<unsafe fn(NonNull<Words>)>,
}

impl Parked {
    /// No value.
    pub(crate) const fn new() -> Self {
        Self { words: [MaybeUninit::uninit(); WORDS], end: None }
    }

    /// Takes `value`, if there is none and it is not too long.
    pub(crate) fn put<T: Send + 'static>(&mut self, value: T) -> Result<(), T> {
        let fits = size_of::<T>() <= size_of::<Words>() && align_of::<T>() <= align_of::<Words>();
        if !fits || self.end.is_some() {
            return Err(value);
        }
        // SAFETY: it fits, as was checked.
        unsafe { NonNull::from(&mut self.words).cast::<T>().write(value) }
        self.end = Some(|words| {
            // SAFETY: `put` has written a value of this type there, and it is dropped once.
            unsafe { words.cast::<T>().drop_in_place() }
        });
        Ok(())
    }

    /// Drops the value, if there is one.
    pub(crate) fn end(&mut self) {
        if let Some(end) = self.end.take() {
            // SAFETY: `put` has set both, and the value is not used again.
            unsafe { end(NonNull::from(&mut self.words)) }
        }
    }
}
