//! Registers of a unit, commands, tags, and words of contexts.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, chapter "Memory-mapped register interface"
//! (registers of 64 bits may be read and written in halves, and a write of both is the upper half's
//! first), sections "Command-Queue" and "Device-context fields", and the extensions for ranges and
//! for entries above the leaves.
//!
//! *Context.* Interrupt, but for functions that wait for the unit (atomic).

use super::features::{Config, Features, MAX_LG2_PAGES, RiscvFeature};
use crate::chassis::entry::{self, WORDS};
use crate::chassis::{Present, Words, book, wait_for, wait_until};
use portolan::addr::{InvalTag, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::inval::{Command, Depth};
use portolan::iommu::{Awaited, IommuError};
use portolan::iopf::Response;
use portolan::platform::{Mmio, Nanos, UnitPlatform};
use portolan_spec::riscv::command::{
    FUNCTION, OPCODE, device, directory, fence, opcode, translations as of,
};
use portolan_spec::riscv::context::{
    ATTRIBUTES, CONTROL, FIRST, GSCID, MODE, PSCID, ROOT, SECOND, THREE_LEVELS, V,
};
use portolan_spec::riscv::reg::{self, queue};

/// A command and the kind by which it is counted.
pub(super) type Counted = (CommandKind, Words);

/// Behind everything in front of it, and behind devices' reads and writes through the translations
/// that are forgotten now.
const ORDERED: u64 = OPCODE.at(opcode::FENCE) | fence::PR.at(1) | fence::PW.at(1);

/// Stores `data` at `address`, which is aligned to 4, once everything in front is complete.
pub(super) fn store(address: u64, data: u32) -> Words {
    let word = ORDERED | fence::AV.at(1) | fence::DATA.at(data.into());
    [word, fence::ADDRESS.at(address >> 2)]
}

/// Command without an effect, for any place in the queue.
pub(super) fn nothing() -> Words {
    [ORDERED, 0]
}

/// Holds back the commands behind it until everything in front is complete: they are fetched once
/// the head has passed this.
pub(super) fn fence() -> Counted {
    (CommandKind::Fence, [OPCODE.at(opcode::FENCE), 0])
}

/// Forget the device context of `stream`.
pub(super) fn context_of(stream: u32) -> Counted {
    let named = directory::DV.at(1) | directory::DID.at(stream.into());
    (CommandKind::Device, [devices().1[0] | named, 0])
}

/// Forget the process context of `pasid` of `stream`.
pub(super) fn process(stream: u32, pasid: u32) -> Counted {
    let named =
        directory::DV.at(1) | directory::DID.at(stream.into()) | directory::PID.at(pasid.into());
    let word = OPCODE.at(opcode::DIRECTORY) | FUNCTION.at(directory::PROCESS);
    (CommandKind::Process, [word | named, 0])
}

/// Forget the device contexts of all devices, and the directory entries that lead to them.
pub(super) fn devices() -> Counted {
    let word = OPCODE.at(opcode::DIRECTORY) | FUNCTION.at(directory::DEVICES);
    (CommandKind::Devices, [word, 0])
}

/// Forget all translations of all contexts: first stages without a second, and second stages.
pub(super) fn translations() -> [Counted; 2] {
    let word = |function| OPCODE.at(opcode::TRANSLATIONS) | FUNCTION.at(function);
    [(CommandKind::All, [word(of::VMA), 0]), (CommandKind::Guests, [word(of::GVMA), 0])]
}

/// Word 0 of a command that forgets translations of `tag`.
fn tagged(tag: RiscvTag) -> u64 {
    let word = |function| OPCODE.at(opcode::TRANSLATIONS) | FUNCTION.at(function);
    match tag {
        RiscvTag::First(id) => word(of::VMA) | of::PSCV.at(1) | of::PSCID.at(id.into()),
        RiscvTag::Second(id) => word(of::GVMA) | of::GV.at(1) | of::GSCID.at(id.into()),
    }
}

/// Forget all of `tag`.
pub(super) fn context(tag: RiscvTag) -> Counted {
    let kind = match tag {
        RiscvTag::First(_) => CommandKind::Context,
        RiscvTag::Second(_) => CommandKind::Guest,
    };
    (kind, [tagged(tag), 0])
}

/// Forget all translations through a first stage whose tables are behind the second stage of `tag`:
/// none if that is a first stage itself.
pub(super) fn through_both(tag: RiscvTag) -> Option<Counted> {
    let RiscvTag::Second(id) = tag else { return None };
    let word = OPCODE.at(opcode::TRANSLATIONS) | FUNCTION.at(of::VMA);
    let word = word | of::GV.at(1) | of::GSCID.at(id.into());
    Some((CommandKind::Both, [word, 0]))
}

/// Forget `2^lg2_pages` pages of `tag` around `start`: all of the tag where the unit has no command for
/// that.
fn some(has: RiscvFeature, tag: RiscvTag, start: u64, lg2_pages: u32, depth: Depth) -> Counted {
    let above = match depth {
        Depth::LeafOnly => 0,
        Depth::AllLevels => of::NL.at(1),
    };
    let ranges = lg2_pages == 0 || has.contains(RiscvFeature::RANGES);
    let levels = above == 0 || has.contains(RiscvFeature::NON_LEAF);
    if lg2_pages > u32::from(MAX_LG2_PAGES) || !ranges || !levels {
        return context(tag);
    }
    let first = start >> (12 + lg2_pages) << lg2_pages;
    let address = match lg2_pages {
        0 => of::PAGE.at(first),
        // Ones below the top bit of the offset, which is zero.
        lg2 => of::S.at(1) | of::PAGE.at(first | ((1 << (lg2 - 1)) - 1)),
    };
    let kind = match tag {
        RiscvTag::First(_) => CommandKind::Pages,
        RiscvTag::Second(_) => CommandKind::GuestPages,
    };
    (kind, [tagged(tag) | of::AV.at(1) | above, address])
}

/// Forget the smallest page at `address`, and an interrupt's entry there: leaves of `tag`.
pub(super) fn page(has: RiscvFeature, tag: RiscvTag, address: u64) -> Counted {
    some(has, tag, address, 0, Depth::LeafOnly)
}

/// A device and one of its address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceSpace {
    pub(super) stream: StreamId,
    pub(super) pasid: Option<Pasid>,
    /// Width of the numbers of devices: with more than 16 bits there are segments.
    pub(super) lg2: u32,
}

