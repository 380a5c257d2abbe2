//! Registers that all parts of the driver share, commands as words, and numbers of them by kind.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.4
//! (commands), 3.4.5 and 3.4.22 (control and status).

use super::features::{Features, MAX_LG2_PAGES};
use crate::chassis::{Present, wait_until};
use portolan::addr::{InvalTag, IovaRange, Pasid};
use portolan::inval::{Command, Depth};
use portolan::iommu::{Awaited, IommuError};
use portolan::iopf::Response;
use portolan::platform::{Guarded, Mmio, Nanos, UnitPlatform};
use portolan::table::format::DirtyTracking;
use portolan_spec::amd::command::{
    OPCODE, Words, device_entry, device_tlb as of_device, opcode, pages, response, wait,
};
use portolan_spec::amd::entry;
use portolan_spec::amd::guest::LG2_ENTRIES;
use portolan_spec::amd::reg;

/// A command and the kind by which it is counted.
pub(super) type Counted = (CommandKind, Words);

/// Stores `data` at `address`, which is aligned to 8, once everything in front is complete.
pub(super) fn store(address: u64, data: u64) -> Words {
    let word = OPCODE.at(opcode::COMPLETION_WAIT) | address & wait::ADDRESS | wait::STORE.at(1);
    [word, data]
}

/// Command without an effect, for any place in the buffer.
pub(super) fn nothing() -> Words {
    [OPCODE.at(opcode::COMPLETION_WAIT), 0]
}

/// Holds back the commands behind it until everything in front is complete.
pub(super) fn fence() -> Counted {
    let word = OPCODE.at(opcode::COMPLETION_WAIT) | wait::FLUSH.at(1);
    (CommandKind::Fence, [word, 0])
}

/// Forget the device table entry of `stream`.
pub(super) fn device_entry(stream: u16) -> Counted {
    let device = device_entry::DEVICE.at(stream.into());
    (CommandKind::DeviceEntry, [OPCODE.at(opcode::DEVICE_ENTRY) | device, 0])
}

/// Makes hardware forget its copy of the interrupt table of `stream`.
pub(super) fn interrupt_table(stream: u16) -> Counted {
    let device = device_entry::DEVICE.at(stream.into());
    let word = OPCODE.at(opcode::INTERRUPT_TABLE) | device;
    (CommandKind::Interrupts, [word, 0])
}

/// Forget all of `domain`.
pub(super) fn domain(domain: u16) -> Counted {
    let what = pages::EVERYTHING | pages::SIZE | pages::DIRECTORIES;
    (CommandKind::Domain, [pages_of(domain), what])
}

/// Forget everything.
pub(super) fn all() -> Counted {
    (CommandKind::All, [OPCODE.at(opcode::ALL), 0])
}

/// The address and size of `2^lg2_pages` pages around `start`; `None` if there are too many for a command.
fn span(start: u64, lg2_pages: u32) -> Option<u64> {
    if lg2_pages > u32::from(MAX_LG2_PAGES) {
        return None;
    }
    let first = start >> (12 + lg2_pages) << (12 + lg2_pages);
    let size = match lg2_pages {
        0 => 0,
        // Ones below the top bit of the offset, which is zero.
        lg2 => ((1 << (lg2 - 1)) - 1) << 12 | pages::SIZE,
    };
    Some(first & pages::ADDRESS | size)
}

/// Forget `2^lg2_pages` pages of `domain` around `start`.
fn some(domain_id: u16, start: u64, lg2_pages: u32, depth: Depth) -> Counted {
    let Some(span) = span(start, lg2_pages) else {
        return domain(domain_id);
    };
    let directories = match depth {
        Depth::LeafOnly => 0,
        Depth::AllLevels => pages::DIRECTORIES,
    };
    (CommandKind::Pages, [pages_of(domain_id), span | directories])
}

