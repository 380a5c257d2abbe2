//! Streams whose guests have guest tables of their own, over a domain with host tables.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2.1, 2.2.6, 2.4.2 and
//! 2.4.3, and GCR3TRPMode: the unit reaches the guest's GCR3 table and guest tables through the domain. The guest
//! chooses PASIDs freely, so each such stream has a domain identifier of its own. Of the words of a guest's own device
//! table entry those about guest tables count, and everything else is the host's.
//!
//! A device keeps translations under any PASID that the guest names in its GCR3 table. When the host takes memory away
//! the device forgets all of them, each PASID by a command. So devices of guests whose GCR3 tables have one level (512
//! PASIDs) may keep translations, and send page requests.
//!
//! Not supported: device TLBs and page requests under GCR3 tables of several levels, COMPLETE_PPR_REQUEST in a guest's
//! words ([`Responder`](portolan::iopf::Responder) has it); one identifier for several streams of a guest.

use super::command::{self, CommandKind, Counted};
use super::guest::{WithoutPasid, root_of, roots};
use super::pasids::LeftPlaces;
use super::tables::{AmdPlace, Attachment, BelowGuest, Streams, entry_of};
use super::unit::{AmdDomain, AmdVi};
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::addr::{Iova, StreamId};
use portolan::iommu::{AttachError, IommuError, TagPool as _};
use portolan::platform::UnitPlatform;
use portolan::table::format::AmdV2Levels;
use portolan_spec::amd::ADDRESS;
use portolan_spec::amd::command::{OPCODE, Words, opcode, pages};
use portolan_spec::amd::entry::{self, DOMAIN};
use thiserror::Error;

/// A guest's own GCR3 table.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRoots {
    /// Address of the table, as the guest sees it.
    pub table: Iova,
    /// Levels of the table: 1 to 3.
    pub levels: u32,
    /// Levels of the guest tables that it leads to.
    pub paging: AmdV2Levels,
    /// Treatment of accesses without a PASID.
    pub without: WithoutPasid,
}

/// Refusal of a guest's device table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GuestEntryError {
    /// The entry does not count, or has no guest tables: the guest blocks its device, or lets it pass.
    #[error("the entry {word:#x} leads to no guest tables")]
    NoGuestTables {
        /// Word 0.
        word: u64,
    },
    /// The entry has host tables, which are not the guest's to choose.
    #[error("the entry {word:#x} has host tables")]
    HostTables {
        /// Word 0.
        word: u64,
    },
    /// The GCR3 table has address 0.
    #[error("the entry has no GCR3 table")]
    NoTable,
    /// The number of levels of the GCR3 table is reserved (GLX).
    #[error("the entry {word:#x} has a reserved number of levels")]
    Levels {
        /// Word 0.
        word: u64,
    },
    /// The number of levels of guest tables is reserved (GuestPagingMode).
    #[error("the entry has guest tables of a reserved number of levels ({word:#x})")]
    Paging {
        /// Word 2.
        word: u64,
    },
}

