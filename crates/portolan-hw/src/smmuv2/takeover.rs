//! Work before the first stream is moved.
//!
//! Firmware or a kernel may have used the unit before: devices may be at work, with addresses that
//! their owner chose. None of their accesses may come to mean a physical address. So a unit that
//! translates goes on doing so, with streams that match nothing refused from the first write on
//! (USFCFG); then streams are blocked register by register, the unit's copies of their state are
//! dropped, and only then its context banks are turned off, since a bank that is off passes
//! accesses through. A unit that did not translate (CLIENTPD) goes on passing everything until all
//! that is done.
//!
//! *Context.* Task.

use super::banks::WrittenBanks;
use super::config::Config;
use super::config::WriteKind;
use super::features::Selection;
use super::machine::{Bank, SmmuV2Hardware};
use super::quirks::{Implementation, Inherited, Prefetch, Watched};
use super::streams::{Group, GroupDestination, Kept, StreamGroups, StreamMatch, StreamMatching};
use crate::at_work::AtWork;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;
use portolan_spec::smmuv2::bank::actlr;
use portolan_spec::smmuv2::global::{acr, cr0, id7, s2cr, smr};
use portolan_spec::smmuv2::{bank, global};

/// State that was found and set up.
pub(super) struct Taken {
    pub mapping: StreamMatching,
    /// Those that pass through.
    pub groups: StreamGroups,
    pub prefetch: Prefetch,
}

/// Takes the unit over; CR0 is `running` in the end.
pub(super) fn take_over<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    config: &Config,
    running: u32,
) -> Result<Taken, IommuError> {
    let implementation = config.implementation;
    if machine.read(global::CR0)? & cr0::CLIENTPD == 0 {
        machine.configure(global::CR0, running);
    }
    let bypass_bank = bypass_bank(machine, implementation)?;
    let mut mapping = StreamMatching {
        selection: machine.features.selection,
        id_bits: 0x7fff,
        mask_bits: 0x7fff,
        bypass_bank,
    };
    let mut groups = take_streams(machine, &mapping, config)?;
    pass_through(machine, &mapping, &groups)?;
    measure(machine, &mut mapping, &groups)?;
    keep_at_work(machine, &mapping, &mut groups, &config.at_work)?;
    forget_banks(machine)?;
    let prefetch = turn_prefetch_off(machine, implementation)?;
    turn_on(machine, running)?;
    Ok(Taken { mapping, groups, prefetch })
}

/// Gives a unit that this driver has the registers again that it may have lost, with all streams
/// blocked. Translation stays on where it is on, as in [`take_over`].
pub(super) fn restore<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    mapping: &StreamMatching,
    groups: &StreamGroups,
    banks: &WrittenBanks<P>,
    implementation: Implementation,
    running: u32,
) -> Result<(), IommuError> {
    let off = machine.read(global::CR0)? & cr0::CLIENTPD;
    machine.configure(global::CR0, running | off);
    for slot in 0..machine.features.streams as usize {
        mapping.point(machine, slot, None)?;
        mapping.match_streams(machine, slot, None)?;
    }
    pass_through(machine, mapping, &StreamGroups::default())?;
    forget_banks(machine)?;
    turn_prefetch_off(machine, implementation)?;
    banks.write(machine)?;
    for group in &groups.0 {
        mapping.match_streams(machine, group.slot, Some(group.streams))?;
    }
    // Of a unit that has lost its power since, this bit is clear.
    match machine.read(global::CR0)? & cr0::USFCFG {
        0 => Err(IommuError::Stopped),
        _ => turn_on(machine, running),
    }
}

/// Turns all banks off, with what the unit keeps of them forgotten before, and clears all records.
fn forget_banks<P: UnitPlatform>(machine: &SmmuV2Hardware<P>) -> Result<(), IommuError> {
    let banks = || (0..machine.features.banks).map(|n| Bank(n as u8));
    for bank in banks() {
        // A stalled access may keep a synchronisation from its end.
        machine.clear_fault(bank)?;
    }
    machine.forget_everything()?;
    for bank in banks() {
        machine.configure(machine.bank(bank, bank::SCTLR), 0);
        machine.clear_fault(bank)?;
    }
    let old = machine.read(global::GFSR)?;
    machine.write(WriteKind::Fault, global::GFSR, old);
    Ok(())
}

/// Has the unit translate.
fn turn_on<P: UnitPlatform>(machine: &SmmuV2Hardware<P>, running: u32) -> Result<(), IommuError> {
    machine.configure(global::CR0, running);
    let found = machine.read(global::CR0)?;
    if found & (cr0::CLIENTPD | cr0::USFCFG) != cr0::USFCFG {
        let (offset, value) = (global::CR0, found.into());
        return Err(IommuError::Nonsense { offset, value });
    }
    Ok(())
}

/// Finds out if firmware turns pass-through into a fault, as some of Qualcomm's does; returns the
/// bank that passes through instead. It is tried on a register that matches nothing; if there is
/// none, the streams of the last one are blocked.
fn bypass_bank<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    implementation: Implementation,
) -> Result<Option<Bank>, IommuError> {
    if implementation.watched() == Watched::No {
        return Ok(None);
    }
    let features = &machine.features;
    let last = features.streams as usize - 1;
    let mut slot = last;
    if features.selection == Selection::Matching {
        while smr::VALID.of(machine.read(global::smr(slot))?) == 1 {
            let Some(below) = slot.checked_sub(1) else {
                slot = last;
                machine.write(WriteKind::StreamMatch, global::smr(slot), 0);
                break;
            };
            slot = below;
        }
    }
    let bypass = s2cr::TYPE.at(s2cr::BYPASS);
    machine.write(WriteKind::StreamToContext, global::s2cr(slot), bypass);
    let found = machine.read(global::s2cr(slot))?;
    if s2cr::TYPE.of(found) == s2cr::BYPASS {
        return Ok(None);
    }
    let bank = u8::try_from(features.banks - 1).map(Bank);
    // Domains need a bank as well.
    let bank = bank.ok().filter(|bank| bank.0 > 0);
    bank.map(Some).ok_or(IommuError::Unsupported)
}

