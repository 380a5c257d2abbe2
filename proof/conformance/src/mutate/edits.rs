//! Edits of commands: commands that are dropped, and commands that are bent.
//!
//! SMMUv2: IHI 0062. SMMUv3: IHI 0070, section 4. VT-d: D51397, sections 6.5.2 and 11.4. A dropped command becomes
//! one that is legal and has no effect.

use crate::backend::seam::{Arrives, Words};

/// Puts `nothing` in the place of each command that is `dropped`.
pub(super) fn drop_all(commands: &mut [Words], dropped: impl Fn(&Words) -> bool, nothing: Words) {
    let dropped = commands.iter_mut().filter(|words| dropped(words));
    dropped.for_each(|words| *words = nothing);
}

/// Puts `nothing` in the place of the first of `several`, if they are.
pub(super) fn drop_first<'c>(mut several: impl Iterator<Item = &'c mut Words>, nothing: Words) {
    if let (Some(first), Some(_)) = (several.next(), several.next()) {
        *first = nothing;
    }
}

/// All but the first write of a value are lost, if it is to `register`.
pub(super) fn once(register: bool) -> Arrives {
    if register { Arrives::Once } else { Arrives::Yes }
}

/// Edits for SMMUv2 (IHI 0062), whose commands are register writes. Offsets are the model's: its context banks begin
/// with the 64th page of 4 KiB.
pub mod smmuv2 {
    use portolan_spec::smmuv2::bank::{
        TLBIASID, TLBIIPAS2, TLBIIPAS2L, TLBIVA, TLBIVAL, TLBSTATUS, TLBSYNC,
    };
    use portolan_spec::smmuv2::global::{ID0, TLBGSTATUS, TLBIALLNSNH, TLBIVMID, s2cr};

    use super::Arrives;

    const BANKS: usize = 64 << 12;
    /// S2CR of the last stream, on which the driver tries the firmware.
    const TRIED: usize = s2cr(47);

    fn is(offset: usize, register: usize) -> bool {
        offset >= BANKS && offset & 0xfff == register
    }

    fn lost(lost: bool) -> Arrives {
        if lost { Arrives::No } else { Arrives::Yes }
    }

    /// Leaves out the synchronisation of a bank.
    pub fn without_sync(offset: usize, _: u32) -> Arrives {
        lost(is(offset, TLBSYNC))
    }

    /// Leaves out invalidations by VMID.
    pub fn without_vmid(offset: usize, _: u32) -> Arrives {
        lost(offset == TLBIVMID)
    }

    /// Leaves out invalidations by address of the last level.
    pub fn without_leaves(offset: usize, _: u32) -> Arrives {
        lost(is(offset, TLBIVAL))
    }

    /// Leaves out invalidations by address of all levels.
    pub fn without_all_levels(offset: usize, _: u32) -> Arrives {
        lost(is(offset, TLBIVA))
    }

    /// Leaves out invalidations of an address space.
    pub fn without_asid(offset: usize, _: u32) -> Arrives {
        lost(is(offset, TLBIASID))
    }

    /// Leaves out invalidations by second-stage address.
    pub fn without_second(offset: usize, _: u32) -> Arrives {
        lost(is(offset, TLBIIPAS2) || is(offset, TLBIIPAS2L))
    }

    /// Leaves out invalidations of everything.
    pub fn without_everything(offset: usize, _: u32) -> Arrives {
        lost(offset == TLBIALLNSNH)
    }

    /// The next address space instead of this one.
    pub fn wrong_asid(offset: usize, value: u64) -> (usize, u64) {
        if is(offset, TLBIVA) || is(offset, TLBIVAL) {
            (offset, value ^ 1 << 52)
        } else {
            (offset, value)
        }
    }

    /// The page behind the right one.
    pub fn next_page(offset: usize, value: u64) -> (usize, u64) {
        if is(offset, TLBIVA) || is(offset, TLBIVAL) {
            (offset, value + 1)
        } else {
            (offset, value)
        }
    }

    /// Leaves only, even where tables were freed.
    pub fn leaves_only(offset: usize, value: u64) -> (usize, u64) {
        if is(offset, TLBIVA) { (offset - TLBIVA + TLBIVAL, value) } else { (offset, value) }
    }