impl DeviceSpace {
    fn word(self, function: u64) -> u64 {
        let stream = u64::from(self.stream.get());
        let segment = device::DSV.at(1) | device::DSEG.at(stream >> 16);
        let segment = if self.lg2 > 16 { segment } else { 0 };
        let named = |pasid: Pasid| device::PV.at(1) | device::PID.at(pasid.get().into());
        let named = self.pasid.map_or(0, named);
        let word = OPCODE.at(opcode::DEVICE) | FUNCTION.at(function);
        word | device::RID.at(stream & 0xffff) | segment | named
    }
}

/// Has a device forget `range`, or all addresses. Sizes are powers of two: where the range is none, the
/// smallest that holds it.
pub(super) fn forget(to: DeviceSpace, range: Option<IovaRange>) -> Counted {
    let (start, last) = match range {
        Some(range) => (range.start().get() >> 12, range.last().get() >> 12),
        None => (0, u64::MAX >> 12),
    };
    let lg2 = 64 - (start ^ last).leading_zeros();
    let page = match lg2 {
        0 => device::PAGE.at(start),
        // Ones below the top bit of the offset, which is zero.
        lg2 => device::SIZE.at(1) | device::PAGE.at(start >> lg2 << lg2 | ((1 << (lg2 - 1)) - 1)),
    };
    (CommandKind::DeviceTlb, [to.word(device::INVALIDATE), page])
}

