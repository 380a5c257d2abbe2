//! Takes a unit over from a kernel that crashed, with streams that stay at work through its tables.
//!
//! IHI 0070, sections 3.5 (queues), 3.11, 6.3.9 (CR0), 6.3.15 (GBPA) and 6.3.24 (STRTAB_BASE). The base of the stream
//! table is writable only while the unit is disabled, and then `GBPA` aborts all accesses or passes all of them: so
//! the former kernel's table stays in place, with its unnamed streams closed, while the queues are exchanged under
//! running translation. `GBPA.ABORT` is set before, and counts if the unit has to be disabled after all.
//!
//! Not supported: enhanced command queues of the former kernel, which fetch nothing unless it writes to them; accesses
//! that it has left stalled.

use super::command::SmmuTag;
use super::features::Features;
use super::former::{FormerStreams, KeptStream, KeptTags, reserve};
use super::machine::SmmuHardware;
use super::queue::MoreQueues;
use super::tables::{AttachedStage, Attachment, StreamTable};
use super::unit::{Config, EnableState, Smmu, SmmuQueues};
use crate::at_work::AtWork;
use crate::chassis::OperationState;
use crate::chassis::arm::WhenDisabled;
use crate::handover::AdoptError;
use crate::turn::TurnWait;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::addr::{Asid, PageSize, StreamId, Vmid};
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::{FormerMemory, Mmio, TableClaims, UnitPlatform};
use portolan_spec::smmuv3::{reg, ste};

impl KeptTags {
    /// The tag of the stage that invalidations name.
    fn stage(self) -> AttachedStage {
        let Self { asid, vmid } = self;
        let tag = match asid {
            0 if vmid != 0 => SmmuTag::Vmid(Vmid::new(vmid)),
            _ => SmmuTag::Asid(Asid::new(asid)),
        };
        AttachedStage { tag, nested: false }
    }
}

impl<P: UnitPlatform> Smmu<P> {
    /// As [`Smmu::enable`], but the streams in `keep` go on through the tables that the system before left in memory,
    /// until they are moved. For a kernel that starts after a crash, and has to write its memory to a disk that is
    /// still at work. Returns the streams that were kept: all others are blocked or those of [`Config::at_work`], also
    /// those whose old entry blocks, cannot be read, terminates accesses without a substream, or has an identifier that
    /// is needed otherwise. Those that passed through are kept with leave alone
    /// ([`FormerMemory::passing`]). If none is kept, the unit has a table of its own as by [`Smmu::enable`].
    ///
    /// At most eleven words of `former` are read for each stream. `claims` have the memory of the old stream table, or
    /// of its first level: it stays in use, and names as many streams as the former kernel wanted. Page requests and
    /// substreams are not kept.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`AdoptError::Iommu`] as [`Smmu::enable`]; [`AdoptError::Register`] for attributes of memory by which the unit
    /// does not find what this driver writes; [`AdoptError::Shape`] and [`AdoptError::Claim`] for a table that is not
    /// in the memory of `claims`. The unit is then as it was, and [`Smmu::enable`] blocks all its streams; once the
    /// table has changed, they are blocked if the unit can be disabled.
    pub fn take_over(
        registers: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
        keep: &[StreamId],
        former: FormerMemory<'_>,
        claims: &mut TableClaims<'_>,
    ) -> Result<(Self, Vec<StreamId>), AdoptError> {
        let features = Features::read(&registers)?.on_board(config.coherency, config.update);
        config.reserved.within(features.output_lg2);
        let machine = SmmuHardware::new(registers, mem, clock, config.limit, features.coherent);
        let machine = Arc::new(machine);
        let former = FormerStreams::of(&machine.registers, &features, former)?;
        let mut kept = match &former {
            Some(former) => former.all_kept(keep)?,
            None => Vec::new(),
        };
        let queues = Self::queues(&machine, features, &config, MoreQueues::None)?;
        reserve(&queues.shared, &mut kept);
        match former.filter(|_| !kept.is_empty()) {
            Some(former) => {
                let table = kept_table(&queues, &former, &config, &kept, claims);
                let table = table.inspect_err(|_| queues.free())?;
                let unit = Self::of(queues, table, config).go_on_keeping(&kept)?;
                Ok((unit, kept.iter().map(|one| one.stream).collect()))
            }
            None => Ok((Self::enable_over(queues, config)?, Vec::new())),
        }
    }

    /// Has the unit go on with `kept` over this driver's queues.
    fn go_on_keeping(self, kept: &[KeptStream]) -> Result<Self, IommuError> {
        let machine = &*self.shared.machine;
        // From here on a failure drops the unit, which disables it.
        self.set_power(EnableState::On);
        self.shared.queue.operation.set(OperationState::Stopped);
        self.table.take(machine, kept);
        for one in kept {
            let wait = TurnWait::new(&machine.clock, machine.limit);
            self.streams.of(one.stream).with(wait, |stream| {
                let translates = ste::EATS.get(&one.entry) != ste::eats::ABORT;
                stream.ats = translates && self.shared.features.ats && one.tags.is_some();
                stream.filled = stream.ats;
                if let Some(tags) = one.tags {
                    stream.attachments.begin(None, Attachment::without_domain(tags.stage()));
                }
            })?;
        }
        self.restart_queues()?;
        for AtWork { stream, .. } in &self.config.at_work {
            let named = |one: &KeptStream| one.stream == *stream;
            if !kept.iter().any(named) {
                self.pass_at_work(*stream)?;
            }
        }
        Ok(self)
    }

    /// Passes a stream through that firmware has at work. One that the unit does not have is passed over.
    fn pass_at_work(&self, stream: StreamId) -> Result<(), IommuError> {
        let target = super::attach::passed_through(&self.shared.features);
        match self.switch(stream, target) {
            Err(AttachError::Iommu(error)) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// The former kernel's table, claimed, for a unit that aborts accesses should it be disabled. The unit sees nothing of
/// it yet.
fn kept_table<P: UnitPlatform>(
    queues: &SmmuQueues<P>,
    former: &FormerStreams<'_>,
    config: &Config,
    kept: &[KeptStream],
    claims: &mut TableClaims<'_>,
) -> Result<StreamTable<P>, AdoptError> {
    let machine = &*queues.shared.machine;
    let (offset, recorded) = (reg::CR1, u64::from(reg::cr1::WRITE_BACK));
    // Not writable meanwhile. Where walks are not coherent, what is written is in memory by any attributes.
    let value = machine.registers.read32(offset).into();
    if machine.coherent && value != recorded {
        return Err(AdoptError::Register { offset, value, recorded });
    }
    let shape = &former.shape;
    let size = PageSize::of_lg2(shape.bytes_lg2().max(PageSize::SIZE_4K.lg2()));
    if !shape.root.is_aligned(size) {
        return Err(AdoptError::Shape { root: shape.root });
    }
    claims.claim(shape.root, size)?;
    machine.set_bypass(WhenDisabled::Abort)?;
    Ok(StreamTable::keeping(machine, shape, config.blocking, kept)?)
}
