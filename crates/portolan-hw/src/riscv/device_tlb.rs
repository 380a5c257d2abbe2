//! Devices with translations of their own (ATS), the commands that make them forget, and their page
//! requests.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Device-context fields", "Guidelines for
//! enabling and disabling ATS and/or PRI", "Page-Request-Queue", "PCIe ATS Page Request handling" and
//! "IOMMU PCIe ATS commands". The unit lets a device's answer through, as its accesses by translations
//! of its own, only while the device context says that it may have some (`EN_ATS`). So a device forgets
//! before its context stops saying so, and while nothing is there to be asked for again. A stream that
//! passes through gives its device no translations.
//!
//! Page requests are read one at a time, and answered by group. Grouping, handling and the promise of
//! one answer a group are `portolan::iopf`'s. When requests are lost for want of room the unit answers
//! those that need an answer itself, without a PASID (`PRPR`).

use super::attach::forget;
use super::command::{self, Attachment, NOWHERE, RiscvTag, translated};
use super::features::RiscvFeature;
use super::tables::{Directory, Key, Place, Remotes, Streams, Tables};
use super::unit::RiscvIommu;
use crate::chassis::entry::{At, Words};
use crate::chassis::sets::Atc;
use crate::chassis::{Block, NextRecord, PageRequestEvent};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::inval::Walker;
use portolan::iommu::{AttachError, DeviceTlb, IommuError};
use portolan::iopf::{
    self, GroupId, Permissions, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response,
};
use portolan::platform::{AllMemory, TableMem, UnitPlatform};
use portolan_spec::riscv::context::{CONTROL, FIRST, REQUESTS, ROOT, SECOND, TRANSLATES, V};
use portolan_spec::riscv::fault::WORDS;
use portolan_spec::riscv::request as layout;

/// A root in which nothing is: of either stage, whose larger one has 16 KiB.
const EMPTY_LG2: u32 = 14;
/// Tag of translations through it, of which there are none: no domain's.
const NOBODY: u32 = 0;

impl Remotes {
    /// Has a root in which nothing is. *Context.* Task.
    pub(super) fn make_room(&mut self, mem: &impl TableMem<AtomicU64>) -> Result<(), IommuError> {
        if self.empty.is_none() {
            self.empty = Some(Block::new(mem, EMPTY_LG2)?);
        }
        Ok(())
    }
}

impl Tables {
    /// Names of the address space in the device's translations. With PASIDs, requests without one
    /// and those of PASID 0 are of the same.
    fn names(&self, (stream, pasid): Key) -> ArrayVec<Atc, 2> {
        let named = Some(Pasid::new(pasid));
        let names = match (self.processes.contains_key(&stream), pasid) {
            (false, _) => [None, None],
            (true, 0) => [Some(None), Some(named)],
            (true, _) => [Some(named), None],
        };
        let stream = StreamId::new(stream);
        match names {
            [None, _] => [Atc { stream, pasid: None }].into_iter().collect(),
            names => names.into_iter().flatten().map(|pasid| Atc { stream, pasid }).collect(),
        }
    }
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Bits of the context of a stream beside the tables to which it leads, once the stream leads
    /// somewhere.
    pub(super) fn lets(&self, tables: &Tables, stream: u32) -> u64 {
        let requests = self.shared.requests.as_ref().map_or(0, |_| REQUESTS);
        let remote = if tables.remotes.has(stream) { TRANSLATES | requests } else { 0 };
        remote | self.marks()
    }

    /// Returns `Some` if the context at `at` lets a device send requests, and stops doing so when
    /// it is changed: with PASIDs it is the stream's own.
    pub(super) fn lets_ask(&self, tables: &Tables, (stream, _): Key, at: At) -> bool {
        let open = at.read(&self.shared.control.mem)[CONTROL] & REQUESTS != 0;
        open && !tables.processes.contains_key(&stream)
    }