/// Tells a device the response to a group of its page requests.
pub(super) fn respond(to: DeviceSpace, group: u16, response: Response) -> Counted {
    let code = match response {
        Response::Success => device::SUCCESS,
        Response::Invalid => device::INVALID,
        Response::Failure => device::FAILURE,
    };
    let what = device::GROUP.at(group.into()) | device::CODE.at(code);
    (CommandKind::Response, [to.word(device::RESPOND), what])
}

/// The command for an invalidation of translations; `None` for one of configuration.
///
/// An address names leaves that hold it. A unit that keeps a large page in pieces may take that for one
/// of the pieces: a page that is larger than the smallest is a range, or goes with its context.
pub(super) fn invalidate(features: &Features, command: Command) -> Option<Counted> {
    let has = features.has;
    Some(match command {
        Command::Page { context, iova, size, depth } => {
            let lg2 = size.lg2().saturating_sub(12);
            some(has, RiscvTag::of(context), iova.get(), lg2, depth)
        }
        Command::Range { context, run, granule, depth } => {
            let range = run.range(granule);
            let differ = (range.start().get() ^ range.last().get()) >> PageSize::SIZE_4K.lg2();
            let lg2 = 64 - differ.leading_zeros();
            some(has, RiscvTag::of(context), range.start().get(), lg2, depth)
        }
        Command::Context { context: tag } => context(RiscvTag::of(tag)),
        Command::Global | Command::Configuration { .. } => return None,
    })
}

/// Tag of the translations of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RiscvTag {
    /// A first stage without a second: its PSCID.
    First(u32),
    /// A second stage without a first: its GSCID.
    Second(u32),
}

/// Bit of a context's name that says that it is a second stage's: identifiers are of 20 bits at most.
const OF_SECOND: u32 = 1 << 31;

impl RiscvTag {
    /// Of the domain that is named so.
    pub(super) fn of(context: InvalTag) -> Self {
        match context.get() & OF_SECOND {
            0 => Self::First(context.get()),
            _ => Self::Second(context.get() & !OF_SECOND),
        }
    }

    /// Name of the domain.
    pub(super) fn context(self) -> InvalTag {
        InvalTag::new(match self {
            Self::First(id) => id,
            Self::Second(id) => id | OF_SECOND,
        })
    }
}

/// An attachment, by its tag: nothing where accesses pass through.
pub(super) type Attachment = book::Attachment<Option<RiscvTag>>;

/// The context of a stream that is nowhere.
pub(super) const NOWHERE: entry::Words = [0; WORDS];

/// The context of a stream that passes through: neither stage has tables.
pub(super) const PASSING: entry::Words = {
    let mut words = NOWHERE;
    words[CONTROL] = V;
    words
};

/// The context of a stream that tables of `levels` levels from `root` translate, whose translations are
/// tagged by `tag`.
pub(super) fn translated(tag: RiscvTag, root: PhysAddr, levels: u32) -> entry::Words {
    let mode = THREE_LEVELS + u64::from(levels.saturating_sub(3));
    let tables = MODE.at(mode) | ROOT.at(root.get() >> 12);
    let mut words = PASSING;
    match tag {
        RiscvTag::First(id) => {
            words[FIRST] = tables;
            words[ATTRIBUTES] = PSCID.at(id.into());
        }
        RiscvTag::Second(id) => words[SECOND] = tables | GSCID.at(id.into()),
    }
    words
}