    /// The unit claims that its walks snoop.
    pub fn claims_coherence(offset: usize, value: u32) -> u32 {
        match offset {
            ID0 => value | 1 << 14,
            _ => value,
        }
    }

    /// Reports that no synchronisation of a bank is under way.
    pub fn without_wait(offset: usize, value: u32) -> u32 {
        if is(offset, TLBSTATUS) { 0 } else { value }
    }

    /// Reports that no global synchronisation is under way.
    pub fn without_global_wait(offset: usize, value: u32) -> u32 {
        match offset {
            TLBGSTATUS => 0,
            _ => value,
        }
    }

    /// Firmware does not seem to bend the register that the driver tries it on.
    pub fn without_firmware(offset: usize, value: u32) -> u32 {
        match offset {
            TRIED => value & !(3 << 16) | 1 << 16,
            _ => value,
        }
    }
}

/// SMMUv3.
pub mod smmuv3 {
    use portolan_spec::smmuv3::command::op::{ATC_INV, RESUME, SYNC, TLBI_NH_VA, TLBI_S2_IPA};
    use portolan_spec::smmuv3::command::op::{CFGI_STE_RANGE, TLBI_NSNH_ALL};
    use portolan_spec::smmuv3::reg::{CMDQ_BASE, CR0, IDR3, STRTAB_BASE, cr0};

    use super::{Arrives, Words, drop_all, drop_first, once};

    /// PREFETCH_CONFIG of a stream that does not exist.
    const NOTHING: Words = [0x01 | 0xfffe << 32, 0];

    /// Leaves out the command `OP`.
    pub fn without<const OP: u64>(commands: &mut [Words]) {
        drop_all(commands, |words| words[0] & 0xff == OP, NOTHING);
    }

    fn by_address(words: &Words) -> bool {
        matches!(words[0] & 0xff, TLBI_NH_VA | TLBI_S2_IPA)
    }

    fn addressed(commands: &mut [Words]) -> impl DoubleEndedIterator<Item = &mut Words> {
        commands.iter_mut().filter(|words| by_address(words))
    }

    /// Leaves out syncs after commands `OP`.
    pub fn without_sync_of<const OP: u64>(commands: &mut [Words]) {
        if commands.iter().any(|words| words[0] & 0xff == OP) {
            without::<SYNC>(commands);
        }
    }

    /// Leaves of the last level only, of 4 KiB.
    pub fn last_level(commands: &mut [Words]) {
        for words in addressed(commands) {
            words[1] = words[1] & !(0xf << 8) | 1 << 10 | 3 << 8;
        }
    }

    /// Names ranges in another granule.
    pub fn wrong_granule(commands: &mut [Words]) {
        for words in addressed(commands) {
            if words[1] >> 10 & 3 == 1 {
                words[1] += 1 << 10;
            }
        }
    }

    /// Leaves out invalidations of all that a device keeps.
    pub fn without_moved_devices(commands: &mut [Words]) {
        // Of size 52: all pages.
        let all = |words: &Words| words[0] & 0xff == ATC_INV && words[1] & 0x3f == 52;
        drop_all(commands, all, NOTHING);
    }

    /// Leaves out all syncs of a submission but the last.
    pub fn without_early_syncs(commands: &mut [Words]) {
        if let [early @ .., _] = commands {
            without::<SYNC>(early);
        }
    }

    /// Retries every stall, even of refused accesses.
    pub fn always_retried(commands: &mut [Words]) {
        for words in commands.iter_mut().filter(|words| words[0] & 0xff == RESUME) {
            words[0] = words[0] & !(3 << 12) | 1 << 12;
        }
    }

    /// Leaves out the first of several invalidations.
    pub fn without_first(commands: &mut [Words]) {
        drop_first(addressed(commands), NOTHING);
    }

    /// Leaves out the last of several invalidations.
    pub fn without_last(commands: &mut [Words]) {
        drop_first(addressed(commands).rev(), NOTHING);
    }

    /// Ranges that are one unit too short.
    pub fn short_ranges(commands: &mut [Words]) {
        const NUM: u64 = 0x1f << 12;
        const SCALE: u64 = 0x1f << 20;
        for words in addressed(commands) {
            if words[1] >> 10 & 3 == 0 {
                continue;
            }
            if words[0] & NUM != 0 {
                words[0] -= 1 << 12;
            } else if words[0] & SCALE != 0 {
                words[0] -= 1 << 20;
            }
        }
    }

