//! Commands as words, the tags that they name, and numbers of written commands by kind.
//!
//! IHI 0070, section 4. Range invalidations carry multiplier, exponent and granule; single ones
//! carry a level hint where the level follows from the page's size (4.4.1.1).
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{Asid, InvalTag, Iova, IovaRange, PageSize, Pasid, StreamId, Vmid};
use portolan::inval::{Depth, Run};
use portolan_spec::smmuv3::command as layout;
use portolan_spec::smmuv3::command::{Words, op};

macro_rules! kinds {
    ($($kind:ident = $op:ident => $text:literal;)*) => {
        crate::chassis::counters! {
            /// Kinds of commands that the driver writes.
            CommandKind,
            /// Number of commands of each kind that were written to the queue.
            CommandCounts {$($kind = stringify!($op) => $text;)*}
        }

        impl Counters {
            /// Counts a command.
            pub fn count(&self, words: &Words) {
                match layout::OP.get(words) {
                    $(op::$op => self.add(CommandKind::$kind),)*
                    _ => {}
                }
            }
        }
    };
}

kinds! {
    ConfigStream = CFGI_STE => "Forget a stream's entry.";
    ConfigStreams = CFGI_STE_RANGE => "Forget the entries of many streams.";
    ConfigContext = CFGI_CD => "Forget a context descriptor.";
    ConfigContexts = CFGI_CD_ALL => "Forget all context descriptors of a stream.";
    FirstStageOfVmid = TLBI_NH_ALL => "Forget all first-stage translations of a VMID.";
    Asid = TLBI_NH_ASID => "Forget those of an ASID.";
    Address = TLBI_NH_VA => "Forget those of an address or range.";
    Hyp = TLBI_EL2_ALL => "Forget all of EL2.";
    Vmid = TLBI_S12_VMALL => "Forget all translations of a VMID.";
    IntermediateAddress = TLBI_S2_IPA => "Forget second-stage translations of an address or range.";
    Everything = TLBI_NSNH_ALL => "Forget everything of EL1.";
    Device = ATC_INV => "Have a device forget translations.";
    PageResponse = PRI_RESP => "Answer a page request.";
    Resume = RESUME => "End a stall.";
    Sync = SYNC => "Wait.";
}

fn start(code: u64) -> Words {
    let mut words = [0; layout::WORDS];
    layout::OP.set(&mut words, code);
    words
}

/// A sync that is seen by the consumer index only.
pub(super) fn sync() -> Words {
    start(op::SYNC)
}

/// A sync that writes `data` to `address`.
pub(super) fn sync_message(address: u64, data: u32) -> Words {
    let mut words = start(op::SYNC);
    layout::SYNC_CS.set(&mut words, layout::sync::IRQ);
    layout::SYNC_MSH.set(&mut words, portolan_spec::smmuv3::ste::INNER);
    layout::SYNC_ATTR.set(&mut words, layout::sync::WRITE_BACK);
    layout::SYNC_DATA.set(&mut words, data.into());
    layout::SYNC_ADDRESS.set(&mut words, address >> 2);
    words
}

/// All that is cached of a stream's entry, and the first-level descriptor on the way to it.
pub(super) fn config_stream(stream: StreamId) -> Words {
    let mut words = start(op::CFGI_STE);
    layout::SID.set(&mut words, stream.get().into());
    words
}

pub(super) fn config_everything() -> Words {
    let mut words = start(op::CFGI_STE_RANGE);
    layout::CFGI_RANGE.set(&mut words, layout::ALL_STREAMS);
    words
}

/// A descriptor, and the first-level descriptor on the way to it. The substream always counts: the
/// command has no valid bit for it (4.3.3).
pub(super) fn config_context(stream: StreamId, pasid: Pasid) -> Words {
    let mut words = start(op::CFGI_CD);
    layout::SID.set(&mut words, stream.get().into());
    layout::SSID.set(&mut words, pasid.get().into());
    words
}

pub(super) fn config_contexts(stream: StreamId) -> Words {
    let mut words = start(op::CFGI_CD_ALL);
    layout::SID.set(&mut words, stream.get().into());
    words
}

pub(super) fn invalidate_everything() -> Words {
    start(op::TLBI_NSNH_ALL)
}

pub(super) fn invalidate_hyp() -> Words {
    start(op::TLBI_EL2_ALL)
}

/// Everything that `tag` tags.
pub(super) fn invalidate_tag(tag: SmmuTag) -> Words {
    match tag {
        SmmuTag::Asid(asid) => {
            let mut words = start(op::TLBI_NH_ASID);
            layout::TLBI_ASID.set(&mut words, asid.get().into());
            words
        }
        SmmuTag::Vmid(vmid) => {
            let mut words = start(op::TLBI_S12_VMALL);
            layout::TLBI_VMID.set(&mut words, vmid.get().into());
            words
        }
    }
}

