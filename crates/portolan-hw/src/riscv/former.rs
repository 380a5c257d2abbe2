//! A unit of a kernel that crashed, taken over with streams that stay at work through its tables.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Device-Directory-Table",
//! "Device-directory-table pointer" (6.5) and "Features-control register" (6.4). From one directory to another there
//! is no way but through Off, so that the former root stays where it is: where it holds contexts, those of
//! unnamed streams are closed in it, and else it leads to new pages, by one store each, and to nothing where no stream
//! goes on. The queues are exchanged meanwhile. PSCIDs and GSCIDs stay the former kernel's: until the unit has
//! forgotten everything, these tag what it has cached of the same tables.
//!
//! Not supported: process directories.

use super::command::{RiscvControl, RiscvTag};
use super::features::{Config, RiscvFeature};
use super::queue::RiscvShared;
use super::tables::{Directory, DirectoryShape, KeptContext, Remotes, Streams, Tables};
use super::takeover::{close, has_features, start, stop_queues};
use super::unit::{RiscvAllocations, RiscvIommu};
use crate::chassis::OperationState;
use crate::chassis::book::{Attachment, Book};
use crate::chassis::entry::Words;
use crate::chassis::handed::Adopted;
use crate::handover::AdoptError;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::addr::{PageSize, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{FormerMemory, OutOfTableMemory, TableClaims, UnitPlatform};
use portolan_spec::riscv::PPN;
use portolan_spec::riscv::context::{
    ATTRIBUTES, CONTROL, DIRECTORY, FIRST, GSCID, MODE, PSCID, SECOND, TRANSLATES, V,
};
use portolan_spec::riscv::reg::{self, directory};

impl KeptContext {
    /// Tags of the stages that have tables.
    fn tags(&self) -> [Option<RiscvTag>; 2] {
        let Self { words, .. } = self;
        let first = RiscvTag::First(PSCID.of(words[ATTRIBUTES]) as u32);
        let second = RiscvTag::Second(GSCID.of(words[SECOND]) as u32);
        let has = |word: usize| MODE.of(words[word]) != 0;
        [has(SECOND).then_some(second), has(FIRST).then_some(first)]
    }

    /// The tag that invalidations name; `None` if the stream passes through.
    fn tag(&self) -> Option<RiscvTag> {
        self.tags().into_iter().flatten().next()
    }
}

/// The device directory that a former kernel left.
pub(super) struct FormerDirectory<'r> {
    pub(super) root: PhysAddr,
    pub(super) shape: DirectoryShape,
    memory: FormerMemory<'r>,
}

impl<'r> FormerDirectory<'r> {
    /// The directory that the unit uses, if it uses one, as far as it has numbers of `lg2` bits.
    ///
    /// # Errors
    /// [`IommuError::Nonsense`] for a mode that there is not.
    fn of<P: UnitPlatform>(
        control: &RiscvControl<P>,
        lg2: u32,
        memory: FormerMemory<'r>,
    ) -> Result<Option<Self>, IommuError> {
        let value = control.directory()?;
        let levels = match directory::MODE.of(value).checked_sub(directory::ONE_LEVEL) {
            None => return Ok(None),
            Some(below @ 0..=2) => below as u32 + 1,
            Some(_) => return Err(IommuError::Nonsense { offset: reg::DIRECTORY, value }),
        };
        let shape = DirectoryShape::of_levels(levels, control.features.context_words(), lg2);
        Ok(Some(Self { root: PhysAddr::new(PPN.of(value) << 12), shape, memory }))
    }

    /// The context with which `stream` goes on, if it lets something through that can be kept.
    fn kept(&self, stream: StreamId) -> Option<KeptContext> {
        let stream = Directory::has(self.shape.lg2, stream)?;
        let mut page = self.root.get();
        for level in (0..self.shape.levels - 1).rev() {
            let word =
                self.memory.word(PhysAddr::new(page + self.shape.index(stream, level) * 8))?;
            page = Some(PPN.of(word) << 12).filter(|_| word & V != 0)?;
        }
        let first = page + self.shape.slot(stream) as u64 * 8;
        let mut words = Words::default();
        for (number, word) in (0..).zip(words.iter_mut().take(self.shape.words)) {
            *word = self.memory.word(PhysAddr::new(first + number * 8))?;
        }
        let valid = words[CONTROL] & (V | DIRECTORY) == V;
        valid.then_some(KeptContext { stream, words })
    }

    /// The streams of `keep` that can go on, in order; those that pass through with leave alone.
    fn all_kept(&self, keep: &[StreamId]) -> Result<Vec<KeptContext>, IommuError> {
        let mut kept: Vec<KeptContext> = Vec::new();
        kept.try_reserve(keep.len()).map_err(|_| OutOfTableMemory { size: PageSize::SIZE_4K })?;
        kept.extend(keep.iter().filter_map(|stream| self.kept(*stream)));
        kept.retain(|one| self.memory.passes().is_some() || one.tag().is_some());
        kept.sort_by_key(|one| one.stream);
        kept.dedup_by_key(|one| one.stream);
        Ok(kept)
    }
}

