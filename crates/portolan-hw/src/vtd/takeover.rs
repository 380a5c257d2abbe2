//! Taking a unit over from firmware or an earlier system, whose translation may be on.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2 (turning
//! a queue off), 11.4.4 and 11.4.5 (setting the root while translation is on). Turning translation
//! off lets DMA under way through with its addresses as they are, so it stays on: the unit changes
//! from the old root to the new one.

use portolan::addr::PhysAddr;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Mmio, UnitPlatform};

use super::config::{Config, Takeover};
use super::control::{Switch, VtdControl};
use super::quirks::Quirks;
use super::tables::Mode;
use crate::chassis::{Present, Published, wait_for};
use portolan_spec::vtd::reg::{self, command, fsts, queue, root_mode};

/// State in which a unit was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InheritedTranslation {
    Nothing,
    /// It translates, in the mode that it is to be used in.
    Translation,
}

/// The root that the unit has, or is to have.
#[derive(Debug)]
pub(super) struct Root {
    address: u64,
    inherited: InheritedTranslation,
    /// 1 once the unit has it.
    set: Published,
}

impl Root {
    pub(super) fn new(table: PhysAddr, mode: Mode, inherited: InheritedTranslation) -> Self {
        Self { address: table.get() | mode_bits(mode), inherited, set: Published::default() }
    }

    /// Value of the address register.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn inherited(&self) -> InheritedTranslation {
        self.inherited
    }

    /// Tells if the unit still has another.
    pub(super) fn is_due(&self) -> bool {
        self.set.get() == 0
    }

    pub(super) fn is_set(&self) {
        self.set.publish(1);
    }
}

fn mode_bits(mode: Mode) -> u64 {
    match mode {
        Mode::Legacy => root_mode::LEGACY,
        Mode::Scalable => root_mode::SCALABLE,
    }
}

/// State in which the unit is found; [`IommuError::Unsupported`] if that cannot be changed to the
/// one of `config` without a moment in which devices reach everything.
pub(super) fn inherited(
    regs: &impl Mmio,
    config: &Config,
) -> Result<InheritedTranslation, IommuError> {
    let (status, root) = (regs.present32(reg::GSTS)?, regs.present64(reg::RTADDR)?);
    let stays = config.chip.contains(Quirks::KEEP_TRANSLATION);
    let bypass = config.takeover != Takeover::Translated && !stays;
    if status & command::TE == 0 || bypass {
        return Ok(InheritedTranslation::Nothing);
    }
    if root & root_mode::MASK == mode_bits(config.mode) {
        Ok(InheritedTranslation::Translation)
    } else {
        Err(IommuError::Unsupported)
    }
}

/// Stops all parts that were left running: translation, unless it is inherited, then the queue,
/// once that is empty. The remapping of interrupts as well if the driver is to do it: otherwise it
/// is the embedder's.
pub(super) fn quiet<P: UnitPlatform>(
    control: &VtdControl<P>,
    inherited: InheritedTranslation,
    remaps: Option<()>,
) -> Result<(), IommuError> {
    if inherited == InheritedTranslation::Nothing {
        control.switch(command::TE, Switch::Off)?;
    }
    // The old table is in memory that has no owner any more.
    if remaps.is_some() {
        control.switch(command::IRE, Switch::Off)?;
    }
    if control.status()? & command::QIE == 0 {
        return Ok(());
    }
    // Errors of before keep the queue from draining.
    let errors = fsts::IQE | fsts::ICE | fsts::ITE;
    control.regs.write32(reg::FSTS, errors);
    let regs = &control.regs;
    let at = |offset| regs.present64(offset).map(|index| queue::OFFSET.of(index));
    let empty = || Ok((at(reg::IQH)? == at(reg::IQT)?).then_some(()));
    wait_for(&control.clock, control.limit, Awaited::Completion, empty)?;
    control.switch(command::QIE, Switch::Off)
}
