//! Linux's generic page tables as the other side of [`crate::formats`].

use super::{LinuxTables, generic_pt, succeeded};
use crate::formats::{BothFormats, Length, Lengths, Mapper};
use crate::rig::Timed;
use crate::workload::Failure;

impl Mapper for LinuxTables {
    #[inline]
    fn map(&self, iova: u64, pa: u64, bytes: u64) -> Result<(), Failure> {
        succeeded(LinuxTables::map(self, iova, pa, bytes))
    }

    #[inline]
    fn unmap(&self, iova: u64, bytes: u64) -> Result<(), Failure> {
        succeeded(LinuxTables::unmap(self, iova, bytes) == bytes)
    }

    fn check(&self) -> Result<(), Failure> {
        succeeded(self.warnings() == 0)
    }
}

fn tables(format: BothFormats) -> Result<LinuxTables, Failure> {
    generic_pt()?.tables(format.theirs, format.levels).ok_or(Failure::HostMemory)
}

/// Pages or runs in a table of Linux's.
pub(crate) fn lengths(
    format: BothFormats,
    length: Length,
    timed: Timed,
) -> Result<Lengths<LinuxTables>, Failure> {
    Lengths::new(tables(format)?, length, timed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{BASE, MEMORY, PAGE};

    const ALL: [BothFormats; 4] =
        [BothFormats::VTD, BothFormats::AMD, BothFormats::X86, BothFormats::RISCV];

    /// Linux's table of a format, or a line that says why it is missing.
    macro_rules! tables_or_skip {
        ($format:expr) => {
            match tables($format) {
                Ok(tables) => tables,
                Err(Failure::NoLinux(why)) => {
                    println!("SKIP: {why}");
                    return;
                }
                Err(failure) => panic!("{failure}"),
            }
        };
    }

    #[test]
    fn linuxs_tables_lead_where_they_should_and_nowhere_after() {
        for format in ALL {
            let tables = tables_or_skip!(format);
            let (iova, pa, bytes) = (BASE.get(), MEMORY.get() + PAGE, 600 * PAGE);
            assert!(LinuxTables::map(&tables, iova, pa, bytes));
            for page in 0..600 {
                assert_eq!(tables.translate(iova + page * PAGE + 5), pa + page * PAGE + 5);
            }
            assert_eq!(LinuxTables::unmap(&tables, iova, bytes), bytes);
            assert_eq!(tables.translate(iova), 0);
            assert_eq!(tables.warnings(), 0);
        }
    }

    #[test]
    fn an_unmap_builds_two_commands() {
        for format in ALL {
            let tables = tables_or_skip!(format);
            for length in [Length::Page, Length::Run] {
                assert!(LinuxTables::map(&tables, BASE.get(), MEMORY.get() + PAGE, length.bytes()));
                let before = tables.commands();
                assert_eq!(LinuxTables::unmap(&tables, BASE.get(), length.bytes()), length.bytes());
                assert_eq!(tables.commands() - before, 2, "{format:?} {length:?}");
            }
        }
    }
}