/// A device with a TLB of its own, as commands name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AmdAtc {
    pub(super) stream: u16,
    /// Requester id of its physical function, by which its queue is known.
    pub(super) physical: u16,
    /// Invalidations that it takes at a time.
    pub(super) depth: u8,
}

/// Address spaces of translations that a device keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AtcSpaces {
    /// That of requests without a PASID.
    Untagged,
    /// That of requests without a PASID, which is PASID 0's as well.
    Default,
    /// That of a PASID.
    Pasid(u32),
    /// Those that a guest may name by a GCR3 table of one level. The addresses are the guest's, so no range of the
    /// host's tells them.
    Guest,
}

/// PASIDs in a GCR3 table of one level.
const GUEST_PASIDS: u32 = 1 << LG2_ENTRIES;

/// Translations that a device keeps of the tables that a stream, or a PASID of it, leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AmdKept {
    pub(super) atc: AmdAtc,
    pub(super) spaces: AtcSpaces,
}

impl AmdKept {
    /// Has the device forget those of a range, or all of them.
    pub(super) fn forget(self, range: Option<IovaRange>) -> impl Iterator<Item = Counted> {
        let (untagged, pasids, range) = match self.spaces {
            AtcSpaces::Untagged => (Some(None), 0..0, range),
            AtcSpaces::Pasid(pasid) => (None, pasid..pasid + 1, range),
            AtcSpaces::Default => (Some(None), 0..1, range),
            AtcSpaces::Guest => (Some(None), 0..GUEST_PASIDS, None),
        };
        let spaces = untagged.into_iter().chain(pasids.map(Some));
        spaces.map(move |pasid| device_tlb(self.atc, pasid, range))
    }
}

/// Word 0 of the commands for a device's translations, without a PASID.
fn device_tlb_head(atc: AmdAtc) -> u64 {
    OPCODE.at(opcode::DEVICE_TLB)
        | of_device::DEVICE.at(atc.stream.into())
        | of_device::MOST.at(atc.depth.into())
        | of_device::QUEUE.at(atc.physical.into())
}

/// The command for a device's translations that a guest gives as `words`, with the real device and its queue.
pub(super) fn device_tlb_of_guest(atc: AmdAtc, [low, high]: Words) -> Counted {
    let pasid =
        of_device::PASID_LOW.mask() | of_device::PASID_MIDDLE.mask() | of_device::PASID_HIGH.mask();
    let space = if high & pages::GUEST == 0 { 0 } else { low & pasid };
    let meant = pages::ADDRESS | pages::SIZE | pages::GUEST;
    (CommandKind::DeviceTlb, [device_tlb_head(atc) | space, high & meant])
}

/// Has a device forget its translations of a range, or all of them, in one address space.
fn device_tlb(atc: AmdAtc, pasid: Option<u32>, range: Option<IovaRange>) -> Counted {
    let word = device_tlb_head(atc);
    let (space, guest) = pasid.map_or((0, 0), |pasid| {
        let pasid = u64::from(pasid);
        let low = of_device::PASID_LOW.at(pasid) | of_device::PASID_MIDDLE.at(pasid >> 8);
        (low | of_device::PASID_HIGH.at(pasid >> 16), pages::GUEST)
    });
    let (start, lg2) = range.map_or((0, u32::MAX), aligned);
    let span = span(start, lg2).unwrap_or(pages::EVERYTHING | pages::SIZE);
    (CommandKind::DeviceTlb, [word | space, span | guest])
}

/// Answers a group of page requests.
pub(super) fn respond(stream: u16, pasid: Option<Pasid>, group: u16, with: Response) -> Counted {
    let code = match with {
        Response::Success => response::SUCCESS,
        Response::Invalid => response::INVALID,
        Response::Failure => response::FAILURE,
    };
    let word = OPCODE.at(opcode::RESPONSE) | response::DEVICE.at(stream.into());
    let space = pasid.map_or(0, |pasid| response::PASID.at(pasid.get().into()));
    let valid = pasid.map_or(0, |_| response::PASID_VALID);
    let answer = response::GROUP.at(group.into()) | response::CODE.at(code);
    (CommandKind::Response, [word | space, answer | valid])
}

