//! Command queues beside the unit's own: a CPU gives its invalidations to one of its own, and CPUs do not meet.
//!
//! IHI 0070, sections 3.5.6 and 6.3.5 (ECMDQ): up to 2^8 queues in control pages, whose place the unit tells. Linux's
//! `tegra241-cmdqv.c` for NVIDIA's: this driver owns the first virtual interface, and guests get none.
//!
//! *Context.* Task.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::smmuv3::{cmdqv, reg};

use super::place::QueuePlace;
use crate::chassis::{Present, wait_until};
use crate::smmuv3::machine::SmmuHardware;

/// Command queues that CPUs use beside the unit's own.
///
/// *Context.* Interrupt: a value.
#[derive(Debug, Default)]
pub enum MoreQueues<R> {
    /// None: all CPUs share the unit's own.
    #[default]
    None,
    /// The unit's enhanced queues, if it has any. Its registers have to be mapped as far as
    /// [`enhanced_queues`] says.
    Enhanced,
    /// Those of NVIDIA's CMDQV, with the registers of its window (ACPI device `NVDA200C`).
    Tegra241(R),
}

/// Enhanced command queues of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnhancedQueues {
    /// Offset of the first control page from the unit's registers.
    pub at: usize,
    /// Control pages, which follow each other.
    pub pages: usize,
    /// Queues of each.
    pub queues: usize,
}

impl EnhancedQueues {
    /// Bytes of the unit's registers, control pages included.
    pub const fn window_bytes(&self) -> usize {
        self.at + self.pages * reg::ECMDQ_PAGE_BYTES
    }

    /// Offset of the queue of this number.
    const fn queue(&self, number: usize) -> usize {
        self.at + number * (reg::ECMDQ_PAGE_BYTES / self.queues)
    }
}

/// Most bytes between a unit's registers and its control pages: a longer way is taken for nonsense.
const FARTHEST: u64 = 1 << 28;

/// Enhanced command queues of the unit with these registers, of which the first two pages are enough. None if it has
/// none, or wants control pages in memory, which this driver does not support.
///
/// # Errors
/// [`IommuError::Gone`]; [`IommuError::Nonsense`] with a register.
pub fn enhanced_queues(registers: &impl Mmio) -> Result<Option<EnhancedQueues>, IommuError> {
    let idr1 = registers.present32(reg::IDR1)?;
    if reg::idr1::ECMDQ.of(idr1.into()) == 0 {
        return Ok(None);
    }
    let idr6 = u64::from(registers.present32(reg::IDR6)?);
    let [pages, queues] = [reg::idr6::PAGES, reg::idr6::QUEUES].map(|lg2| 1usize << lg2.of(idr6));
    let offset = reg::IDR6;
    if pages > reg::ECMDQ_PAGE_BYTES / reg::ECMDQ_PAGE_APART || queues > 1 << 10 {
        return Err(IommuError::Nonsense { offset, value: idr6 });
    }
    let mut first = None;
    for page in 0..pages {
        let offset = reg::ECMDQ_PAGE_BASE + page * reg::ECMDQ_PAGE_APART;
        let value = registers.present64(offset)?;
        if reg::ecmdq::PRESET.of(value) == 0 {
            return Ok(None);
        }
        let at = reg::ecmdq::ADDRESS.of(value) << 12;
        let (first, bytes) = (*first.get_or_insert(at), reg::ECMDQ_PAGE_BYTES as u64);
        let is_next = at == first + page as u64 * bytes;
        if !is_next || at < reg::WINDOW_BYTES as u64 || at > FARTHEST || at % bytes != 0 {
            return Err(IommuError::Nonsense { offset, value });
        }
    }
    // Less than `FARTHEST`.
    let at = first.unwrap_or(0) as usize;
    Ok(Some(EnhancedQueues { at, pages, queues }))
}

/// Places of as many queues as there are CPUs, or as there are queues.
pub(in crate::smmuv3) fn places<P: UnitPlatform>(
    machine: &SmmuHardware<P>,
    more: MoreQueues<P::Registers>,
) -> Result<Vec<QueuePlace<P::Registers>>, IommuError> {
    let cpus = machine.clock.count().max(1);
    Ok(match more {
        MoreQueues::None => Vec::new(),
        MoreQueues::Enhanced => match enhanced_queues(&machine.registers)? {
            None => Vec::new(),
            Some(all) => {
                let count = cpus.min(all.pages * all.queues);
                (0..count).map(|number| QueuePlace::enhanced(all.queue(number))).collect()
            }
        },
        MoreQueues::Tegra241(window) => {
            let param = u64::from(window.present32(cmdqv::PARAM)?);
            let [queues, vintfs] = [cmdqv::QUEUES, cmdqv::VINTFS].map(|lg2| lg2.of(param));
            let Some(lg2) = queues.checked_sub(vintfs).filter(|_| queues <= 7) else {
                return Err(IommuError::Nonsense { offset: cmdqv::PARAM, value: param });
            };
            let window = Arc::new(window);
            let count = cpus.min(1 << lg2);
            (0..count).map(|number| QueuePlace::tegra241(window.clone(), number)).collect()
        }
    })
}

/// Makes CMDQV's first virtual interface the driver's, with `queues` queues, each disabled.
pub(in crate::smmuv3) fn own_interface<P: UnitPlatform>(
    machine: &SmmuHardware<P>,
    window: &P::Registers,
    queues: usize,
) -> Result<(), IommuError> {
    let control = |at: usize, ack: usize, value: u32| {
        window.write32(at, value);
        let enable = value & cmdqv::ENABLE;
        let reached = || Ok(window.present32(ack)? & cmdqv::ENABLE == enable);
        wait_until(&machine.clock, machine.limit, Awaited::Control, reached)
    };
    // Off, it forgets whose its queues were.
    control(cmdqv::CONFIG, cmdqv::STATUS, 0)?;
    control(cmdqv::CONFIG, cmdqv::STATUS, cmdqv::ENABLE)?;
    for number in 0..queues {
        let own = cmdqv::ALLOC_NUMBER.at(number as u64) | cmdqv::ALLOC_VINTF.at(0);
        window.write32(cmdqv::ALLOC + number * 4, own as u32 | cmdqv::ALLOCATED);
    }
    control(cmdqv::VINTF_CONFIG, cmdqv::VINTF_STATUS, 0)?;
    // The owner can be set while the interface is off.
    window.write32(cmdqv::VINTF_CONFIG, cmdqv::HYP_OWN);
    let value = window.present32(cmdqv::VINTF_CONFIG)?;
    if value & cmdqv::HYP_OWN == 0 {
        // A guest's: it takes invalidations of first stages alone.
        return Err(IommuError::Nonsense { offset: cmdqv::VINTF_CONFIG, value: value.into() });
    }
    control(cmdqv::VINTF_CONFIG, cmdqv::VINTF_STATUS, cmdqv::HYP_OWN | cmdqv::ENABLE)
}