/// Everything of the first stages under a second stage: combined translations, too.
pub(super) fn invalidate_first_stages(vmid: u16) -> Words {
    let mut words = start(op::TLBI_NH_ALL);
    layout::TLBI_VMID.set(&mut words, vmid.into());
    words
}

fn by_address(tag: SmmuTag, iova: Iova, depth: Depth) -> Words {
    let mut words = match tag {
        SmmuTag::Asid(asid) => {
            let mut words = start(op::TLBI_NH_VA);
            layout::TLBI_ASID.set(&mut words, asid.get().into());
            words
        }
        SmmuTag::Vmid(vmid) => {
            let mut words = start(op::TLBI_S2_IPA);
            layout::TLBI_VMID.set(&mut words, vmid.get().into());
            words
        }
    };
    layout::TLBI_LEAF.set(&mut words, u64::from(depth == Depth::LeafOnly));
    layout::TLBI_ADDRESS.set(&mut words, iova.get() >> 12);
    words
}

/// Granule and level of a leaf, where its size leaves no doubt about either: the largest leaf of
/// a granule. (A smaller one may be named for a span that holds larger leaves as well.)
fn hint(size: PageSize) -> Option<(u64, u64)> {
    match size.lg2() {
        30 => Some((1, 1)),
        25 => Some((2, 2)),
        29 => Some((3, 2)),
        _ => None,
    }
}

/// The page of `size` at `iova`.
pub(super) fn invalidate_page(
    tag: SmmuTag,
    iova: Iova,
    size: PageSize,
    depth: Depth,
    range: bool,
) -> Words {
    let mut words = by_address(tag, iova, depth);
    if let (true, Depth::LeafOnly, Some((granule, level))) = (range, depth, hint(size)) {
        layout::TLBI_TG.set(&mut words, granule);
        layout::TLBI_TTL.set(&mut words, level);
    }
    words
}

/// The run `run` of granules.
pub(super) fn invalidate_run(tag: SmmuTag, run: Run, granule: PageSize, depth: Depth) -> Words {
    let (iova, num, scale) = match run {
        Run::NumScale { start, num, scale } => (start, u64::from(num.max(1)) - 1, scale),
        Run::PowerOfTwo { start, lg2_pages } => (start, 0, lg2_pages),
    };
    let mut words = by_address(tag, iova, depth);
    // One granule of no known level is no range: with a granule it would be a reserved encoding.
    if num != 0 || scale != 0 {
        layout::TLBI_NUM.set(&mut words, num);
        layout::TLBI_SCALE.set(&mut words, scale.into());
        layout::TLBI_TG.set(&mut words, u64::from((granule.lg2() - 10) / 2));
    }
    words
}

/// Invalidates a device's translations of `range`, or all of them.
pub(super) fn invalidate_device(
    stream: StreamId,
    pasid: Option<Pasid>,
    range: Option<IovaRange>,
) -> Words {
    let mut words = start(op::ATC_INV);
    layout::SID.set(&mut words, stream.get().into());
    if let Some(pasid) = pasid {
        layout::SSV.set(&mut words, 1);
        layout::SSID.set(&mut words, pasid.get().into());
    }
    // The smallest naturally aligned power of two that holds the range.
    let (first, last) = range.map_or((0, u64::MAX), |r| (r.start().get(), r.last().get()));
    let lg2 = 64 - (first ^ last).leading_zeros();
    let lg2 = lg2.max(12);
    if lg2 >= 64 {
        layout::ATC_SIZE.set(&mut words, layout::ATC_ALL);
    } else {
        layout::ATC_SIZE.set(&mut words, u64::from(lg2 - 12));
        layout::ATC_ADDRESS.set(&mut words, (first >> lg2 << lg2) >> 12);
    }
    words
}

/// Answer to a stalled access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    /// As if it had just come.
    Retry,
    /// It ends with an error.
    Abort,
}

/// Ends a stall.
pub(super) fn resume(stream: StreamId, stall: u16, action: Resume) -> Words {
    let action = match action {
        Resume::Retry => 1,
        Resume::Abort => 2,
    };
    let mut words = start(op::RESUME);
    layout::SID.set(&mut words, stream.get().into());
    layout::RESUME_ACTION.set(&mut words, action);
    layout::RESUME_TAG.set(&mut words, stall.into());
    words
}

/// Answers a group of page requests.
pub(super) fn page_response(
    stream: StreamId,
    pasid: Option<Pasid>,
    group: u16,
    code: u64,
) -> Words {
    let mut words = start(op::PRI_RESP);
    layout::SID.set(&mut words, stream.get().into());
    if let Some(pasid) = pasid {
        layout::SSV.set(&mut words, 1);
        layout::SSID.set(&mut words, pasid.get().into());
    }
    layout::PRI_GROUP.set(&mut words, group.into());
    layout::PRI_RESPONSE.set(&mut words, code);
    words
}