fn pages_of(domain: u16) -> u64 {
    OPCODE.at(opcode::PAGES) | pages::DOMAIN.at(domain.into())
}

/// Field of an entry that has the unit mark leaves, or leave them.
pub(super) fn marks(dirty: DirtyTracking) -> u64 {
    match dirty {
        DirtyTracking::Off => 0,
        DirtyTracking::Hardware => entry::MARKS.mask(),
    }
}

/// The domain that tags the translations of `context`.
pub(super) fn domain_of(context: InvalTag) -> u16 {
    context.get() as u16
}

/// The smallest aligned power of two of pages that covers `range`: an address and the exponent.
fn aligned(range: IovaRange) -> (u64, u32) {
    let differ = (range.start().get() ^ range.last().get()) >> 12;
    (range.start().get(), 64 - differ.leading_zeros())
}

/// The command for an invalidation of translations; `None` for one of configuration.
pub(super) fn invalidate(command: Command) -> Option<Counted> {
    Some(match command {
        Command::Page { context, iova, size, depth } => {
            some(domain_of(context), iova.get(), size.lg2().saturating_sub(12), depth)
        }
        Command::Range { context, run, granule, depth } => {
            let (start, lg2) = aligned(run.range(granule));
            some(domain_of(context), start, lg2, depth)
        }
        Command::Context { context } => domain(domain_of(context)),
        Command::Global | Command::Configuration { .. } => return None,
    })
}

/// Tag of the translations of guest tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GuestUse {
    /// Domain identifier of the GCR3 table.
    pub(super) domain: u16,
    pub(super) pasid: u32,
}

/// Bit of a context that says that its domain has guest tables: the unit tags them by other identifiers.
const GUESTS: u32 = 1 << 16;

/// The context of a domain with guest tables.
pub(super) fn guest_context(name: u32) -> InvalTag {
    InvalTag::new(name | GUESTS)
}

/// The name of a domain with guest tables, if `context` is that of one.
pub(super) fn guest_name(context: InvalTag) -> Option<u32> {
    (context.get() & GUESTS != 0).then_some(context.get() & !GUESTS)
}

/// The command of [`invalidate`] for guest tables.
pub(super) fn guest(of: GuestUse, command: Command) -> Option<Counted> {
    let (_, [_, page]) = invalidate(command)?;
    Some(guest_pages(of, page))
}

/// Forget all of a PASID, its entry of the GCR3 table included.
pub(super) fn guest_all(of: GuestUse) -> Counted {
    guest_pages(of, pages::EVERYTHING | pages::SIZE | pages::DIRECTORIES)
}

fn guest_pages(of: GuestUse, page: u64) -> Counted {
    let word = pages_of(of.domain) | pages::PASID.at(of.pasid.into());
    (CommandKind::Guest, [word, page | pages::GUEST])
}

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        Wait = "COMPLETION_WAIT" => "COMPLETION_WAIT that stores.";
        /// COMPLETION_WAIT that only holds back the commands behind it.
        Fence = "COMPLETION_WAIT (fence)";
        DeviceEntry = "INVALIDATE_DEVTAB_ENTRY" => "INVALIDATE_DEVTAB_ENTRY.";
        DeviceTlb = "INVALIDATE_IOTLB_PAGES" => "INVALIDATE_IOTLB_PAGES.";
        Response = "COMPLETE_PPR_REQUEST" => "COMPLETE_PPR_REQUEST.";
        Interrupts = "INVALIDATE_INTERRUPT_TABLE" => "INVALIDATE_INTERRUPT_TABLE.";
        Pages = "INVALIDATE_IOMMU_PAGES" => "INVALIDATE_IOMMU_PAGES of some pages.";
        /// INVALIDATE_IOMMU_PAGES of all pages of a domain.
        Domain = "INVALIDATE_IOMMU_PAGES (domain)";
        Guest = "INVALIDATE_IOMMU_PAGES (guest)" => "INVALIDATE_IOMMU_PAGES of guest tables.";
        All = "INVALIDATE_IOMMU_ALL" => "INVALIDATE_IOMMU_ALL.";
        Replaced = "COMPLETION_WAIT (replaced)" => "COMPLETION_WAIT in place of a refused command.";
    }
}