/// A process context that means the same as the context `words` of a whole stream; `None` of a
/// second stage, which is that of all of a stream's address spaces or of none.
pub(super) fn process_context(words: &entry::Words) -> Option<entry::Words> {
    let mut process = NOWHERE;
    process[0] = words[CONTROL] & V | words[ATTRIBUTES];
    process[1] = words[FIRST];
    (words[SECOND] == 0).then_some(process)
}

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        Wait = "IOFENCE.C" => "IOFENCE.C that stores.";
        Fence = "IOFENCE.C (fence)" => "IOFENCE.C that only keeps what is behind it back.";
        Device = "IODIR.INVAL_DDT" => "IODIR.INVAL_DDT of one device.";
        Devices = "IODIR.INVAL_DDT (all)" => "IODIR.INVAL_DDT of all devices.";
        Process = "IODIR.INVAL_PDT" => "IODIR.INVAL_PDT.";
        Pages = "IOTINVAL.VMA" => "IOTINVAL.VMA of addresses.";
        Context = "IOTINVAL.VMA (context)" => "IOTINVAL.VMA of a tag.";
        Both = "IOTINVAL.VMA (guest)" => "IOTINVAL.VMA of all tags whose second stage has a tag.";
        All = "IOTINVAL.VMA (all)" => "IOTINVAL.VMA of all tags without a second stage.";
        GuestPages = "IOTINVAL.GVMA" => "IOTINVAL.GVMA of addresses.";
        Guest = "IOTINVAL.GVMA (context)" => "IOTINVAL.GVMA of a tag.";
        Guests = "IOTINVAL.GVMA (all)" => "IOTINVAL.GVMA of all tags.";
        DeviceTlb = "ATS.INVAL" => "ATS.INVAL.";
        Response = "ATS.PRGR" => "ATS.PRGR.";
        Replaced = "IOFENCE.C (replaced)" => "IOFENCE.C in place of a refused command.";
    }
}

pub mod refusal {
    //! The codes with which [`portolan::iommu::IommuError::Refused`] says why: the bits of `cqcsr` that the
    //! unit set when it stopped.

    use portolan_spec::riscv::reg::queue;

    /// The command is malformed, or the unit does not have it.
    pub const ILLEGAL: u32 = queue::ILLEGAL;
    /// The command could not be read, or its value could not be stored.
    pub const MEMORY: u32 = queue::MEMORY_FAULT;
}

/// Registers, memory, clock and features, which all parts of a unit need.
pub(super) struct RiscvControl<P: UnitPlatform> {
    pub(super) regs: P::Registers,
    pub(super) mem: P::Memory,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
}

impl<P: UnitPlatform> RiscvControl<P> {
    /// The registers of a unit with `features`.
    pub(super) fn new(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        config: &Config,
        features: Features,
    ) -> Self {
        Self { regs, mem, clock, limit: config.limit, features, counters: Counters::default() }
    }

    /// A register that never reads as all ones while the unit is there.
    pub(super) fn read(&self, offset: usize) -> Result<u32, IommuError> {
        self.regs.present32(offset)
    }

    /// Writes a register of 64 bits. The half with the mode or the length of a structure comes last, so
    /// that it never counts with half an address: [`Mmio::write64`] may write it first.
    pub(super) fn write(&self, offset: usize, value: u64) {
        self.regs.write32(offset + 4, (value >> 32) as u32);
        self.regs.write32(offset, value as u32);
    }

    /// Writes a register of 64 bits that keeps only values that the unit supports.
    pub(super) fn install(&self, offset: usize, value: u64) -> Result<(), IommuError> {
        self.write(offset, value);
        match self.regs.read64(offset) {
            u64::MAX => Err(IommuError::Gone),
            kept if kept == value => Ok(()),
            _ => Err(IommuError::Unsupported),
        }
    }

    /// Waits until a queue's last change is done, and writes its control register.
    pub(super) fn set_queue(&self, control: usize, value: u32) -> Result<(), IommuError> {
        self.await_queue(control, queue::BUSY, 0)?;
        self.regs.write32(control, value);
        Ok(())
    }

    /// Turns a queue on, with `more` of its bits, or off.
    pub(super) fn turn_queue(&self, control: usize, wanted: Turned) -> Result<(), IommuError> {
        let (value, on) = match wanted {
            Turned::On { more } => (queue::ENABLE | more, queue::ON),
            Turned::Off => (0, 0),
        };
        self.set_queue(control, value)?;
        self.await_queue(control, queue::BUSY | queue::ON, on)
    }