impl GuestRoots {
    /// Reads the device table entry that a guest wrote for its device.
    ///
    /// # Errors
    /// See [`GuestEntryError`].
    pub fn of_entry(words: [u64; entry::WORDS]) -> Result<Self, GuestEntryError> {
        let [word, second, third, _] = words;
        let counts = entry::V | entry::TV | entry::GUEST;
        if word & counts != counts {
            return Err(GuestEntryError::NoGuestTables { word });
        }
        if entry::MODE.of(word) != 0 || word & ADDRESS != 0 {
            return Err(GuestEntryError::HostTables { word });
        }
        let levels = entry::GUEST_LEVELS.of(word) as u32 + 1;
        if levels > 3 {
            return Err(GuestEntryError::Levels { word });
        }
        let paging = match entry::GUEST_PAGING.of(third) {
            0 => AmdV2Levels::Four,
            1 => AmdV2Levels::Five,
            _ => return Err(GuestEntryError::Paging { word: third }),
        };
        let table = root_of(word, second);
        if table == 0 {
            return Err(GuestEntryError::NoTable);
        }
        let without = match word & entry::GUEST_DEFAULT {
            0 => WithoutPasid::Pass,
            _ => WithoutPasid::Default,
        };
        Ok(Self { table: Iova::new(table), levels, paging, without })
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// Makes a guest's own tables translate the accesses of `stream` to addresses that `domain` translates on. The
    /// guest's GCR3 table and guest tables are reached through `domain` as well. The guest's invalidations have to be
    /// passed on by [`AmdVi::guest_commands`]. A device that keeps translations ([`AmdVi::use_device_tlb`]) gets
    /// some if the guest's GCR3 table has one level.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Attach::attach`](portolan::iommu::Attach::attach); [`AttachError::Mismatch`] beside PASIDs of the stream
    /// too, or if the table is not in whole pages; [`IommuError::Unsupported`] if the unit has no guest tables, not so
    /// many levels, or does not look for GCR3 tables behind host tables ([`GuestFeatures`](super::GuestFeatures));
    /// [`IommuError::OutOfContexts`].
    pub fn attach_nested(
        &self,
        stream: StreamId,
        domain: &Arc<AmdDomain<P>>,
        guest: &GuestRoots,
    ) -> Result<(), AttachError> {
        let offered = self.features().guests.filter(|offered| offered.over_host);
        let offered = offered.ok_or(IommuError::Unsupported)?;
        let GuestRoots { table, levels, paging, without } = *guest;
        if !(1..=offered.root_levels).contains(&levels) || !offered.walks(paging) {
            return Err(IommuError::Unsupported.into());
        }
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) || table.get() & !ADDRESS != 0 {
            return Err(AttachError::Mismatch);
        }
        let index = self.table.has(stream).ok_or(AttachError::NoSuchStream { stream })?;
        let (context, marks) = (domain.context(), domain.dirty_tracking());
        let [low, high] = entry_of(&domain.table(), context, marks);
        let [guest_low, guest_high] = roots(table.get(), levels, without);
        let mut left = LeftPlaces::default();
        let moved = self.book.with(self.turn(), |streams| {
            let id = self.nested_id(streams, index)?;
            let memory =
                [low | guest_low, high & !DOMAIN.mask() | DOMAIN.at(id.into()) | guest_high];
            let below = Some(BelowGuest { context, levels });
            let to = AmdPlace { below, ..AmdPlace::of(id) };
            let new = Attachment::new(to, domain);
            self.leave_guests(streams, index, Some(&new), &mut left)?;
            // The field for levels counts in entries that lead to a GCR3 table, as the one that is left may.
            left.streams.extend(self.move_stream(streams, index, None, None)?);
            self.table.set_guest_paging(&self.shared.control.mem, index, paging);
            left.streams.extend(self.move_stream(streams, index, Some(memory), Some(new))?);
            Ok::<(), AttachError>(())
        });
        self.let_go(left);
        moved??;
        // As for streams without a guest.
        match domain.dirty_tracking() {
            now if now == marks => Ok(()),
            now => Ok(domain.queue().track_dirty(context, now)?),
        }
    }

    /// The identifier of the translations of a stream's guest.
    fn nested_id(&self, streams: &mut Streams, stream: u16) -> Result<u16, IommuError> {
        match streams.state.nested.entry(stream) {
            Entry::Occupied(there) => Ok(*there.get()),
            Entry::Vacant(place) => Ok(*place.insert(self.shared.take_id()?)),
        }
    }

    /// Carries out invalidations of a guest's own tables, in its encoding, and waits. Stream and domain are replaced by
    /// the real ones; bits without a meaning are dropped. Accepted are INVALIDATE_IOMMU_PAGES, INVALIDATE_DEVTAB_ENTRY,
    /// INVALIDATE_IOMMU_ALL and, if the device may keep translations, INVALIDATE_IOTLB_PAGES, which is that device's
    /// whichever one it names. A guest that has changed its entry is attached anew as well.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`AttachError::Mismatch`] if the stream is not nested; [`IommuError::Unsupported`] for any other command, with
    /// nothing done.
    pub fn guest_commands(&self, stream: StreamId, commands: &[Words]) -> Result<(), AttachError> {
        let index = self.table.has(stream).ok_or(AttachError::NoSuchStream { stream })?;
        self.book.with(self.turn(), |streams| {
            let to = streams.attachment(index).map(|now| now.to);
            let to = to.filter(|to| to.below.is_some()).ok_or(AttachError::Mismatch)?;
            let checked = commands.iter().map(|words| guest_command(*words, index, &to));
            let checked: Option<Vec<Counted>> = checked.collect();
            let checked = checked.ok_or(IommuError::Unsupported)?;
            let to_device = |of: &Counted| of.0 == CommandKind::DeviceTlb;
            // The device behind the unit, from whose caches it might be answered otherwise.
            for part in checked.chunk_by(|one, next| to_device(one) == to_device(next)) {
                match part.iter().any(to_device) {
                    true => self.shared.ask_by(|| part.iter().copied())?,
                    false => self.shared.run(part.iter().copied())?,
                }
            }
            Ok(())
        })?
    }
}