/// Registers, memory, clock and features, which all parts of a unit need.
pub(super) struct AmdControl<P: UnitPlatform> {
    pub(super) regs: P::Registers,
    pub(super) mem: P::Memory,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
    /// Held from reading the control register to writing it. A leaf: taken under the event log's lock
    /// and under the command buffer's.
    switches: Guarded<P, ()>,
}

impl<P: UnitPlatform> AmdControl<P> {
    pub(super) fn new(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        limit: Nanos,
        features: Features,
    ) -> Self {
        Self {
            regs,
            mem,
            clock,
            limit,
            features,
            counters: Counters::default(),
            switches: Guarded::new(()),
        }
    }

    /// A register that never reads as all ones while the unit is there.
    pub(super) fn read(&self, offset: usize) -> Result<u64, IommuError> {
        self.regs.present64(offset)
    }

    /// Keeps the bits `keep` of the control register and sets `set`.
    pub(super) fn switch(&self, keep: u64, set: u64) -> Result<(), IommuError> {
        let _held = self.switches.lock();
        let before = self.read(reg::CONTROL)?;
        self.regs.write64(reg::CONTROL, before & keep | set);
        Ok(())
    }

    /// Waits until the bits `mask` of the status are `wanted`.
    pub(super) fn await_status(&self, mask: u64, wanted: u64) -> Result<(), IommuError> {
        let reached = || Ok(self.read(reg::STATUS)? & mask == wanted);
        wait_until(&self.clock, self.limit, Awaited::Control, reached)
    }
}

pub mod refusal {
    //! The codes with which [`portolan::iommu::IommuError::Refused`] says why: those of the events that
    //! the unit logs of commands.

    /// The unit stopped at the command and logged nothing of it.
    pub const UNKNOWN: u32 = 0;
    /// ILLEGAL_COMMAND_ERROR: the command is malformed.
    pub const ILLEGAL: u32 = portolan_spec::amd::event::code::ILLEGAL_COMMAND as u32;
    /// COMMAND_HARDWARE_ERROR: the command could not be read.
    pub const HARDWARE: u32 = portolan_spec::amd::event::code::COMMAND_HARDWARE as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use portolan::addr::{Iova, PageSize};
    use portolan::inval::Run;

    #[test]
    fn commands_by_hand() {
        assert_eq!(store(0x12_3458, 7), [0x1000_0000_0012_3459, 7]);
        assert_eq!(nothing(), [0x1000_0000_0000_0000, 0]);
        assert_eq!(fence().1, [0x1000_0000_0000_0004, 0]);
        assert_eq!(device_entry(0x0108).1, [0x2000_0000_0000_0108, 0]);
        assert_eq!(interrupt_table(0x0108).1, [0x5000_0000_0000_0108, 0]);
        assert_eq!(domain(0x42).1, [0x3000_0042_0000_0000, 0x7fff_ffff_ffff_f003]);
        assert_eq!(all().1, [0x8000_0000_0000_0000, 0]);
    }

