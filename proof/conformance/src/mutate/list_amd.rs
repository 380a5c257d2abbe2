//! All mutants of AMD-Vi's driver.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.4.

use super::Mutant;
use super::list::{TORN, commands, mutants, write};
use crate::backend::BackendName;

mutants! {
    /// Each part that is left out, and the scenarios that have to notice.
    AMD_MUTANTS:
    ModelAmd => {
        "COMPLETION_WAIT", commands(amd::without_wait)
            => "unmapped-access-faults" "stale-until-sync" "attach-block-attach";
        "INVALIDATE_IOMMU_PAGES of pages", commands(amd::without_pages)
            => "unmapped-access-faults" "stale-until-sync" "migration-under-load-ends-equal"
               "random-operations";
        "INVALIDATE_IOMMU_PAGES of domains", commands(amd::without_domain)
            => "identifier-reuse-forgets";
        "INVALIDATE_DEVTAB_ENTRY", commands(amd::without_entries)
            => "attach-block-attach" "pass-through-to-paging";
        "INVALIDATE_INTERRUPT_TABLE", commands(amd::without_interrupts)
            => "remapped-interrupts-arrive" "freed-interrupts-are-refused";
        "the right interrupt table", commands(amd::wrong_interrupts)
            => "remapped-interrupts-arrive" "freed-interrupts-are-refused";
        "INVALIDATE_IOTLB_PAGES", commands(amd::without_device_tlbs)
            => "moved-devices-forget" "requests-are-brought-in";
        "COMPLETE_PPR_REQUEST", commands(amd::without_responses)
            => "requests-are-brought-in" "requests-are-refused";
        "the first of several INVALIDATE_IOMMU_PAGES", commands(amd::without_first)
            => "one-sync-pays-for-all";
        "the last of several INVALIDATE_IOMMU_PAGES", commands(amd::without_last)
            => "one-sync-pays-for-all";
        "the second half of each range", commands(amd::short_ranges) => "ranges-are-whole";
        "blocks: ranges of a page less", commands(amd::ranges_below_blocks)
            => "block-split-keeps-the-rest" "debts-of-one-block";
        "the right domain", commands(amd::wrong_domain) => "stale-until-sync";
        "walk caches, where tables were freed", commands(amd::leaves_only)
            => "freed-tables-are-forgotten";
        "the queue's address after sleep", write(amd::queue_once) => "sleep-keeps-mappings";
        "the device table after sleep", write(amd::devices_once) => "sleep-keeps-mappings";
        "what a former kernel's unit has cached", commands(amd::without_everything)
            => "next-kernel-hits-nothing-old";
        "translation, while the queue changes hands", write(amd::without_translation)
            => "handed-over-at-work";
    }
    ModelAmdX2Apic => {
        "both words of an interrupt's entry at once", TORN => "posted-interrupts-are-pending";
        "INVALIDATE_INTERRUPT_TABLE", commands(amd::without_interrupts)
            => "far-cpus-are-reached-or-refused" "freed-interrupts-are-refused"
               "posted-interrupts-are-pending";
        "the device table after sleep", write(amd::devices_once)
            => "sleep-keeps-mappings" "sleep-keeps-interrupts";
    }
    ModelAmdGuest => {
        "INVALIDATE_IOMMU_PAGES of guest tables", commands(amd::without_guests)
            => "unmapped-access-faults" "stale-until-sync" "domain-to-domain" "pasid-moves";
        "GN, so that host tables are meant", commands(amd::hosts)
            => "unmapped-access-faults" "stale-until-sync";
        "the right PASID", commands(amd::wrong_pasid)
            => "unmapped-access-faults" "stale-until-sync";
        "INVALIDATE_IOTLB_PAGES", commands(amd::without_device_tlbs)
            => "moved-devices-forget" "requests-are-brought-in" "tables-shared-by-requests";
        "the right PASID in INVALIDATE_IOTLB_PAGES", commands(amd::wrong_device_pasid)
            => "tables-shared-by-requests";
        "GN in INVALIDATE_IOTLB_PAGES", commands(amd::untagged_devices)
            => "tables-shared-by-requests";
        "COMPLETE_PPR_REQUEST", commands(amd::without_responses)
            => "requests-are-brought-in" "tables-shared-by-requests";
    }
    ModelAmdGuestCachesAbsence => {
        "INVALIDATE_IOMMU_PAGES of guest tables", commands(amd::without_guests)
            => "pass-through-to-paging" "pasid-moves";
    }
    ModelAmdNested => {
        "INVALIDATE_IOMMU_PAGES of guests' domains", commands(amd::without_domain)
            => "unmapped-access-faults" "stale-until-sync";
        "GCR3 tables behind host tables (GCR3TRPMode)", write(amd::without_roots_over_host)
            => "mapped-access-succeeds";
        "INVALIDATE_IOTLB_PAGES", commands(amd::without_device_tlbs)
            => "moved-devices-forget" "requests-are-brought-in";
    }
    ModelAmdCachesAbsence => {
        "INVALIDATE_IOMMU_PAGES of pages", commands(amd::without_pages)
            => "pass-through-to-paging" "fault-room-overflows";
    }
}