    /// As [`IommuDomains::use_device_tlb`](portolan::iommu::IommuDomains::use_device_tlb), before the stream is
    /// given PASIDs. The device may then send page requests as well, if there is a queue for them.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has no part for them, or none for the stream, if the stream
    /// has PASIDs, or if the device has to be asked twice, as those that have to are parts of Intel's
    /// processors; [`IommuError::Memory`].
    pub fn use_device_tlb(
        &self,
        stream: StreamId,
        tlb: DeviceTlb,
        _all: AllMemory,
    ) -> Result<(), IommuError> {
        let stream = Directory::has(self.streams_lg2(), stream);
        let stream =
            stream.filter(|_| self.features().has.contains(RiscvFeature::ATS) && !tlb.twice);
        let stream = stream.ok_or(IommuError::Unsupported)?;
        let mem = &self.shared.control.mem;
        self.book.with(self.turn(), |streams| {
            let tables = &mut streams.state;
            if tables.remotes.has(stream) {
                return Ok(());
            }
            if tables.processes.contains_key(&stream) {
                return Err(IommuError::Unsupported);
            }
            tables.remotes.make_room(mem)?;
            tables.remotes.streams.insert(stream);
            Ok(())
        })?
    }

    /// A context in which a device may answer, and which leads nowhere; with its tag.
    fn asking(&self, tables: &Tables) -> Result<(Words, RiscvTag), IommuError> {
        let empty = tables.remotes.empty.ok_or(IommuError::Unsupported)?;
        let first = self.best_first().map(|levels| (RiscvTag::First(NOBODY), levels));
        let second = self.best_second();
        let second = second.map(|levels| (RiscvTag::Second(NOBODY), levels));
        let (tag, levels) = first.or(second).ok_or(IommuError::Unsupported)?;
        let mut words = translated(tag, empty.at, levels.count());
        words[CONTROL] |= TRANSLATES;
        Ok((words, tag))
    }

    /// Has a device forget an address space, which leads nowhere; its context lets it answer.
    fn ask(&self, tables: &mut Tables, key: Key) -> Result<(), IommuError> {
        let names = tables.names(key);
        self.shared.ask(|| names.clone().into_iter(), None)?;
        tables.remotes.clean.insert(key);
        Ok(())
    }

    /// Notes that the domain of `old` need not tell the device any more.
    pub(super) fn leave(&self, tables: &Tables, key: Key, old: Option<RiscvTag>) {
        for atc in old.into_iter().flat_map(|_| tables.names(key)) {
            old.into_iter().for_each(|tag| self.shared.atcs.remove(tag, atc));
        }
    }

    /// Before the context at `at` changes from `old`: makes the device forget its translations of
    /// it. Afterwards the context leads nowhere, and its tag is returned.
    pub(super) fn before_change(
        &self,
        tables: &mut Tables,
        key: Key,
        at: At,
        old: Option<RiscvTag>,
        wanted: &Words,
    ) -> Result<Option<RiscvTag>, IommuError> {
        let (stream, _) = key;
        if !tables.remotes.has(stream) || tables.remotes.clean.contains(&key) {
            return Ok(old);
        }
        let context = tables.forget(key);
        if tables.processes.contains_key(&stream) {
            self.change(at, &NOWHERE, &forget(context, old))?;
            self.ask(tables, key)?;
            self.leave(tables, key, old);
            return Ok(None);
        }
        let mem = &self.shared.control.mem;
        let now = at.read(mem);
        let answers = now[CONTROL] & (V | TRANSLATES) == V | TRANSLATES;
        if !answers && wanted[CONTROL] & TRANSLATES == 0 {
            return Ok(old);
        }
        let (words, nobody) = self.asking(tables)?;
        let tag = match (answers, old) {
            // By one store, so that the device can answer others throughout.
            (true, Some(tag)) => {
                let word = match tag {
                    RiscvTag::First(_) => FIRST,
                    RiscvTag::Second(_) => SECOND,
                };
                let root = tables.remotes.empty.map_or(0, |empty| empty.at.get());
                let root = ROOT.at(root >> 12);
                at.write(mem, word, now[word] & !ROOT.mask() | root);
                at.publish(mem, Walker::Coherent);
                self.shared.run(forget(context, old).into_iter()).map(|()| tag)
            }
            _ => {
                let changed = self.change(at, &words, &forget(context, old));
                changed.map(|()| nobody)
            }
        };
        let asked = tag.and_then(|tag| self.ask(tables, key).map(|()| tag));
        self.leave(tables, key, old);
        let closed = asked.inspect_err(|_| {
            at.write(mem, CONTROL, 0);
            at.publish(mem, Walker::Coherent);
        });
        closed.map(Some)
    }