    #[test]
    fn commands_for_devices_by_hand() {
        let atc = AmdAtc { stream: 0x0109, physical: 0x0108, depth: 32 };
        let head = 0x4000_0108_2000_0109;
        let told = |spaces, range| -> Vec<Words> {
            AmdKept { atc, spaces }.forget(range).map(|(_, words)| words).collect()
        };
        assert_eq!(told(AtcSpaces::Untagged, None), [[head, 0x7fff_ffff_ffff_f001]]);
        let page = IovaRange::page(Iova::new(0x4000_5000), PageSize::SIZE_4K);
        assert_eq!(told(AtcSpaces::Untagged, Some(page)), [[head, 0x4000_5000]]);
        let block = IovaRange::page(Iova::new(0x4020_0000), PageSize::SIZE_2M);
        assert_eq!(told(AtcSpaces::Untagged, Some(block)), [[head, 0x402f_f001]]);
        // Bits 7:0 of the PASID at 48, 15:8 at 16, 19:16 at 56, and GN.
        let named = told(AtcSpaces::Pasid(0xa_bcde), Some(page));
        assert_eq!(named, [[0x4ade_0108_20bc_0109, 0x4000_5004]]);
        let both = [[head, 0x7fff_ffff_ffff_f001], [head, 0x7fff_ffff_ffff_f005]];
        assert_eq!(told(AtcSpaces::Default, None), both);
        let guests = told(AtcSpaces::Guest, Some(page));
        assert_eq!((guests.len(), guests[..2].to_vec()), (513, both.to_vec()));
        assert_eq!(guests[512], [0x40ff_0108_2001_0109, 0x7fff_ffff_ffff_f005]);
        let pasid = Some(Pasid::new(0xa_bcde));
        let answer = respond(0x0108, pasid, 0x155, Response::Invalid).1;
        assert_eq!(answer, [0x700a_bcde_0000_0108, 0x0000_1155_0000_0004]);
        let answer = respond(0x0108, None, 1, Response::Failure).1;
        assert_eq!(answer, [0x7000_0000_0000_0108, 0x0000_f001_0000_0000]);
        let answer = respond(0x0108, None, 1, Response::Success).1;
        assert_eq!(answer, [0x7000_0000_0000_0108, 0x0000_0001_0000_0000]);
    }

    #[test]
    fn pages_and_ranges_by_hand() {
        let context = InvalTag::new(3);
        let head = 0x3000_0003_0000_0000;
        let page = |depth| Command::Page {
            context,
            iova: Iova::new(0x4000_5000),
            size: PageSize::SIZE_4K,
            depth,
        };
        let words = |command| invalidate(command).unwrap().1;
        assert_eq!(words(page(Depth::LeafOnly)), [head, 0x4000_5000]);
        assert_eq!(words(page(Depth::AllLevels)), [head, 0x4000_5002]);
        let range = |start, lg2_pages| Command::Range {
            context,
            run: Run::PowerOfTwo { start: Iova::new(start), lg2_pages },
            granule: PageSize::SIZE_4K,
            depth: Depth::AllLevels,
        };
        assert_eq!(words(range(0x4000_6000, 1)), [head, 0x4000_6003]);
        assert_eq!(words(range(0x4000_0000, 2)), [head, 0x4000_1003]);
        assert_eq!(words(range(0x4000_0000, 9)), [head, 0x400f_f003]);
        let most = words(range(0, MAX_LG2_PAGES));
        assert_eq!(most, [head, 0x0003_ffff_ffff_f003]);
        // One more, and the first zero is where all is meant anyway.
        assert_eq!(words(range(0, 40)), domain(3).1);
        assert_eq!(words(range(0, 52)), domain(3).1);
    }

    /// Checks the size that an address encodes: the lowest zero from bit 12 is the top bit of the
    /// offset.
    #[test]
    fn every_exponent_covers_what_it_says() {
        for lg2_pages in 1..=u32::from(MAX_LG2_PAGES) {
            let start = 0x5a5a_5000u64 << 20;
            let (_, [_, word]) = some(1, start, lg2_pages, Depth::LeafOnly);
            let zero = (12..64).find(|bit| word >> bit & 1 == 0).unwrap();
            assert_eq!(zero + 1, 12 + lg2_pages);
            assert_eq!(word >> (zero + 1), start >> (zero + 1));
        }
    }
}
