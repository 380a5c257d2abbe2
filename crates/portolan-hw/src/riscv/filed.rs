//! Interrupts of devices that are pending in memory-resident interrupt files, for harts of guests that have no
//! interrupt file of the machine.
//!
//! RISC-V Advanced Interrupt Architecture, version 1.0, section "MSI PTE, MRIF mode"; RISC-V IOMMU Architecture
//! Specification, version 1.0, section "Changing MSI page table entry". The entry stays valid while it changes, so that
//! no message is refused. Its second word is ignored in basic translate mode and is written first. A unit may read the
//! words in any order, so it forgets the entry, behind a fence, before the first word names the file: otherwise it
//! might send the notice of the old second word.
//!
//! Not supported: units that update files without atomic operations (`AMO_MRIF`), of which no pending bit could be
//! cleared while a device sends.

use super::features::{Messages, RiscvFeature};
use super::interrupts::page;
use super::unit::RiscvIommu;
use portolan::inval::Walker;
use portolan::iommu::{FilePosting, Interrupt, InterruptError, IommuError, Posting};
use portolan::platform::UnitPlatform;
use portolan_spec::riscv::message::{
    FILE, IN_FILE, LG2_FILE, MODE, NOTICE_HIGH, NOTICE_LOW, V, WORDS,
};
use portolan_spec::riscv::page_of;

/// The words of an entry that stores interrupts in a file.
fn entry(
    config: &Messages,
    to: &FilePosting,
    output_lg2: u32,
) -> Result<[u64; WORDS], InterruptError> {
    let file = to.file.get().get();
    if file >> output_lg2 != 0 || file & ((1 << LG2_FILE) - 1) != 0 {
        return Err(InterruptError::Unposted);
    }
    let number = u64::from(to.notice.vector.get());
    let notice = page_of(page(config, &to.notice, output_lg2)?);
    Ok([
        V | MODE.at(IN_FILE) | FILE.at(file >> LG2_FILE),
        notice | NOTICE_LOW.at(number) | NOTICE_HIGH.at(number >> 10),
    ])
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Has an interrupt be pending in a file from now on.
    pub(super) fn post_to_file(
        &self,
        interrupt: &Interrupt,
        to: &FilePosting,
    ) -> Result<(), InterruptError> {
        let features = self.features();
        if !features.has.contains(RiscvFeature::INTERRUPT_FILES | RiscvFeature::ATOMIC_FILES) {
            return Err(InterruptError::Unposted);
        }
        let config = self.interrupts_config().ok_or(IommuError::Unsupported)?;
        let words = entry(config, to, features.output_lg2)?;
        self.with_used(interrupt, |(table, tag), index| {
            let (mem, at) = (&self.shared.control.mem, table.entry(index));
            table.slots().redirect(index, Posting::File(*to));
            for (word, value) in words.into_iter().enumerate().rev() {
                at.write(mem, word, value);
                at.publish(mem, Walker::Coherent);
                self.forget_entry(table, tag, index)?;
            }
            Ok(())
        })
    }
}