    /// The next address space instead of this one.
    pub fn wrong_asid(commands: &mut [Words]) {
        let them = commands.iter_mut();
        for words in them.filter(|words| words[0] & 0xff == TLBI_NH_VA) {
            words[0] ^= 1 << 52;
        }
    }

    /// Leaves only, even where tables were freed.
    pub fn leaves_only(commands: &mut [Words]) {
        for words in addressed(commands) {
            words[1] |= 1;
        }
    }

    /// Leaves out invalidations of everything.
    pub fn without_everything(commands: &mut [Words]) {
        let all = |words: &Words| matches!(words[0] & 0xff, CFGI_STE_RANGE | TLBI_NSNH_ALL);
        drop_all(commands, all, NOTHING);
    }

    /// The address of the queue is written once.
    pub fn queue_once(offset: usize, _: u32) -> Arrives {
        once(offset == CMDQ_BASE)
    }

    /// The address of the stream table is written once.
    pub fn streams_once(offset: usize, _: u32) -> Arrives {
        once(offset == STRTAB_BASE)
    }

    /// Translation goes off with the queue.
    pub fn without_translation(offset: usize, value: u32) -> Arrives {
        match offset {
            CR0 if value & cr0::CMDQEN == 0 => Arrives::As(value & !cr0::SMMUEN),
            _ => Arrives::Yes,
        }
    }

    /// Claims that a block may become a table at once (IDR3.BBML).
    pub fn claims_bbml2(offset: usize, value: u32) -> u32 {
        match offset {
            IDR3 => value & !(3 << 11) | 2 << 11,
            _ => value,
        }
    }
}

/// VT-d.
pub mod intel {
    use portolan_spec::vtd::descriptor::kind::{
        CONTEXT, DEVICE_TLB, INTERRUPT_ENTRIES, IOTLB, PASID_CACHE, PASID_IOTLB, RESPONSE,
    };
    use portolan_spec::vtd::reg::{CAP, GCMD, IQA, IRTA, RTADDR, command};

    use super::{Arrives, Words, drop_all, drop_first, once};
    use crate::backend::seam::is_vtd_wait;

    /// Upper half of IOTLB_REG where the model's ECAP.IRO puts it.
    const IOTLB_HIGH: usize = 0x200 + 12;
    /// The context of a device that does not exist, in a domain that does not exist.
    const NOTHING: Words = [CONTEXT | 3 << 4 | 0xffff << 16 | 0xffff << 32, 0];

    fn granularity(words: &Words) -> u64 {
        words[0] >> 4 & 3
    }

    fn drop_where(commands: &mut [Words], dropped: impl Fn(&Words) -> bool) {
        drop_all(commands, dropped, NOTHING);
    }

    fn is(words: &Words, kind: u64) -> bool {
        words[0] & 0xf == kind
    }

    fn by_address(words: &Words) -> bool {
        (is(words, IOTLB) || is(words, PASID_IOTLB)) && granularity(words) == 3
    }

    fn addressed(commands: &mut [Words]) -> impl DoubleEndedIterator<Item = &mut Words> {
        commands.iter_mut().filter(|words| by_address(words))
    }

    /// Leaves out waits.
    pub fn without_wait(commands: &mut [Words]) {
        drop_where(commands, |words| is_vtd_wait(*words));
    }

    /// Leaves out invalidations of pages.
    pub fn without_pages(commands: &mut [Words]) {
        drop_where(commands, by_address);
    }

