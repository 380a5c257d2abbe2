//! Streams that go on through the tables of the system before.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 9.1 to 9.6 and
//! 11.4.5.

use alloc::vec::Vec;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, UnitPlatform};

use super::config::Config;
use super::tables::{ABSENT, EntryRequests, Mode, change};
use super::tables::{AttachedContext, Attachment, Streams};
use super::takeover::InheritedTranslation;
use super::unit::{PASS, Vtd};
use crate::chassis::entry::Words;
use portolan_spec::vtd::ADDRESS;
use portolan_spec::vtd::entry::{self, P, context, pasid as pasid_entry, scalable};
use portolan_spec::vtd::reg;

impl<P: UnitPlatform> Vtd<P> {
    /// As [`Vtd::enable`], but the streams in `keep` go on through the tables that the system
    /// before left in memory, until they are moved: their context entries are copied, and the
    /// tables of these stay in use. For a kernel that starts after a crash, and has to write its
    /// memory to a disk that is still at work. Returns the streams that were kept: all others are
    /// blocked, also those whose old entry is not present, is no entry, or has a domain identifier
    /// that is needed otherwise.
    ///
    /// `read` returns eight aligned bytes of memory, which is not this library's, or `None` if
    /// there is none. The memory of the old tables, and all that they map, has to be left alone as
    /// long as a stream is kept. Requests with PASID are not kept, nor are page requests.
    ///
    /// # Errors
    /// As [`Vtd::enable`].
    pub fn take_over(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        config: Config,
        keep: &[StreamId],
        read: impl Fn(PhysAddr) -> Option<u64>,
    ) -> Result<(Self, Vec<StreamId>), IommuError> {
        let unit = Self::prepare(regs, mem, clock, config)?;
        let mut kept = Vec::new();
        if unit.root.inherited() == InheritedTranslation::Translation {
            for &stream in keep {
                let one = |streams: &mut Streams| unit.keep(streams, stream, &read);
                if unit.book.with(unit.turn(), one)??.is_some() {
                    kept.push(stream);
                }
            }
        }
        unit.translate()?;
        Ok((unit, kept))
    }

    /// Copies the old context entry of `stream`, if it can be kept.
    fn keep(
        &self,
        streams: &mut Streams,
        stream: StreamId,
        read: &impl Fn(PhysAddr) -> Option<u64>,
    ) -> Result<Option<()>, IommuError> {
        let Some((stream, old)) = self.old_entry(stream, read) else {
            return Ok(None);
        };
        let again = streams.attachment((stream, 0)).is_some();
        if again || !(old.domain == PASS || self.reserve(streams, old.domain)) {
            return Ok(None);
        }
        let to = AttachedContext { id: old.domain, context: None, remote: None };
        let at = streams.state.context(&self.core, stream)?;
        change(&self.core, at, &old.words, EntryRequests::NOTHING)?;
        streams.begin((stream, 0), Attachment::without_domain(to));
        Ok(Some(()))
    }

    fn old_entry(
        &self,
        stream: StreamId,
        read: &impl Fn(PhysAddr) -> Option<u64>,
    ) -> Option<(u16, OldEntry)> {
        let stream = u16::try_from(stream.get()).ok()?;
        let word = |table: u64, index: u64| read(PhysAddr::new((table & ADDRESS) + index * 8));
        let present = |word: &u64| word & P != 0;
        let root = self.core.control.regs.read64(reg::RTADDR);
        let (bus, function) = (u64::from(stream >> 8), u64::from(stream & 0xff));
        let mut words = ABSENT;
        let (half, first, count) = match self.config.mode {
            Mode::Legacy => (0, function * 2, entry::CONTEXT_WORDS),
            Mode::Scalable => (function >> 7, (function & 0x7f) * 4, entry::SCALABLE_WORDS),
        };
        let table = word(root, bus * entry::ROOT_WORDS as u64 + half).filter(present)?;
        for (index, value) in words.iter_mut().take(count).enumerate() {
            *value = word(table, first + index as u64)?;
        }
        words.first().filter(|word| present(word))?;
        let domain = match self.config.mode {
            // No tables hang on it, so that any domain will do.
            Mode::Legacy if context::TT.of(words[0]) == context::translation::PASS => {
                words[1] = words[1] & !context::DID.mask() | context::DID.at(PASS.into());
                return Some((stream, OldEntry { words, domain: PASS }));
            }
            Mode::Legacy => context::DID.of(words[1]) as u16,
            Mode::Scalable => {
                words[0] &= !(scalable::PASIDE | scalable::PRE);
                let pasid = scalable::RID_PASID.of(words[1]);
                let slot = pasid & ((1 << entry::PASID_TABLE_LG2) - 1);
                let table = word(words[0], pasid >> entry::PASID_TABLE_LG2).filter(present)?;
                let second = slot * entry::PASID_WORDS as u64 + 1;
                pasid_entry::DID.of(word(table, second)?) as u16
            }
        };
        // What passes through here has this one.
        (domain != PASS).then_some((stream, OldEntry { words, domain }))
    }

    /// Takes `domain` out of use, unless it is taken, by another kept stream for one, which is fine.
    fn reserve(&self, streams: &Streams, domain: u16) -> bool {
        let kept = streams.attached(..).any(|(_, at)| at.to.id == domain);
        if domain == 0 || kept {
            return domain != 0;
        }
        let ids = &self.core.ids;
        let mut below = Vec::new();
        let found = loop {
            match ids.take() {
                Some(id) if id < u32::from(domain) => below.push(id),
                Some(id) if id == u32::from(domain) => break true,
                Some(id) => {
                    ids.give_back(id);
                    break false;
                }
                None => break false,
            }
        };
        below.into_iter().for_each(|id| ids.give_back(id));
        found
    }
}

/// Entry that an earlier system had for a stream.
struct OldEntry {
    words: Words,
    domain: u16,
}
