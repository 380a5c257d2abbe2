//! All mutants of the RISC-V IOMMU's driver.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, section "Command-Queue", and the extensions for
//! ranges and for entries above the leaves.

use super::Mutant;
use super::list::{commands, mutants, write};
use crate::backend::BackendName;

mutants! {
    /// Each part that is left out, and the scenarios that have to notice.
    RISCV_MUTANTS:
    ModelRiscv => {
        "IOFENCE.C", commands(riscv::without_wait)
            => "unmapped-access-faults" "stale-until-sync" "identifier-reuse-forgets";
        "IOTINVAL.VMA of pages", commands(riscv::without_pages)
            => "unmapped-access-faults" "stale-until-sync" "migration-under-load-ends-equal"
               "random-operations";
        "IOTINVAL.VMA of a tag", commands(riscv::without_context) => "identifier-reuse-forgets";
        "IODIR.INVAL_DDT", commands(riscv::without_devices)
            => "attach-block-attach" "pass-through-to-paging";
        "IODIR.INVAL_PDT", commands(riscv::without_processes) => "pasid-moves";
        "the right PASID", commands(riscv::wrong_process) => "pasid-moves";
        "the right device", commands(riscv::wrong_device)
            => "attach-block-attach" "pass-through-to-paging";
        "the right PSCID", commands(riscv::wrong_first) => "stale-until-sync";
        "the right page", commands(riscv::wrong_page) => "stale-until-sync";
        "the first of several IOTINVAL.VMA", commands(riscv::without_first)
            => "one-sync-pays-for-all";
        "the last of several IOTINVAL.VMA", commands(riscv::without_last)
            => "one-sync-pays-for-all";
        "walk caches, where no address names them", commands(riscv::a_page_of_the_context)
            => "freed-tables-are-forgotten";
        "ATS.INVAL", commands(riscv::without_devices_tlb) => "moved-devices-forget";
        "the IOFENCE.C between IOTINVAL and ATS.INVAL", commands(riscv::devices_first)
            => "moved-devices-forget";
        "ATS.INVAL of what was unmapped", commands(riscv::without_remote_pages)
            => "tables-shared-by-requests";
        "the right device in ATS.INVAL", commands(riscv::wrong_remote) => "moved-devices-forget";
        "all but a page in ATS.INVAL", commands(riscv::short_remote) => "moved-devices-forget";
        "ATS.PRGR", commands(riscv::without_responses) => "requests-are-brought-in";
        "the right group in ATS.PRGR", commands(riscv::wrong_group) => "requests-are-brought-in";
        "the right code in ATS.PRGR", commands(riscv::wrong_code) => "requests-are-refused";
        "the queue's address after sleep", write(riscv::queue_once) => "sleep-keeps-mappings";
        "the directory after sleep", write(riscv::directory_once) => "sleep-keeps-mappings";
        "what a former kernel's unit has cached", commands(riscv::without_everything)
            => "next-kernel-hits-nothing-old";
    }
    ModelRiscvExtended => {
        "the second half of each range", commands(riscv::short_ranges) => "ranges-are-whole";
        "blocks: ranges of a page less", commands(riscv::ranges_below_blocks)
            => "blocks-among-pages" "ranges-are-whole";
        "walk caches, where tables were freed", commands(riscv::leaves_only)
            => "freed-tables-are-forgotten";
    }
    ModelRiscvStage2 => {
        "IOTINVAL.GVMA of pages", commands(riscv::without_guest_pages)
            => "unmapped-access-faults" "stale-until-sync";
        "IOTINVAL.GVMA of a tag", commands(riscv::without_guest) => "identifier-reuse-forgets";
        "the right GSCID", commands(riscv::wrong_second) => "stale-until-sync";
    }
    ModelRiscvInterrupts => {
        "IOTINVAL.GVMA of an interrupt's page", commands(riscv::without_guest_pages)
            => "remapped-interrupts-arrive" "freed-interrupts-are-refused"
               "posted-interrupts-are-pending";
        "the right GSCID of an interrupt's page", commands(riscv::wrong_second)
            => "freed-interrupts-are-refused";
    }
}

/// Edits.
mod riscv {
    use portolan_spec::riscv::command::opcode::{DEVICE, DIRECTORY, TRANSLATIONS};
    use portolan_spec::riscv::command::{FUNCTION, OPCODE, device, directory, translations};