/// Edits.
mod amd {
    use super::super::edits::{drop_all, drop_first, once};
    use crate::backend::seam::{Arrives, Words, is_amd_wait};
    use portolan_spec::amd::command::device_tlb;
    use portolan_spec::amd::command::opcode::{
        ALL, DEVICE_ENTRY, DEVICE_TLB, INTERRUPT_TABLE, PAGES, RESPONSE,
    };
    use portolan_spec::amd::command::pages::{DIRECTORIES, EVERYTHING, GUEST, PASID, SIZE};
    use portolan_spec::amd::reg::{COMMAND_BASE, CONTROL, DEVICE_TABLE, control};

    /// INVALIDATE_INTERRUPT_TABLE of a device that does not exist.
    const NOTHING: Words = [INTERRUPT_TABLE << 60 | 0xffff, 0];

    fn is(words: &Words, opcode: u64) -> bool {
        words[0] >> 60 == opcode
    }

    fn by_address(words: &Words) -> bool {
        is(words, PAGES) && words[1] & !0xfff != EVERYTHING
    }

    fn addressed(commands: &mut [Words]) -> impl DoubleEndedIterator<Item = &mut Words> {
        commands.iter_mut().filter(|words| by_address(words))
    }

    fn drop_where(commands: &mut [Words], dropped: impl Fn(&Words) -> bool) {
        drop_all(commands, dropped, NOTHING);
    }

    /// Leaves out waits that store.
    pub fn without_wait(commands: &mut [Words]) {
        drop_where(commands, |words| is_amd_wait(*words));
    }

    /// Leaves out invalidations of pages.
    pub fn without_pages(commands: &mut [Words]) {
        drop_where(commands, by_address);
    }