/// Blocks all streams, but for those that are to pass through, which are left as they are.
fn take_streams<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    mapping: &StreamMatching,
    config: &Config,
) -> Result<StreamGroups, IommuError> {
    let is_at_work = |id: u16| {
        let mut at_work = config.at_work.iter();
        at_work.any(|of| of.stream.get() == u32::from(id))
    };
    let mut groups = StreamGroups::default();
    for slot in 0..machine.features.streams as usize {
        let found = match mapping.selection {
            Selection::Matching => machine.read(global::smr(slot))?,
            Selection::Indexing => 0,
        };
        let streams =
            StreamMatch { id: smr::ID.of(found) as u16, mask: smr::MASK.of(found) as u16 };
        let kept = match config.inherited {
            Inherited::PassThrough(_) => true,
            Inherited::Blocked => streams.mask == 0 && is_at_work(streams.id),
        };
        let wanted = smr::VALID.of(found) == 1 && kept;
        // A stream that matches twice belongs to no group.
        if wanted && groups.conflict(streams).is_none() {
            let kept = Kept::Always;
            groups.0.push(Group { streams, slot, kept });
            continue;
        }
        mapping.point(machine, slot, None)?;
        mapping.match_streams(machine, slot, None)?;
    }
    Ok(groups)
}

/// Has the streams that are to pass through do so.
fn pass_through<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    mapping: &StreamMatching,
    groups: &StreamGroups,
) -> Result<(), IommuError> {
    if let Some(bank) = mapping.bypass_bank {
        let stage1 = global::cbar::TYPE.at(global::cbar::STAGE1);
        let attributes = global::cbar(usize::from(bank.0));
        machine.configure(machine.space1(attributes), stage1);
        machine.configure(machine.bank(bank, bank::SCTLR), 0);
    }
    let mut groups = groups.0.iter();
    groups.try_for_each(|group| mapping.point(machine, group.slot, Some(GroupDestination::Through)))
}

/// Has those streams pass through that devices at work have and that do not yet.
fn keep_at_work<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    mapping: &StreamMatching,
    groups: &mut StreamGroups,
    at_work: &[AtWork],
) -> Result<(), IommuError> {
    let registers = machine.features.streams;
    for of in at_work {
        let Some(id) = mapping.number(of.stream, registers) else {
            continue;
        };
        let streams = StreamMatch::one(id);
        if groups.conflict(streams).is_some() {
            continue;
        }
        let Some(slot) = mapping.slot(groups, streams, registers) else {
            continue;
        };
        mapping.point(machine, slot, Some(GroupDestination::Through))?;
        mapping.match_streams(machine, slot, Some(streams))?;
        let kept = Kept::WhileUsed;
        groups.0.push(Group { streams, slot, kept });
    }
    Ok(())
}

/// Finds out which bits of a stream's number are matched, and can be masked.
fn measure<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    mapping: &mut StreamMatching,
    groups: &StreamGroups,
) -> Result<(), IommuError> {
    if mapping.selection == Selection::Indexing {
        return Ok(());
    }
    let Some(slot) = groups.free(machine.features.streams) else {
        return Ok(());
    };
    let offset = global::smr(slot);
    let probe = |value| {
        machine.write(WriteKind::StreamMatch, offset, value);
        machine.read(offset)
    };
    mapping.id_bits = smr::ID.of(probe(smr::ID.mask())?) as u16;
    // Some units refuse masks of bits that the number has.
    mapping.mask_bits = smr::MASK.of(probe(smr::MASK.mask())?) as u16;
    probe(0)?;
    Ok(())
}

/// Turns the prefetcher of an MMU-500's context banks off. From r2p0 on their auxiliary registers
/// take writes only once ACR.CACHE_LOCK is clear, and its secure counterpart too.
fn turn_prefetch_off<P: UnitPlatform>(
    machine: &SmmuV2Hardware<P>,
    implementation: Implementation,
) -> Result<Prefetch, IommuError> {
    if !implementation.is_mmu500() {
        return Ok(Prefetch::NotKnown);
    }
    let major = id7::MAJOR.of(machine.read(global::ID7)?);
    let mut auxiliary = machine.read(global::ACR)?;
    if major >= 2 {
        auxiliary &= !acr::CACHE_LOCK;
    }
    // What passes through is found in the TLB from the second access on.
    auxiliary |= acr::S2CRB_TLBEN | acr::SMTNMB_TLBEN;
    machine.configure(global::ACR, auxiliary);
    let mut prefetch = Prefetch::Off;
    for n in 0..machine.features.banks {
        let offset = machine.bank(Bank(n as u8), bank::ACTLR);
        let value = machine.read(offset)?;
        machine.configure(offset, value & !actlr::CPRE);
        if machine.read(offset)? & actlr::CPRE != 0 {
            prefetch = Prefetch::On;
        }
    }
    Ok(prefetch)
}