    use portolan_spec::riscv::reg;

    use super::super::edits::{drop_all, drop_first, once};
    use crate::backend::seam::{Arrives, Words, is_riscv_fence};

    /// IOTINVAL.VMA of a guest that there is not.
    const NOTHING: Words = [1 | 1 << 33 | 0xffff << 44, 0];
    /// ATS.INVAL of all that the first device keeps.
    const EVERYTHING: Words = [4 | 0x20 << 40, 0x7fff_ffff_ffff_f800];
    /// IOTINVAL: the address counts, the first stage's tag, the second stage's.
    const AV: u64 = translations::AV.mask();
    const PSCV: u64 = translations::PSCV.mask();
    const GV: u64 = translations::GV.mask();
    /// Entries above the leaves.
    const NL: u64 = translations::NL.mask();
    /// Word 1: a range.
    const RANGE: u64 = translations::S.mask();

    fn is(words: &Words, opcode: u64, function: u64) -> bool {
        OPCODE.of(words[0]) == opcode && FUNCTION.of(words[0]) == function
    }

    /// IOTINVAL.VMA of one tag.
    fn first(words: &Words) -> bool {
        is(words, TRANSLATIONS, translations::VMA) && words[0] & PSCV != 0
    }

    /// IOTINVAL.GVMA of one tag.
    fn second(words: &Words) -> bool {
        is(words, TRANSLATIONS, translations::GVMA) && words[0] & GV != 0
    }

    fn named(words: &Words) -> bool {
        words[0] & AV != 0
    }

    fn drop_where(commands: &mut [Words], dropped: impl Fn(&Words) -> bool) {
        drop_all(commands, dropped, NOTHING);
    }

    fn addressed(commands: &mut [Words]) -> impl DoubleEndedIterator<Item = &mut Words> {
        let some = |words: &&mut Words| first(words) && named(words);
        commands.iter_mut().filter(some)
    }

    /// Leaves out fences that store.
    pub fn without_wait(commands: &mut [Words]) {
        drop_where(commands, |words| is_riscv_fence(*words));
    }

    /// Leaves out invalidations of pages of a first stage.
    pub fn without_pages(commands: &mut [Words]) {
        drop_where(commands, |words| first(words) && named(words));
    }

    /// Leaves out invalidations of a first stage as a whole.
    pub fn without_context(commands: &mut [Words]) {
        drop_where(commands, |words| first(words) && !named(words));
    }

    /// Leaves out invalidations of pages of a second stage.
    pub fn without_guest_pages(commands: &mut [Words]) {
        drop_where(commands, |words| second(words) && named(words));
    }

    /// Leaves out invalidations of a second stage as a whole.
    pub fn without_guest(commands: &mut [Words]) {
        drop_where(commands, |words| second(words) && !named(words));
    }

