//! Sorting in little code.
//!
//! *Context.* Interrupt: no memory is taken.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

/// Sorts `list`, by a heap: a kernel has a sort for each type, and this one is a tenth of `slice::sort`. Lists of a
/// machine's functions and units are sorted once.
pub(crate) fn in_order<T: Ord>(list: Vec<T>) -> Vec<T> {
    BinaryHeap::from(list).into_sorted_vec()
}
