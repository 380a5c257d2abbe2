//! Linux's generic page tables as the other side of [`crate::marks`].

use super::{LinuxTables, generic_pt, succeeded};
use crate::marks::{Marked, MarkedFormat, Marks};
use crate::workload::Failure;

impl Marked for LinuxTables {
    fn map(&self, iova: u64, pa: u64, bytes: u64) -> Result<(), Failure> {
        succeeded(LinuxTables::map(self, iova, pa, bytes))
    }

    fn mark(&self, iova: u64) -> Result<(), Failure> {
        succeeded(LinuxTables::mark(self, iova))
    }

    #[inline]
    fn read_and_clear(&self, iova: u64, bitmap: &mut [u64]) -> Result<(), Failure> {
        succeeded(LinuxTables::read_and_clear(self, iova, bitmap))
    }
}

/// Marks of a table of Linux's.
pub(crate) fn marks(format: MarkedFormat) -> Result<Marks<LinuxTables>, Failure> {
    let tables = generic_pt()?.tables(format.theirs(), format.levels());
    Marks::new(tables.ok_or(Failure::HostMemory)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn linuxs_tables_give_each_mark_once() {
        for format in [MarkedFormat::Amd, MarkedFormat::Vtd] {
            let mut marks = match marks(format) {
                Ok(marks) => marks,
                Err(Failure::NoLinux(why)) => {
                    println!("SKIP: {why}");
                    return;
                }
                Err(failure) => panic!("{failure}"),
            };
            for _ in 0..2 {
                marks.prepare().unwrap();
                marks.run().unwrap();
                assert!(marks.bitmap().iter().all(|&word| word == 0x1111_1111_1111_1111));
            }
            marks.bitmap().fill(0);
            assert!(matches!(marks.run(), Err(Failure::Marks)), "{format:?}");
        }
    }
}