/// A guest's command with the real identifiers; `None` if it may not give it.
fn guest_command(words: Words, stream: u16, to: &AmdPlace) -> Option<Counted> {
    let ([low, high], domain) = (words, to.domain);
    match OPCODE.of(low) {
        opcode::DEVICE_ENTRY => Some(command::device_entry(stream)),
        opcode::PAGES if high & pages::GUEST != 0 => {
            let meant = pages::ADDRESS | pages::SIZE | pages::DIRECTORIES | pages::GUEST;
            let head = OPCODE.at(opcode::PAGES) | pages::DOMAIN.at(domain.into());
            Some((CommandKind::Guest, [head | low & pages::PASID.mask(), high & meant]))
        }
        // Host tables are none of the guest's: of its own it means all.
        opcode::PAGES | opcode::ALL => Some(command::domain(domain)),
        opcode::DEVICE_TLB => to.told.map(|atc| command::device_tlb_of_guest(atc, words)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::AmdAtc;
    use super::*;

    #[test]
    fn a_guests_commands_by_hand() {
        let mut to = AmdPlace::of(0x42);
        let with = |to: &AmdPlace, words| guest_command(words, 0x28, to).map(|(_, words)| words);
        let of = |low, high| with(&to, [low, high]);
        // Its own domain and reserved bits are replaced; PASID, address and size stay.
        let page = of(0x3fff_7777_fffa_bcde, 0x4000_0fff);
        assert_eq!(page, Some([0x3000_0042_000a_bcde, 0x4000_0007]));
        let everything = Some([0x3000_0042_0000_0000, 0x7fff_ffff_ffff_f003]);
        assert_eq!(of(0x3000_0001_0000_0005, 0x4000_0003), everything);
        assert_eq!(of(8 << 60, 0), everything);
        assert_eq!(of(0x2000_0000_0000_ffff, u64::MAX), Some([0x2000_0000_0000_0028, 0]));
        for opcode in [0, 1, 4, 5, 6, 7, 9, 15] {
            assert_eq!(of(opcode << 60, 0), None, "{opcode}");
        }
        // Another device, queue and depth become the real ones. Without GN there is no PASID.
        to.told = Some(AmdAtc { stream: 0x28, physical: 0x20, depth: 4 });
        let named = with(&to, [0x4ade_7777_20bc_7777, 0x4000_0fff]);
        assert_eq!(named, Some([0x4ade_0020_04bc_0028, 0x4000_0005]));
        let plain = with(&to, [0x4ade_7777_20bc_7777, 0x4000_0ffb]);
        assert_eq!(plain, Some([0x4000_0020_0400_0028, 0x4000_0001]));
    }

    /// A GCR3 table of two levels at 0xa_bcde_f123_5000, as in the host's own entries.
    #[test]
    fn a_guests_entry_by_hand() {
        let entry = [0x15c0_0000_0000_0003, 0xabcd_e800_e246_0007, 1 << 54, 0];
        let wanted = GuestRoots {
            table: Iova::new(0xa_bcde_f123_5000),
            levels: 2,
            paging: AmdV2Levels::Five,
            without: WithoutPasid::Default,
        };
        assert_eq!(GuestRoots::of_entry(entry), Ok(wanted));
        let [first, second, third, _] = entry;
        let with = |word| GuestRoots::of_entry([word, second, third, 0]);
        let passes = GuestRoots { without: WithoutPasid::Pass, ..wanted };
        assert_eq!(with(first & !(1 << 54)), Ok(passes));
        for bit in [0, 1, 55] {
            let word = first & !(1 << bit);
            assert_eq!(with(word), Err(GuestEntryError::NoGuestTables { word }));
        }
        for bits in [1 << 9, 4 << 9, 0x1000, 1 << 51] {
            let word = first | bits;
            assert_eq!(with(word), Err(GuestEntryError::HostTables { word }));
        }
        let word = first | 3 << 56;
        assert_eq!(with(word), Err(GuestEntryError::Levels { word }));
        for word in [2 << 54, 3 << 54] {
            let paging = GuestRoots::of_entry([first, second, word, 0]);
            assert_eq!(paging, Err(GuestEntryError::Paging { word }));
        }
        let nowhere = [0x01c0_0000_0000_0003, 7, 0, 0];
        assert_eq!(GuestRoots::of_entry(nowhere), Err(GuestEntryError::NoTable));
    }
}