    /// Leaves out invalidations of a domain as a whole.
    pub fn without_domain(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, PAGES) && !by_address(words));
    }

    fn of_guest(words: &Words) -> bool {
        is(words, PAGES) && words[1] & GUEST != 0
    }

    /// Leaves out invalidations of guest tables.
    pub fn without_guests(commands: &mut [Words]) {
        drop_where(commands, of_guest);
    }

    /// Names host tables instead of guest tables.
    pub fn hosts(commands: &mut [Words]) {
        for words in commands.iter_mut().filter(|words| of_guest(words)) {
            words[0] &= !PASID.mask();
            words[1] &= !GUEST;
        }
    }

    /// Names the next PASID.
    pub fn wrong_pasid(commands: &mut [Words]) {
        commands.iter_mut().filter(|words| of_guest(words)).for_each(|words| words[0] ^= 1);
    }

    /// Leaves out invalidations of device table entries.
    pub fn without_entries(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, DEVICE_ENTRY));
    }

    /// Leaves out invalidations of interrupt tables.
    pub fn without_interrupts(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, INTERRUPT_TABLE));
    }

    /// Leaves out invalidations of devices' own translations.
    pub fn without_device_tlbs(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, DEVICE_TLB));
    }

    fn of_pasid(commands: &mut [Words]) -> impl Iterator<Item = &mut Words> {
        let told = |words: &&mut Words| is(words, DEVICE_TLB) && words[1] & GUEST != 0;
        commands.iter_mut().filter(told)
    }

    /// Names the next PASID of devices' own translations.
    pub fn wrong_device_pasid(commands: &mut [Words]) {
        of_pasid(commands).for_each(|words| words[0] ^= device_tlb::PASID_LOW.at(1));
    }

    /// Names no PASID of devices' own translations.
    pub fn untagged_devices(commands: &mut [Words]) {
        let pasid = [device_tlb::PASID_LOW, device_tlb::PASID_MIDDLE, device_tlb::PASID_HIGH];
        for words in of_pasid(commands) {
            pasid.iter().for_each(|field| words[0] &= !field.mask());
            words[1] &= !GUEST;
        }
    }

    /// Leaves out responses to page requests.
    pub fn without_responses(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, RESPONSE));
    }

    /// Names the interrupt table of the next device.
    pub fn wrong_interrupts(commands: &mut [Words]) {
        let them = commands.iter_mut().filter(|words| is(words, INTERRUPT_TABLE));
        them.for_each(|words| words[0] ^= 1);
    }

    /// Leaves out the first of several invalidations of pages.
    pub fn without_first(commands: &mut [Words]) {
        drop_first(addressed(commands), NOTHING);
    }

    /// Leaves out the last of several invalidations of pages.
    pub fn without_last(commands: &mut [Words]) {
        drop_first(addressed(commands).rev(), NOTHING);
    }

    /// Half of a range: one of the ones that tell its size is a zero.
    fn halve(words: &mut Words) {
        match (words[1] >> 12).trailing_ones() {
            0 => words[1] &= !SIZE,
            ones => words[1] &= !(1 << (11 + ones)),
        }
    }

    /// Half of the pages of each invalidation of several.
    pub fn short_ranges(commands: &mut [Words]) {
        let several = addressed(commands).filter(|words| words[1] & SIZE != 0);
        several.for_each(halve);
    }

    /// Ranges that are smaller than a block.
    pub fn ranges_below_blocks(commands: &mut [Words]) {
        for words in addressed(commands).filter(|words| words[1] & SIZE != 0) {
            while (words[1] >> 12).trailing_ones() >= 8 {
                halve(words);
            }
        }
    }

    /// Names another domain.
    pub fn wrong_domain(commands: &mut [Words]) {
        addressed(commands).for_each(|words| words[0] ^= 1 << 44);
    }

    /// Leaves out invalidations of everything.
    pub fn without_everything(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, ALL));
    }

    /// The address of the queue is written once.
    pub fn queue_once(offset: usize, _: u32) -> Arrives {
        once(offset == COMMAND_BASE)
    }

    /// The address of the device table is written once.
    pub fn devices_once(offset: usize, _: u32) -> Arrives {
        once(offset == DEVICE_TABLE)
    }

    /// GCR3 tables are looked for in memory.
    pub fn without_roots_over_host(offset: usize, value: u32) -> Arrives {
        const ROOTS: u32 = (control::ROOTS_OVER_HOST >> 32) as u32;
        const UPPER: usize = CONTROL + 4;
        match offset {
            UPPER => Arrives::As(value & !ROOTS),
            _ => Arrives::Yes,
        }
    }

    /// Translation goes off with the queue.
    pub fn without_translation(offset: usize, value: u32) -> Arrives {
        const COMMANDS: u32 = control::COMMANDS as u32;
        match offset {
            CONTROL if value & COMMANDS == 0 => Arrives::As(value & !(control::ENABLE as u32)),
            _ => Arrives::Yes,
        }
    }

    /// Leaves only, even where tables were freed.
    pub fn leaves_only(commands: &mut [Words]) {
        let pages = commands.iter_mut().filter(|words| is(words, PAGES));
        pages.for_each(|words| words[1] &= !DIRECTORIES);
    }
}