    /// Leaves out invalidations of device contexts.
    pub fn without_devices(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, DIRECTORY, directory::DEVICES));
    }

    /// Leaves out invalidations of process contexts.
    pub fn without_processes(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, DIRECTORY, directory::PROCESS));
    }

    /// Names the context of the next address space.
    pub fn wrong_process(commands: &mut [Words]) {
        let them = commands.iter_mut().filter(|words| is(words, DIRECTORY, directory::PROCESS));
        them.for_each(|words| words[0] ^= 1 << 19);
    }

    /// Names the context of the next device.
    pub fn wrong_device(commands: &mut [Words]) {
        let named =
            |words: &&mut Words| is(words, DIRECTORY, directory::DEVICES) && words[0] & GV != 0;
        let them = commands.iter_mut().filter(named);
        them.for_each(|words| words[0] ^= 1 << 40);
    }

    /// Names another first stage.
    pub fn wrong_first(commands: &mut [Words]) {
        addressed(commands).for_each(|words| words[0] ^= 1 << 25);
    }

    /// Names another second stage.
    pub fn wrong_second(commands: &mut [Words]) {
        let some = |words: &&mut Words| second(words) && named(words);
        let them = commands.iter_mut().filter(some);
        them.for_each(|words| words[0] ^= 1 << 57);
    }

    /// Writes the address itself, where its page's number belongs.
    pub fn wrong_page(commands: &mut [Words]) {
        addressed(commands).for_each(|words| words[1] <<= 2);
    }

    /// Leaves out the first of several invalidations of pages.
    pub fn without_first(commands: &mut [Words]) {
        drop_first(addressed(commands), NOTHING);
    }

    /// Leaves out the last of several invalidations of pages.
    pub fn without_last(commands: &mut [Words]) {
        drop_first(addressed(commands).rev(), NOTHING);
    }

    /// ATS.INVAL.
    fn remote(words: &Words) -> bool {
        is(words, DEVICE, device::INVALIDATE)
    }

    /// ATS.PRGR.
    fn response(words: &Words) -> bool {
        is(words, DEVICE, device::RESPOND)
    }

    fn bend(commands: &mut [Words], which: impl Fn(&Words) -> bool, bend: impl Fn(&mut Words)) {
        let them = commands.iter_mut().filter(|words| which(words));
        them.for_each(bend);
    }

    /// Devices are not told.
    pub fn without_devices_tlb(commands: &mut [Words]) {
        drop_where(commands, remote);
    }

    /// Devices are told only when their stream moves.
    pub fn without_remote_pages(commands: &mut [Words]) {
        drop_where(commands, |words| remote(words) && *words != EVERYTHING);
    }

    /// Drops the waits when the first device leaves a domain: the device is told before the unit has forgotten.
    /// Telling it at the same time would not show an error: the context is changed twice, by the same commands, and
    /// the second time nothing stale is left that the device could request again.
    pub fn devices_first(commands: &mut [Words]) {
        const CONTEXT: Words = [3 | 1 << 33 | 0x20 << 40, 0];
        const FENCE: Words = [2, 0];
        if commands.contains(&CONTEXT) && commands.contains(&FENCE) {
            drop_where(commands, |words| is_riscv_fence(*words));
        }
    }

    /// Tells another device.
    pub fn wrong_remote(commands: &mut [Words]) {
        bend(commands, remote, |words| words[0] ^= 1 << 40);
    }

    /// A page where all is meant.
    pub fn short_remote(commands: &mut [Words]) {
        bend(commands, remote, |words| words[1] &= !(1 << 11));
    }

    /// Leaves out responses to page requests.
    pub fn without_responses(commands: &mut [Words]) {
        drop_where(commands, response);
    }

    /// Responds to the next group.
    pub fn wrong_group(commands: &mut [Words]) {
        bend(commands, response, |words| words[1] ^= 1 << 32);
    }

    /// Success for refused requests, and the other way around.
    pub fn wrong_code(commands: &mut [Words]) {
        bend(commands, response, |words| words[1] ^= 1 << 44);
    }

    /// Half of a range: one of the ones that tell its size is a zero.
    fn halve(words: &mut Words) {
        match (words[1] >> 10).trailing_ones() {
            0 => words[1] &= !RANGE,
            ones => words[1] &= !(1 << (9 + ones)),
        }
    }

    /// Half of the pages of each range.
    pub fn short_ranges(commands: &mut [Words]) {
        let several = addressed(commands).filter(|words| words[1] & RANGE != 0);
        several.for_each(halve);
    }

    /// Ranges that are smaller than a block.
    pub fn ranges_below_blocks(commands: &mut [Words]) {
        for words in addressed(commands).filter(|words| words[1] & RANGE != 0) {
            while (words[1] >> 10).trailing_ones() >= 8 {
                halve(words);
            }
        }
    }

    /// Leaves out invalidations of everything.
    pub fn without_everything(commands: &mut [Words]) {
        drop_where(commands, |words| match OPCODE.of(words[0]) {
            TRANSLATIONS => words[0] & (PSCV | GV) == 0,
            DIRECTORY => words[0] & directory::DV.mask() == 0,
            _ => false,
        });
    }

    /// The address of the queue is written once.
    pub fn queue_once(offset: usize, _: u32) -> Arrives {
        once(offset == reg::COMMAND_BASE)
    }

    /// The address of the directory is written once.
    pub fn directory_once(offset: usize, _: u32) -> Arrives {
        once(offset == reg::DIRECTORY)
    }

    /// Leaves only, even where tables were freed.
    pub fn leaves_only(commands: &mut [Words]) {
        addressed(commands).for_each(|words| words[0] &= !NL);
    }

    /// A page where the whole tag is meant.
    pub fn a_page_of_the_context(commands: &mut [Words]) {
        let whole = |words: &&mut Words| first(words) && !named(words);
        let them = commands.iter_mut().filter(whole);
        them.for_each(|words| words[0] |= AV);
    }
}
