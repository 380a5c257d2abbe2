//! Marks of written pages in the second stage: the bit of PASID entries that has the unit set them, switched while
//! the entries are in use.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.7.2 (accessed and dirty bits),
//! 6.5.3 (invalidations after a change) and 9.6 (SSADE). A nested entry has the bit of the second stage below it.
//!
//! *Locking.* None with callers that move streams: they look at the bit before they write an entry, which they have
//! noted by then, and once more afterwards. An entry that means something else by the time that it is written stays
//! as it is.

use super::command::{Extent, Iotlb, Request};
use super::control::Core;
use super::features::VtdFeature;
use super::tags::{NamingEntry, context_id, split_id};
use alloc::vec::Vec;
use portolan::addr::InvalTag;
use portolan::inval::Walker;
use portolan::iommu::{IommuError, Stage};
use portolan::platform::UnitPlatform;
use portolan::table::format::DirtyTracking;
use portolan_spec::vtd::entry::{P, pasid};

impl<M: UnitPlatform> Core<M> {
    /// Bit of entries that name the second stage `second`.
    pub(super) fn marks(&self, second: InvalTag) -> u64 {
        match self.tag_of(second).unwrap_or_default().marks {
            DirtyTracking::Off => 0,
            DirtyTracking::Hardware => pasid::SSADE,
        }
    }

    /// Switches the marks of the second stage `second` in all entries that name it.
    pub(super) fn switch_marks(
        &self,
        second: InvalTag,
        marks: DirtyTracking,
    ) -> Result<(), IommuError> {
        self.tag(second, |tag| tag.marks = marks);
        let bit = self.marks(second);
        self.mark_entries(second, bit)?;
        let nested = self.tag_of(second).unwrap_or_default().nested.clone();
        nested.into_iter().try_for_each(|id| self.mark_entries(context_id(id, Stage::First), bit))
    }

    /// Gives the bit for marks the value `bit` in all entries under `context`, and makes hardware forget its copies of
    /// them and the translations that it has by them.
    pub(super) fn mark_entries(&self, context: InvalTag, bit: u64) -> Result<(), IommuError> {
        let (domain, _) = split_id(context);
        let tag = self.tag_of(context).unwrap_or_default();
        let snoops = self.control.features.has.contains(VtdFeature::SNOOPS);
        let walker = if snoops { Walker::Coherent } else { Walker::NonCoherent };
        for NamingEntry { at, .. } in &tag.entries {
            at.update(&self.mem, |words| {
                let ours = words[0] & P != 0 && pasid::DID.of(words[1]) == u64::from(domain);
                ours.then_some(words[0] & !pasid::SSADE | bit)
            });
            at.publish(&self.mem, walker);
        }
        self.control.flush_write_buffer()?;
        let pasids = || tag.pasids.iter().copied();
        let entries: Vec<_> = pasids().map(|pasid| Request::PasidCache { domain, pasid }).collect();
        let extent = Extent::All;
        let firsts = pasids().map(|pasid| Request::PasidIotlb { domain, pasid, extent });
        let translations: Vec<_> =
            firsts.chain([Request::Iotlb(Iotlb::Domain { domain })]).collect();
        let remotes = tag.remotes.iter();
        let remotes: Vec<_> = remotes.flat_map(|remote| remote.forget(extent)).collect();
        self.run(&[&entries, &translations, &remotes])
    }
}