    fn await_queue(&self, control: usize, mask: u32, wanted: u32) -> Result<(), IommuError> {
        let reached = || Ok(self.read(control)? & mask == wanted);
        wait_until(&self.clock, self.limit, Awaited::Control, reached)
    }

    /// Value of the directory's register once no change of it is under way.
    pub(super) fn directory(&self) -> Result<u64, IommuError> {
        let look = || {
            let value = self.regs.present64(reg::DIRECTORY)?;
            Ok((reg::directory::BUSY.of(value) == 0).then_some(value))
        };
        wait_for(&self.clock, self.limit, Awaited::Control, look)
    }

    /// Writes the directory's register once no change is under way, and returns its value after.
    pub(super) fn set_directory(&self, value: u64) -> Result<u64, IommuError> {
        self.directory()?;
        self.write(reg::DIRECTORY, value);
        self.directory()
    }
}

/// State to which a queue is turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// Fetched or filled, with further bits of its control register.
    On { more: u32 },
    /// Left alone.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::Iova;
    use portolan::inval::Run;

    fn unit(has: RiscvFeature) -> Features {
        Features { has, version: 0x10, output_lg2: 56 }
    }

    #[test]
    fn commands_by_hand() {
        // AV, PR and PW; the address in units of 4 bytes.
        assert_eq!(store(0x12_3458, 7), [0x0000_0007_0000_3402, 0x4_8d16]);
        assert_eq!(nothing(), [0x3002, 0]);
        assert_eq!(fence().1, [0x0002, 0]);
        assert_eq!(context_of(0x12_3456).1, [0x1234_5602_0000_0003, 0]);
        assert_eq!(process(0x12_3456, 0xa_bcde).1, [0x1234_5602_abcd_e083, 0]);
        assert_eq!(devices().1, [0x0003, 0]);
        assert_eq!(translations().map(|(_, words)| words), [[1, 0], [0x81, 0]]);
        assert_eq!(context(RiscvTag::First(0xf_edcb)).1, [0x1_fedc_b001, 0]);
        assert_eq!(context(RiscvTag::Second(0xfedc)).1, [0x0fed_c002_0000_0081, 0]);
    }

    #[test]
    fn what_devices_are_told_by_hand() {
        let (stream, pasid) = (StreamId::new(0x12_3456), Pasid::new(0xa_bcde));
        let to = |pasid, lg2| DeviceSpace { stream, pasid, lg2 };
        let range = |start, last| IovaRange::new(Iova::new(start), Iova::new(last));
        let words = |range| forget(to(Some(pasid), 24), range).1;
        let who = 0x1234_5603_abcd_e004;
        assert_eq!(words(range(0x4000_5000, 0x4000_5fff)), [who, 0x4000_5000]);
        // Two pages; three pages, which are in four; all.
        assert_eq!(words(range(0x4000_4000, 0x4000_5fff)), [who, 0x4000_4800]);
        assert_eq!(words(range(0x4000_4000, 0x4000_6fff)), [who, 0x4000_5800]);
        assert_eq!(words(None), [who, 0x7fff_ffff_ffff_f800]);
        assert_eq!(words(range(0, u64::MAX)), words(None));
        // Without an address space, and without segments.
        assert_eq!(forget(to(None, 16), None).1[0], 0x0034_5600_0000_0004);
        let told = |response| respond(to(None, 16), 0x155, response).1;
        let who = 0x0034_5600_0000_0084;
        assert_eq!(told(Response::Success), [who, 0x155 << 32]);
        assert_eq!(told(Response::Invalid), [who, 0x1155 << 32]);
        assert_eq!(told(Response::Failure), [who, 0xf155 << 32]);
    }

    #[test]
    fn pages_and_ranges_by_hand() {
        let both = unit(RiscvFeature::NON_LEAF | RiscvFeature::RANGES);
        let context = RiscvTag::First(3).context();
        let page = |lg2, depth| Command::Page {
            context,
            iova: Iova::new(0x4000_5000),
            size: PageSize::of_lg2(lg2),
            depth,
        };
        let words = |command| invalidate(&both, command).unwrap().1;
        let (head, deep) = (0x1_0000_3401, 0x5_0000_3401);
        assert_eq!(words(page(12, Depth::LeafOnly)), [head, 0x1000_1400]);
        assert_eq!(words(page(12, Depth::AllLevels)), [deep, 0x1000_1400]);
        let range = |start, lg2_pages| Command::Range {
            context,
            run: Run::PowerOfTwo { start: Iova::new(start), lg2_pages },
            granule: PageSize::SIZE_4K,
            depth: Depth::LeafOnly,
        };
        // Bit 9 says that it is a range; pages count from bit 10.
        assert_eq!(words(range(0x4000_6000, 1)), [head, 0x1000_1a00]);
        assert_eq!(words(range(0x4000_0000, 2)), [head, 0x1000_0600]);
        assert_eq!(words(range(0x4000_0000, 9)), [head, 0x1003_fe00]);
        assert_eq!(words(range(0, 51)), [head, 0x0fff_ffff_ffff_fe00]);
        assert_eq!(words(range(0, 52)), [0x1_0000_3001, 0]);
        // A block is a range.
        let block = words(page(21, Depth::LeafOnly));
        assert_eq!(block, [head, 0x1003_fe00]);
    }

    #[test]
    fn what_a_unit_has_no_command_for_goes_with_its_context() {
        let context = RiscvTag::Second(3).context();
        let page = |lg2, depth| Command::Page {
            context,
            iova: Iova::new(0x4000_5000),
            size: PageSize::of_lg2(lg2),
            depth,
        };
        let plain = unit(RiscvFeature::empty());
        let words = |command| invalidate(&plain, command).unwrap().1;
        let (some, all) = (0x0000_3002_0000_0481, 0x0000_3002_0000_0081);
        assert_eq!(words(page(12, Depth::LeafOnly)), [some, 0x1000_1400]);
        assert_eq!(words(page(12, Depth::AllLevels)), [all, 0]);
        assert_eq!(words(page(21, Depth::LeafOnly)), [all, 0]);
    }

    /// Checks the size that an address encodes: the lowest zero of the page's number is the top bit
    /// of the offset.
    #[test]
    fn every_exponent_covers_what_it_says() {
        for lg2_pages in 1..=u32::from(MAX_LG2_PAGES) {
            let start = 0x5a5a_5000u64 << 20;
            let (_, [_, word]) =
                some(RiscvFeature::RANGES, RiscvTag::First(1), start, lg2_pages, Depth::LeafOnly);
            let zero = (10..62).find(|bit| word >> bit & 1 == 0).unwrap();
            assert_eq!(zero + 1, 10 + lg2_pages);
            assert_eq!(word >> (zero + 1), start >> 12 >> lg2_pages);
        }
    }
}

#[cfg(test)]
mod streams_tests {
    use super::*;

    #[test]
    fn contexts_by_hand() {
        let root = PhysAddr::new(0x12_3456_7000);
        let first = translated(RiscvTag::First(0xf_edcb), root, 4);
        let wanted = [1, 0, 0xfedc_b000, 0x9000_0000_0123_4567, 0, 0, 0, 0];
        assert_eq!(first, wanted);
        let second = translated(RiscvTag::Second(0xfedc), root, 3);
        let wanted = [1, 0x8fed_c000_0123_4567, 0, 0, 0, 0, 0, 0];
        assert_eq!(second, wanted);
        assert_eq!(translated(RiscvTag::First(1), root, 5)[3] >> 60, 10);
        assert_eq!(PASSING, [1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_tag_is_told_by_its_name() {
        for tag in [RiscvTag::First(1), RiscvTag::First(0xf_ffff), RiscvTag::Second(0xffff)] {
            assert_eq!(RiscvTag::of(tag.context()), tag);
        }
    }
}
