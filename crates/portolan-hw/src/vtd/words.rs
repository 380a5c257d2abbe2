//! Words of context and PASID entries.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 9.3 to 9.6.

use portolan::iommu::{AttachError, IommuError};
use portolan::platform::UnitPlatform;
use portolan::table::format::{VtdFirstLevels, VtdLevels};

use super::attach::Target;
use super::features::{Has, width_code};
use super::streams::To;
use super::structures::{ABSENT, Mode};
use super::unit::Vtd;
use crate::chassis::entry::Words;
use portolan_spec::vtd::ADDRESS;
use portolan_spec::vtd::entry::{P, context, pasid as pasid_entry};

impl<P: UnitPlatform> Vtd<P> {
    /// The words of the entry for `target`; those of the longest kind, zeros behind.
    pub(super) fn words(&self, target: &Target, to: Option<To>) -> Result<Words, AttachError> {
        let mut words = ABSENT;
        let Some(to) = to else { return Ok(words) };
        let device = to.remote.is_some();
        match self.config.mode {
            Mode::Legacy => self.context_words(&mut words, target, to.id, device)?,
            Mode::Scalable => self.pasid_words(&mut words, target, to.id)?,
        }
        words[0] |= P;
        Ok(words)
    }

    /// Width code of entries that pass through: the widest that there is.
    fn widest(&self) -> u64 {
        self.features().second_levels().last().map_or(0, width_code)
    }

    fn context_words(
        &self,
        words: &mut [u64],
        target: &Target,
        id: u16,
        device: bool,
    ) -> Result<(), AttachError> {
        use context::translation as t;
        let (kind, root, width) = match target {
            Target::Second { root, levels, .. } => {
                let kind = if device { t::DEVICE_TLB } else { t::UNTRANSLATED };
                (kind, *root, width_code(*levels))
            }
            Target::Pass => match self.widest() {
                0 => return Err(IommuError::Unsupported.into()),
                width => (t::PASS, 0, width),
            },
            Target::Blocked | Target::First { .. } => return Err(AttachError::Mismatch),
        };
        words[0] = root & ADDRESS | context::TT.at(kind);
        words[1] = context::AW.at(width) | context::DID.at(id.into());
        Ok(())
    }

    fn pasid_words(&self, words: &mut [u64], target: &Target, id: u16) -> Result<(), AttachError> {
        use pasid_entry::{AW, DID, FSPM, PGTT, PWSNP, translation as t};
        let snoops = self.features().has.contains(Has::SCALABLE_SNOOPS);
        let snoop = if snoops { PWSNP } else { 0 };
        words[1] = DID.at(id.into()) | snoop;
        let second = |root: u64, levels| root & ADDRESS | AW.at(width_code(levels));
        match target {
            Target::Blocked => return Err(AttachError::Mismatch),
            Target::Pass => {
                words[0] = AW.at(self.widest()) | PGTT.at(t::PASS);
                words[1] = DID.at(id.into());
            }
            Target::Second { root, levels, .. } => {
                words[0] = second(*root, *levels) | PGTT.at(t::SECOND);
            }
            Target::First { root, levels, .. } => {
                let (mode, width) = match levels {
                    VtdFirstLevels::Four => (0, width_code(VtdLevels::Four)),
                    VtdFirstLevels::Five => (1, width_code(VtdLevels::Five)),
                };
                words[2] = root & ADDRESS | FSPM.at(mode);
                let known = self.known.lock();
                words[0] = match known.parents.get(id) {
                    Some(parent) => second(parent.root, parent.levels) | PGTT.at(t::NESTED),
                    // The width is the second stage's, but QEMU limits a first stage by it as well.
                    None => PGTT.at(t::FIRST) | AW.at(width),
                };
            }
        }
        Ok(())
    }
}
