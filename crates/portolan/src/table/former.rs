//! Translations of a kernel that crashed, read from its tables.
//!
//! *Context.* Interrupt, if the embedder's reading is.

use core::sync::atomic::AtomicU64;

use super::Translation;
use super::format::{Entry, Format, span_lg2};
use crate::addr::{Iova, PageSize, PhysAddr};
use crate::platform::FormerMemory;

impl FormerMemory<'_> {
    /// Translation of `iova` by tables of `format` below `root`, if it is mapped. One entry for each level is read. An
    /// entry that the hardware would refuse maps nothing.
    pub fn translate<F: Format<Word = AtomicU64>>(
        &self,
        format: &F,
        root: PhysAddr,
        iova: Iova,
    ) -> Option<Translation> {
        if iova.get() >> format.input_lg2() != 0 {
            return None;
        }
        let (mut table, top) = (root, format.levels().checked_sub(1)?);
        for level in (0..=top).rev() {
            // The root may have more entries than other tables, and its index is what is left.
            let above = iova.get() >> span_lg2::<F>(level);
            let index = if level == top { above } else { above & ((1 << F::INDEX_LG2) - 1) };
            let raw = self.word(PhysAddr::new(table.get().checked_add(index * 8)?))?;
            if format.is_reserved(raw, level) {
                return None;
            }
            table = match F::classify(raw, level) {
                Entry::Table(next) => next,
                Entry::Leaf(leaf) => {
                    let size = PageSize::of_lg2(F::leaf_lg2(raw, level));
                    let pa = leaf.align_down(size).get() | iova.get() & (size.bytes() - 1);
                    let access = format.access(raw, level);
                    return Some(Translation { pa: PhysAddr::new(pa), size, access });
                }
                Entry::Empty | Entry::Broken(_) => return None,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests;