/// Set in the identifier of a second-stage domain.
const SECOND_STAGE: u32 = 1 << 16;

/// Tag of a domain's translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SmmuTag {
    /// First stage, under VMID 0, which belongs to the driver.
    Asid(Asid),
    /// Second stage.
    Vmid(Vmid),
}

impl SmmuTag {
    /// The identifier that goes through plans.
    pub fn context(self) -> InvalTag {
        match self {
            Self::Asid(asid) => asid.into(),
            Self::Vmid(vmid) => InvalTag::new(SECOND_STAGE | u32::from(vmid.get())),
        }
    }

    /// Back from such an identifier; `None` if it is no such.
    pub fn of(context: InvalTag) -> Option<Self> {
        let raw = context.get();
        let low = (raw & 0xffff) as u16;
        match raw & !0xffff {
            0 => Some(Self::Asid(Asid::new(low))),
            SECOND_STAGE => Some(Self::Vmid(Vmid::new(low))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::{Asid, Vmid};

    const ASID: SmmuTag = SmmuTag::Asid(Asid::new(0xbeef));
    const VMID: SmmuTag = SmmuTag::Vmid(Vmid::new(0x12));
    const STREAM: StreamId = StreamId::new(0x1020_3040);

    #[test]
    fn words_by_hand() {
        let at = Iova::new(0x1234_5000);
        let page = |size, depth, range| invalidate_page(ASID, at, size, depth, range);
        let small = PageSize::SIZE_4K;
        let plain = page(small, Depth::AllLevels, true);
        assert_eq!(plain, [0xbeef_0000_0000_0012, 0x1234_5000]);
        let leaf = page(small, Depth::LeafOnly, true);
        assert_eq!(leaf, [0xbeef_0000_0000_0012, 0x1234_5001]);
        let hinted = page(PageSize::SIZE_1G, Depth::LeafOnly, true);
        assert_eq!(hinted[1], 0x1234_5000 | 1 << 10 | 1 << 8 | 1);
        assert_eq!(page(PageSize::SIZE_1G, Depth::LeafOnly, false), leaf);
        let run = |num, scale| Run::NumScale { start: at, num, scale };
        let range = invalidate_run(VMID, run(32, 5), small, Depth::AllLevels);
        assert_eq!(range, [0x0000_0012_0051_f02a, 0x1234_5400]);
        let one = invalidate_run(ASID, run(1, 0), small, Depth::LeafOnly);
        assert_eq!(one, leaf);
        let large = invalidate_run(ASID, run(2, 0), PageSize::SIZE_64K, Depth::LeafOnly);
        assert_eq!(large[1], 0x1234_5c01);
        assert_eq!(invalidate_tag(ASID), [0xbeef_0000_0000_0011, 0]);
        assert_eq!(invalidate_tag(VMID), [0x12_0000_0028, 0]);
        assert_eq!(config_stream(STREAM), [0x1020_3040_0000_0003, 0]);
        assert_eq!(config_everything(), [4, 31]);
        assert_eq!(sync(), [0x46, 0]);
        assert_eq!(sync_message(0x8000_0010, 7), [0x7_0fc0_1046, 0x8000_0010]);
        assert_eq!(resume(STREAM, 9, Resume::Abort), [0x1020_3040_0000_2044, 9]);
        assert_eq!(resume(STREAM, 9, Resume::Retry), [0x1020_3040_0000_1044, 9]);
        assert_eq!(page_response(STREAM, None, 5, 2), [0x1020_3040_0000_0041, 0x2005]);
    }

    #[test]
    fn forgetting_a_descriptor_sets_no_reserved_bit() {
        let context = config_context(STREAM, Pasid::new(0xabcde));
        assert_eq!(context, [0x1020_3040_abcd_e005, 0]);
    }

    #[test]
    fn a_device_forgets_the_whole_range() {
        let inv = |first, last| {
            let range = IovaRange::new(Iova::new(first), Iova::new(last));
            invalidate_device(STREAM, None, range)[1]
        };
        assert_eq!(inv(0x5000, 0x5fff), 0x5000);
        assert_eq!(inv(0x5000, 0x6fff), 0x4000 | 2);
        assert_eq!(inv(0x7000, 0x8fff), 4);
        assert_eq!(inv(0, u64::MAX), 52);
        assert_eq!(inv(0x7fff_ffff_ffff_f000, 0x8000_0000_0000_0fff), 52);
        assert_eq!(inv(0, u64::MAX >> 1), 51);
        assert_eq!(invalidate_device(STREAM, None, None)[1], 52);
    }
}

#[cfg(test)]
mod context_tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for tag in [SmmuTag::Asid(Asid::new(0xffff)), SmmuTag::Vmid(Vmid::new(7))] {
            assert_eq!(SmmuTag::of(tag.context()), Some(tag));
        }
        assert_eq!(SmmuTag::of(InvalTag::new(1 << 17)), None);
    }
}
