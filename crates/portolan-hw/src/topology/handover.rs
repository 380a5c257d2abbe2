//! A machine's units that change hands: from this kernel to the next, while devices are at work.
//!
//! *Context.* Task.

use alloc::vec::Vec;

use portolan::addr::{Iova, PciFunction, StreamId};
use portolan::iommu::IommuError;
use portolan::iommu::handover::ReservedHandover;
use portolan::platform::{FormerMemory, Platform, PreservedMemory};
use portolan::table::Translation;

use super::enable::Enabled;
use super::enable::former::{Adoption, Former, TakenOver};
use super::pci::PciOverrides;
use super::{EnableError, Iommus, Options, Place, SurveyedUnit, Topology, UnitKind};
use crate::handover::{PrepareError, RecordedKind, RecordedUnit, write};
use crate::promise::{self, TrustedDescription};

/// Outcome of handing a machine over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// Length of the record.
    pub bytes: usize,
    /// Units that are not in the record, or that did not come to rest, by their numbers: the next kernel blocks
    /// their devices.
    pub left_out: Vec<(usize, IommuError)>,
    /// Address spaces whose debt the hardware did not take: the next kernel's first invalidation pays it.
    pub in_debt: usize,
}

impl Topology {
    /// Takes the units over from a former kernel, which [prepared](Iommus::prepare) for that: translation and the
    /// accesses of devices go on as they are, and a device that is opened has its former address space, in which
    /// the addresses are set aside that it may be using. A unit that is not as `record` says is taken over as by
    /// [`Topology::enable`], which blocks its devices; the others are not affected.
    ///
    /// # Errors
    /// As [`Topology::enable`].
    pub fn adopt<P: Platform>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
        record: &[u8],
        preserved: PreservedMemory<'_>,
    ) -> Result<(Iommus<P>, Adoption), EnableError> {
        let former = Former::new(record, preserved);
        let iommus = self.enable_from(platform, options, description, Some(&former))?;
        Ok((iommus, former.end()))
    }

    /// Takes the units over from a kernel that crashed, as [`Topology::enable`] does, but the functions in `keep` go on
    /// through the tables that it left in memory, until they are opened: for a kernel that starts then, and has to
    /// write its memory to a disk that is still at work. At no moment are their accesses refused or untranslated.
    /// [`TakenOver::kept`] has those that go on. All others are blocked: of a unit that does not translate, whose
    /// tables make no sense, or that is an SMMU of version 2 or a virtio-iommu, and those that passed through without
    /// leave ([`FormerMemory::passing`]).
    ///
    /// `former` reads the tables. `preserved` is the memory in which tables may be that stay a unit's for good: the
    /// stream table of an SMMU, the root of a RISC-V unit's directory. Its buffers have no meaning here.
    ///
    /// # Errors
    /// As [`Topology::enable`].
    pub fn take_over<P: Platform>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
        keep: &[PciFunction],
        former: FormerMemory<'_>,
        preserved: PreservedMemory<'_>,
    ) -> Result<(Iommus<P>, TakenOver), EnableError> {
        let former = Former::crashed(keep, former, preserved);
        let iommus = self.enable_from(platform, options, description, Some(&former))?;
        let taken = former.end_of_crash(|function| iommus.streams(function));
        Ok((iommus, taken))
    }

    /// Translation of `iova` for accesses of `function` by the tables of the kernel before, which `former` reads: the
    /// memory of a queue that a disk's registers name, for one. Nothing is written, so that it can be asked before
    /// [`Topology::take_over`]. `None` where nothing is mapped, for a function that passes through, and behind units
    /// other than an SMMU of version 3 and one of VT-d in legacy mode.
    pub fn former_translation<P: Platform>(
        &self,
        platform: &P,
        description: TrustedDescription,
        function: PciFunction,
        iova: Iova,
        former: FormerMemory<'_>,
    ) -> Option<Translation> {
        let read = |of, at| platform.pci_config(of, at);
        let survey = self.survey(PciOverrides::KNOWN, read);
        let (unit, stream) = self.find(&survey, &read, function).ok()??;
        let SurveyedUnit { kind, place: Place::Registers(window), .. } =
            *survey.units().get(unit)?
        else {
            return None;
        };
        let registers = promise::registers_of_unit(platform, window, description)?;
        match kind {
            #[cfg(feature = "smmuv3")]
            UnitKind::SmmuV3 => {
                crate::smmuv3::former_translation(&registers, former, stream, iova).ok()?
            }
            #[cfg(feature = "vtd")]
            UnitKind::Vtd => {
                crate::vtd::former_translation(&registers, former, stream, iova).ok()?
            }
            _ => {
                let _ = (registers, stream, iova, former);
                None
            }
        }
    }
}

impl<P: Platform> Iommus<P> {
    /// Hands the units to the next kernel: pays the debts of all address spaces, writes a record into the first
    /// bytes of `into`, and leaves the units as they are. From then on this kernel's streams cannot be moved, and
    /// what it unmaps is not invalidated ([`IommuError::Stopped`]), also when these values are dropped. The caller
    /// lets nothing be mapped, unmapped, opened or closed from this call on; devices stay at work.
    ///
    /// # Errors
    /// See [`PrepareError`]; the units are still this kernel's.
    pub fn prepare(&self, into: &mut [u8]) -> Result<HandedOver, PrepareError> {
        let spaces = self.with_groups(|groups| {
            Ok(groups.iter().filter_map(|group| group.space.upgrade()).collect::<Vec<_>>())
        });
        let spaces = spaces.unwrap_or_default();
        let in_debt = spaces.iter().filter(|space| space.flush().is_err()).count();
        let (mut recorded, mut numbers, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for (number, unit) in self.units.iter().enumerate() {
            let Ok(unit) = unit else { continue };
            match self.recorded(number, unit) {
                Ok(unit) => {
                    recorded.push(unit);
                    numbers.push(number);
                }
                Err(error) => left_out.push((number, error)),
            }
        }
        let bytes = write(&recorded, into)?;
        for number in numbers {
            if let Some(Ok(unit)) = self.units.get(number) {
                left_out.extend(unit.leave().err().map(|error| (number, error)));
            }
        }
        Ok(HandedOver { bytes, left_out, in_debt })
    }

    fn recorded(&self, number: usize, unit: &Enabled) -> Result<RecordedUnit, IommuError> {
        let surveyed = self.survey.units().get(number).ok_or(IommuError::Unsupported)?;
        let kind = RecordedKind::of(surveyed.kind).ok_or(IommuError::Unsupported)?;
        let Place::Registers(window) = surveyed.place else {
            return Err(IommuError::Unsupported);
        };
        let mut state = unit.handover()?;
        let mut streams: Vec<StreamId> =
            state.streams.iter().map(|stream| stream.requester.stream).collect();
        streams.dedup();
        for stream in streams {
            unit.reserved(stream, &mut |region| {
                state.reserved.push(ReservedHandover { stream, range: region.range });
            });
        }
        Ok(RecordedUnit { base: window.start(), kind, state })
    }
}