    /// Before a context that lets the device translate leads to `new`.
    pub(super) fn enter(&self, tables: &mut Tables, key: Key, new: Option<Option<RiscvTag>>) {
        let (stream, _) = key;
        let Some(to) = new.filter(|_| tables.remotes.has(stream)) else {
            return;
        };
        let passes = to.is_none() && !tables.processes.contains_key(&stream);
        if passes {
            return;
        }
        tables.remotes.clean.remove(&key);
        for atc in tables.names(key) {
            to.into_iter().for_each(|tag| self.shared.atcs.add(tag, atc));
        }
    }

    /// Makes the device forget the remains of a failure, once the unit has forgotten them. In
    /// memory nothing leads to them any more.
    pub(super) fn settle_remote(
        &self,
        tables: &mut Tables,
        key: Key,
        left: &[Attachment],
    ) -> Result<(), IommuError> {
        let (stream, _) = key;
        if !tables.remotes.has(stream) {
            return Ok(());
        }
        if !tables.remotes.clean.contains(&key) {
            let mem = &self.shared.control.mem;
            let place = tables.place(mem, key, &NOWHERE);
            let Place { at, words } = place.map_err(|_| IommuError::Unsupported)?;
            let context = tables.forget(key);
            if tables.processes.contains_key(&stream) {
                self.ask(tables, key)?;
            } else {
                let (asking, nobody) = self.asking(tables)?;
                self.change(at, &asking, &forget(context, None))?;
                let asked = self.ask(tables, key);
                self.change(at, &words, &forget(context, Some(nobody)))?;
                asked?;
            }
        }
        for tag in left.iter().filter_map(|left| left.to) {
            self.leave(tables, key, Some(tag));
        }
        Ok(())
    }

    /// Blocks a stream, all its PASIDs and its interrupts, without asking the device for anything:
    /// for one that was removed by surprise, or does not answer any more. Once this is done,
    /// nothing is under way through its domains, and no caller asks the device again. The unit
    /// refuses accesses by translations that it still has. If it comes back, it has to be declared
    /// again ([`RiscvIommu::use_device_tlb`]), and is told to forget everything before its stream
    /// leads anywhere.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Iommu::block`](portolan::iommu::Iommu::block); to be tried again.
    pub fn device_gone(&self, stream: StreamId) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = Directory::has(self.streams_lg2(), stream).ok_or(no_such)?;
        let left = self.book.with(self.turn(), |streams| self.cut(streams, stream))?;
        // Domains wait for the hardware when they are dropped: without the turn.
        left.map(drop)
    }

    /// Blocks a stream as [`RiscvIommu::device_gone`] does; returns its attachments.
    fn cut(
        &self,
        streams: &mut Streams,
        stream: u32,
    ) -> Result<Vec<(Key, Attachment)>, AttachError> {
        let mem = &self.shared.control.mem;
        let all = (stream, 0)..=(stream, u32::MAX);
        // From here on no caller waits for the device.
        streams.state.remotes.forget_stream(stream);
        self.shared.atcs.remove_all(|atc| atc.stream.get() == stream);
        let has_processes = streams.state.processes.contains_key(&stream);
        if !has_processes && streams.not_blocked(all.clone()).next().is_none() {
            return Ok(Vec::new());
        }
        let at = streams.state.directory.place(mem, stream)?;
        at.write(mem, CONTROL, 0);
        at.publish(mem, Walker::Coherent);
        streams.unsettle(all.clone());
        let messages = streams.state.messages.as_mut();
        if let Some(table) = messages.and_then(|messages| messages.known(stream)) {
            table.close(mem);
        }
        // What the stream had may be tagged by any domain.
        self.shared.forget_everything()?;
        self.shared.requests_cut.store(true, Ordering::Relaxed);
        let tables = &mut streams.state;
        if let Some(mut directory) = tables.processes.remove(&stream) {
            directory.free(mem);
        }
        let messages = tables.messages.as_mut();
        if let Some(table) = messages.and_then(|messages| messages.known(stream)) {
            table.slots().settle_all();
        }
        Ok(streams.settled(all))
    }
}