    /// Leaves out invalidations of translations that devices keep.
    pub fn without_devices(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, DEVICE_TLB));
    }

    /// Leaves out invalidations of all that a device keeps.
    pub fn without_moved_devices(commands: &mut [Words]) {
        // All bits from 12 up but the top one.
        let all = |words: &Words| words[1] >> 12 == u64::MAX >> 13;
        drop_where(commands, |words| is(words, DEVICE_TLB) && all(words));
    }

    /// Leaves out invalidations of interrupt entries, except of all at once.
    pub fn without_interrupt_entries(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, INTERRUPT_ENTRIES) && words[0] & 1 << 4 != 0);
    }

    /// Names interrupt entries next to the changed ones.
    pub fn wrong_interrupt_entries(commands: &mut [Words]) {
        let them = commands.iter_mut().filter(|words| is(words, INTERRUPT_ENTRIES));
        them.for_each(|words| words[0] ^= 1 << 39);
    }

    /// Leaves out responses to page requests.
    pub fn without_responses(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, RESPONSE));
    }

    /// Leaves out invalidations of a domain as a whole.
    pub fn without_domain(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, IOTLB) && granularity(words) == 2);
    }

    /// Leaves out invalidations of a first stage as a whole.
    pub fn without_pasid_translations(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, PASID_IOTLB) && granularity(words) == 2);
    }

    /// Leaves out invalidations of contexts, except of all at once.
    pub fn without_context(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, CONTEXT) && granularity(words) == 3);
    }

    /// Leaves out invalidations of PASID entries, except of all at once.
    pub fn without_pasid_entries(commands: &mut [Words]) {
        drop_where(commands, |words| is(words, PASID_CACHE) && granularity(words) != 3);
    }

    /// Leaves out the first of several invalidations.
    pub fn without_first(commands: &mut [Words]) {
        drop_first(addressed(commands), NOTHING);
    }

    /// Leaves out the last of several invalidations.
    pub fn without_last(commands: &mut [Words]) {
        drop_first(addressed(commands).rev(), NOTHING);
    }

    /// Half of the pages of each invalidation of several.
    pub fn short_ranges(commands: &mut [Words]) {
        let them = addressed(commands);
        them.filter(|words| words[1] & 0x3f != 0).for_each(|words| words[1] -= 1);
    }

    /// Masks that are smaller than a block.
    pub fn masks_below_blocks(commands: &mut [Words]) {
        const MASK: u64 = 0x3f;
        let them = addressed(commands);
        them.filter(|words| words[1] & MASK >= 9).for_each(|words| words[1] = words[1] & !MASK | 8);
    }

    /// Names another domain.
    pub fn wrong_domain(commands: &mut [Words]) {
        let them = addressed(commands);
        them.for_each(|words| words[0] ^= 1 << 28);
    }

    /// Leaves only, even where tables were freed.
    pub fn leaves_only(commands: &mut [Words]) {
        let them = addressed(commands);
        them.for_each(|words| words[1] |= 1 << 6);
    }

    /// Invalidations of pages through registers are lost; the driver finds the register idle, and
    /// its earlier work still premapped.
    pub fn without_register_pages(offset: usize, value: u32) -> Arrives {
        match (offset, value >> 28 & 3) {
            (IOTLB_HIGH, 3) => Arrives::No,
            _ => Arrives::Yes,
        }
    }

    /// Leaves out invalidations of everything.
    pub fn without_everything(commands: &mut [Words]) {
        drop_where(commands, |words| match words[0] & 0xf {
            CONTEXT | IOTLB => granularity(words) == 1,
            PASID_CACHE => granularity(words) == 3,
            _ => false,
        });
    }

    /// The address of the queue is written once.
    pub fn queue_once(offset: usize, _: u32) -> Arrives {
        once(offset == IQA)
    }

    /// The address of the root table is written once.
    pub fn root_once(offset: usize, _: u32) -> Arrives {
        once(offset == RTADDR)
    }

    /// The address of the interrupt table is written once.
    pub fn interrupts_once(offset: usize, _: u32) -> Arrives {
        once(offset == IRTA)
    }

    /// Translation goes off with the queue.
    pub fn without_translation(offset: usize, value: u32) -> Arrives {
        match offset {
            GCMD if value & command::QIE == 0 => Arrives::As(value & !command::TE),
            _ => Arrives::Yes,
        }
    }

    /// The write buffer is never flushed.
    pub fn without_flush(offset: usize, value: u32) -> Arrives {
        match (offset, value >> 27 & 1) {
            (GCMD, 1) => Arrives::No,
            _ => Arrives::Yes,
        }
    }

    /// The unit does not say that it caches absence.
    pub fn without_caching_mode(offset: usize, value: u32) -> u32 {
        match offset {
            CAP => value & !(1 << 7),
            _ => value,
        }
    }
}