/// Takes the identifiers of `all` out of use, and leaves out the streams whose identifiers are needed otherwise.
fn reserve<P: UnitPlatform>(shared: &RiscvShared<P>, all: &mut Vec<KeptContext>) {
    let mut held: Vec<RiscvTag> = Vec::new();
    all.retain(|one| {
        one.tags().into_iter().flatten().all(|tag| {
            let free = match tag {
                // No domain has the identifier 0.
                RiscvTag::First(0) | RiscvTag::Second(0) => true,
                _ if held.contains(&tag) => true,
                RiscvTag::First(id) => shared.firsts.take_this(id),
                RiscvTag::Second(id) => shared.seconds.take_this(id),
            };
            if free {
                held.push(tag);
            }
            free
        })
    });
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// As [`RiscvIommu::enable`], but the streams in `keep` go on through the tables that the system before left in
    /// memory, until they are moved. For a kernel that starts after a crash, and has to write its memory to a disk
    /// that is still at work. Returns the streams that were kept: all others are blocked or reach what
    /// [`Config::reserved`] names for them, also those whose old context is not valid, cannot be read, has a process
    /// directory or an identifier that is needed otherwise. Those that passed through are kept with leave alone
    /// ([`FormerMemory::passing`]). If none is kept, the unit has a directory of its own as by [`RiscvIommu::enable`].
    ///
    /// At most ten words of `former` are read for each stream. `claims` have the page of the old root: it stays in use,
    /// and has room for as many streams as the former kernel wanted. Page requests and PASIDs are not kept; messages go
    /// on through an MSI page table that the old context names.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`AdoptError::Iommu`] as [`RiscvIommu::enable`]; [`AdoptError::Register`] for features that have to change, and
    /// [`AdoptError::Claim`] for a root that is not in the memory of `claims`. The unit is then as it was, and
    /// [`RiscvIommu::enable`] blocks all its streams; once its queues were stopped, they are blocked if the unit
    /// follows.
    pub fn take_over(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
        keep: &[StreamId],
        former: FormerMemory<'_>,
        claims: &mut TableClaims<'_>,
    ) -> Result<(Self, Vec<StreamId>), AdoptError> {
        let (features, own) = Self::offered(&regs, &mut config)?;
        let control = RiscvControl::new(regs, mem, clock, &config, features);
        let directory = FormerDirectory::of(&control, config.streams_lg2, former)?;
        let kept = match &directory {
            Some(directory) => directory.all_kept(keep)?,
            None => Vec::new(),
        };
        let Some(former) = directory.filter(|_| !kept.is_empty()) else {
            return Ok((Self::enable_over(control, own, config)?, Vec::new()));
        };
        if !has_features(&control, config.signal)? {
            let (offset, value) = (reg::FEATURES, control.read(reg::FEATURES)?.into());
            return Err(AdoptError::Register { offset, value, recorded: 0 });
        }
        config.streams_lg2 = former.shape.lg2;
        claims.claim(former.root, PageSize::SIZE_4K)?;
        Ok(Self::keeping(control, config, &former, kept)?)
    }

    /// The unit with `kept` over this driver's queues.
    fn keeping(
        control: RiscvControl<P>,
        config: Config,
        former: &FormerDirectory<'_>,
        mut kept: Vec<KeptContext>,
    ) -> Result<(Self, Vec<StreamId>), IommuError> {
        let mut parts = RiscvAllocations::new(&control.mem, &config, &control.features)?;
        let messages = parts.messages.take();
        let shared = Arc::new(RiscvShared::of(control, parts, &config));
        reserve(&shared, &mut kept);
        let directory = Directory::filled(&shared.control.mem, former.shape, &kept);
        let directory = directory.inspect_err(|_| shared.free_queues())?;
        let ats = shared.control.features.has.contains(RiscvFeature::ATS);
        let translates = |one: &&KeptContext| ats && one.words[CONTROL] & TRANSLATES != 0;
        let mut remotes = Remotes::default();
        remotes.streams.extend(kept.iter().filter(translates).map(|one| one.stream));
        let processes = BTreeMap::new();
        let mut streams = Streams::new(Tables { directory, messages, processes, remotes });
        for one in &kept {
            streams.begin((one.stream, 0), Attachment::without_domain(one.tag()));
        }
        let (book, adopted) = (Book::new(streams), Adopted::default());
        let unit = Self { shared, book, config, adopted };
        unit.go_on_keeping(former.root, &kept).inspect_err(|_| {
            unit.shared.operation.set(OperationState::Stopped);
            let _ = close(&unit.shared.control);
        })?;
        Ok((unit, kept.iter().map(|one| StreamId::new(one.stream)).collect()))
    }

    /// Exchanges the queues, with `kept` in the directory at `root` and nothing else.
    fn go_on_keeping(&self, root: PhysAddr, kept: &[KeptContext]) -> Result<(), IommuError> {
        let control = &self.shared.control;
        stop_queues(control)?;
        self.book.with(self.turn().always(), |streams| {
            streams.state.directory.move_to(&control.mem, root);
        })?;
        start(&self.shared, self.config.signal)?;
        self.keep_at_work(&|stream| kept.iter().any(|one| one.stream == stream.get()))
    }
}