fn decode([who, what, ..]: [u64; WORDS]) -> RawPageRequest {
    let mut wants = Permissions::empty();
    wants.set(Permissions::READ, layout::READ.of(what) == 1);
    wants.set(Permissions::WRITE, layout::WRITE.of(what) == 1);
    wants.set(Permissions::EXECUTE, layout::EXEC.of(who) == 1);
    wants.set(Permissions::PRIVILEGED, layout::PRIV.of(who) == 1);
    let pasid = Pasid::new(layout::PID.of(who) as u32);
    let group = GroupId::new(layout::GROUP.of(what) as u16);
    let place = match layout::LAST.of(what) {
        0 => iopf::Place::More,
        _ => iopf::Place::Last,
    };
    RawPageRequest {
        stream: StreamId::new(layout::DID.of(who) as u32),
        pasid: (layout::PV.of(who) == 1).then_some(pasid),
        iova: Iova::new(layout::PAGE.of(what) << 12),
        wants,
        kind: RequestKind::Pri { group, place },
    }
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// The oldest page request, if any. Requests also count as lost where a stream has been moved that had
    /// some under way: while its context does not count, the unit answers them.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without a queue
    /// ([`Config::requests_lg2`](super::Config::requests_lg2)); if the unit is gone or a register
    /// makes no sense.
    pub fn next_page_request(&self) -> Result<Option<PageRequestEvent>, IommuError> {
        let shared = &self.shared;
        let requests = shared.requests.as_ref().ok_or(IommuError::Unsupported)?;
        Ok(match requests.next(&shared.control)? {
            NextRecord::Record(words) => Some(PageRequestEvent::Request(decode(words))),
            NextRecord::Lost => Some(PageRequestEvent::Lost),
            NextRecord::Nothing => {
                let cut = shared.requests_cut.swap(false, Ordering::Relaxed);
                cut.then_some(PageRequestEvent::Lost)
            }
        })
    }
}

impl<P: UnitPlatform> Responder for RiscvIommu<P> {
    type Error = IommuError;

    /// *Context.* Atomic. Sends a command and waits until the unit has taken it;
    /// [`IommuError::Unsupported`] without a queue of page requests, for a stall, which this
    /// architecture has not, and for a request that no device of the unit's can have sent.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), IommuError> {
        let ReplyName::Group(group) = to.name else {
            return Err(IommuError::Unsupported);
        };
        let lg2 = self.streams_lg2();
        let known = Directory::has(lg2, to.stream).is_some() && self.shared.requests.is_some();
        let fits = to.pasid.is_none_or(|pasid| pasid.get() >> 20 == 0) && group.get() < 512;
        if !known || !fits {
            return Err(IommuError::Unsupported);
        }
        let (stream, pasid) = (to.stream, to.pasid);
        let to = command::DeviceSpace { stream, pasid, lg2 };
        let answer = command::respond(to, group.get(), response);
        self.shared.run([answer].into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_by_hand() {
        // Device 0x123456 in address space 0xabcde, to execute and privileged, reads; the last of group 0x155.
        let words = [0x1234_5607_abcd_e000, 0x4000_0000 | 0x155 << 3 | 0b101, 0, 0];
        let wants = Permissions::READ | Permissions::EXECUTE | Permissions::PRIVILEGED;
        let (group, place) = (GroupId::new(0x155), iopf::Place::Last);
        let wanted = RawPageRequest {
            stream: StreamId::new(0x12_3456),
            pasid: Some(Pasid::new(0xa_bcde)),
            iova: Iova::new(0x4000_0000),
            wants,
            kind: RequestKind::Pri { group, place },
        };
        assert_eq!(decode(words), wanted);
        // Each bit of a record stands for what it stands for, or for nothing.
        for bit in 0..128 {
            let mut words = [0; WORDS];
            words[bit / 64] = 1 << (bit % 64);
            let found = decode(words);
            let marked = found != decode([0; WORDS]);
            // Without `PV` the address space is not looked at, and the record has reserved bits.
            let silent = matches!(bit, 0..=31 | 35..=39);
            assert_eq!(marked, !silent, "{bit}");
        }
    }
}
