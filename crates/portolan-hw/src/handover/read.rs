//! Reading of a record that any program may have changed.
//!
//! The work and the memory that reading takes are bounded by the length of the record: each count is
//! compared with the words that are left before anything is made of it.
//!
//! *Context.* Task: lists take heap memory.

use alloc::vec::Vec;

use portolan::addr::{InvalTag, Iova, IovaRange, Pasid, PhysAddr, RequesterId, StreamId};
use portolan::iommu::handover::{
    DomainHandover, DomainTables, HandoverTarget, InterruptHandover, MemoryHandover,
    ReservedHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{
    Delivery, Destination, DeviceTlb, InterruptSource, InterruptTarget, Requester, Trigger, Vector,
};
use portolan::table::format::DirtyTracking;

use super::layout::{
    DESTINATION, ENTRY, HAS_PASID, HAS_TLB, HEADER, INDEX, INTERRUPTS, LEVEL, LOGICAL,
    LOWEST_PRIORITY, MAGIC, MOST_UNITS, PASSES, RecordedKind, SEAL, SOURCE, SOURCE_KIND, VECTOR,
    VERSION, crc32,
};
use super::{RecordError, SectionError};

/// A record whose header and directory are sound.
#[derive(Clone, Copy, Debug)]
pub struct Record<'b> {
    bytes: &'b [u8],
    directory: &'b [u8],
}

/// The 32 bits at `offset`, zeros where there are none.
fn word32(bytes: &[u8], offset: usize) -> u32 {
    let word = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

/// The same of 64 bits.
fn word64(bytes: &[u8], offset: usize) -> u64 {
    u64::from(word32(bytes, offset)) | u64::from(word32(bytes, offset + 4)) << 32
}

impl<'b> Record<'b> {
    /// Checks header and directory of the record at the begin of `bytes`.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn read(bytes: &'b [u8]) -> Result<Self, RecordError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(RecordError::NoRecord);
        }
        let version = word32(bytes, 8);
        if bytes.len() >= HEADER && version != VERSION {
            return Err(RecordError::Version { version });
        }
        let (units, length) = (word32(bytes, 12), word64(bytes, 16));
        if units > MOST_UNITS {
            return Err(RecordError::TooMany { units });
        }
        let sealed = HEADER + ENTRY * units as usize;
        let short = RecordError::Length { bytes: bytes.len(), length };
        let whole = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
        let whole = whole.filter(|whole| whole.len() >= sealed + SEAL).ok_or(short)?;
        let (before, _) = whole.split_at(sealed);
        let (stored, computed) = (word32(whole, sealed), crc32(before));
        if stored != computed || word32(whole, sealed + 4) != 0 {
            return Err(RecordError::Checksum { stored, computed });
        }
        let directory = before.get(HEADER..).unwrap_or_default();
        Ok(Self { bytes: whole, directory })
    }

    /// Number of units.
    pub fn units(&self) -> usize {
        self.directory.len() / ENTRY
    }

    /// The state of the unit of that kind with registers at `base`.
    ///
    /// # Errors
    /// See [`SectionError`].
    pub fn unit(&self, base: PhysAddr, kind: RecordedKind) -> Result<UnitHandover, SectionError> {
        let mut entries = self.directory.chunks_exact(ENTRY);
        let its = |entry: &&[u8]| word64(entry, 0) == base.get();
        let entry = entries.find(its).ok_or(SectionError::Absent { base })?;
        if entries.any(|entry| its(&entry)) {
            return Err(SectionError::Twice { base });
        }
        let [number, offset, length, stored] = [8, 12, 16, 20].map(|at| word32(entry, at));
        if number != kind.number() {
            return Err(SectionError::Kind { kind: number });
        }
        let section = self.bytes.get(offset as usize..);
        let section = section.and_then(|section| section.get(..length as usize));
        let section = section.ok_or(SectionError::Outside { offset, length })?;
        let computed = crc32(section);
        if stored != computed {
            return Err(SectionError::Checksum { stored, computed });
        }
        Section { bytes: section, word: 0 }.state()
    }
}

/// Words of a section that are read one after another.
struct Section<'b> {
    bytes: &'b [u8],
    /// Number of the next word.
    word: usize,
}

impl Section<'_> {
    /// Error of the word that was read last.
    fn wrong(&self) -> SectionError {
        SectionError::Word { word: self.word.saturating_sub(1) }
    }

    fn check(&self, holds: bool) -> Result<(), SectionError> {
        if holds { Ok(()) } else { Err(self.wrong()) }
    }

    fn next(&mut self) -> Result<u64, SectionError> {
        let word = self.bytes.get(self.word * 8..).and_then(|rest| rest.first_chunk());
        self.word += 1;
        Ok(u64::from_le_bytes(*word.ok_or(self.wrong())?))
    }

    fn next_array<const N: usize>(&mut self) -> Result<[u64; N], SectionError> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.next()?;
        }
        Ok(words)
    }

    fn next32(&mut self) -> Result<u32, SectionError> {
        let word = self.next()?;
        u32::try_from(word).map_err(|_| self.wrong())
    }

    /// `count` items of at least `words` words, each read by `item`.
    fn list<T>(
        &mut self,
        count: u64,
        words: usize,
        item: impl Fn(&mut Self) -> Result<T, SectionError>,
    ) -> Result<Vec<T>, SectionError> {
        let left = (self.bytes.len() / 8).saturating_sub(self.word);
        let count = usize::try_from(count).ok().filter(|count| *count <= left / words);
        (0..count.ok_or(self.wrong())?).map(|_| item(self)).collect()
    }

    fn state(mut self) -> Result<UnitHandover, SectionError> {
        let features = self.next_array()?;
        let [root, shape, interrupt_root] = self.next_array()?;
        let [queues, domains, streams, reserved, interrupts] = self.next_array()?;
        let queues = self.list(queues, 2, Self::memory)?;
        let domains = self.list(domains, 5, Self::domain)?;
        let tags = domains.iter().map(|domain: &DomainHandover| domain.tag);
        self.check(tags.is_sorted_by(|one, next| one < next))?;
        let streams = self.list(streams, 4, Self::stream)?;
        let names = streams.iter().map(|stream: &StreamHandover| stream.requester);
        self.check(names.is_sorted_by(|one, next| one < next))?;
        let reserved = self.list(reserved, 3, Self::reserved)?;
        let interrupts = self.list(interrupts, 2, Self::interrupt)?;
        let names = interrupts.iter().map(|one: &InterruptHandover| (one.source, one.index));
        self.check(names.is_sorted_by(|one, next| one < next))?;
        self.word += 1;
        self.check(self.bytes.len() == (self.word - 1) * 8)?;
        let state = UnitHandover {
            features,
            root,
            shape,
            interrupt_root,
            queues,
            domains,
            streams,
            reserved,
            interrupts,
        };
        let leads = |stream: &StreamHandover| match stream.target {
            HandoverTarget::Everything | HandoverTarget::Interrupts => true,
            HandoverTarget::Domain(tag) => state.domain(tag).is_some(),
        };
        self.check(state.streams.iter().all(leads))?;
        Ok(state)
    }

    fn memory(&mut self) -> Result<MemoryHandover, SectionError> {
        let [at, bytes] = self.next_array()?;
        Ok(MemoryHandover { at: PhysAddr::new(at), bytes })
    }

    fn range(&mut self) -> Result<IovaRange, SectionError> {
        let [first, last] = self.next_array()?.map(Iova::new);
        IovaRange::new(first, last).ok_or(self.wrong())
    }

    fn domain(&mut self) -> Result<DomainHandover, SectionError> {
        let tag = InvalTag::new(self.next32()?);
        let root = PhysAddr::new(self.next()?);
        let shape = self.next32()?;
        self.check(shape >> 25 == 0)?;
        let dirty = match shape >> 24 {
            0 => DirtyTracking::Off,
            _ => DirtyTracking::Hardware,
        };
        let [levels, input_lg2, output_lg2] = [0, 8, 16].map(|at| shape >> at & 0xff);
        let [pages, ranges] = self.next_array()?;
        let mapped = self.list(ranges, 2, Self::range)?;
        let apart = |one: &IovaRange, next: &IovaRange| one.last() < next.start();
        self.check(mapped.is_sorted_by(apart))?;
        let tables = DomainTables { root, levels, input_lg2, output_lg2, dirty, pages, mapped };
        Ok(DomainHandover { tag, tables })
    }

    fn stream(&mut self) -> Result<StreamHandover, SectionError> {
        let name = self.next()?;
        self.check(name >> 33 == 0)?;
        let stream = StreamId::new(name as u32);
        let how = self.next()?;
        self.check(how >> 35 == 0)?;
        let pasid = (name & HAS_PASID != 0).then_some(Pasid::new(how as u32));
        self.check(pasid.is_some() || how as u32 == 0)?;
        let tag = self.next32()?;
        let target = match how & (PASSES | INTERRUPTS) {
            0 => HandoverTarget::Domain(InvalTag::new(tag)),
            PASSES => HandoverTarget::Everything,
            INTERRUPTS => HandoverTarget::Interrupts,
            _ => return Err(self.wrong()),
        };
        self.check(matches!(target, HandoverTarget::Domain(_)) || tag == 0)?;
        let tlb = self.next32()?;
        let known = tlb & 0xfe00 == 0 && (1..=32).contains(&(tlb & 0xff));
        let tlb = match how & HAS_TLB {
            0 => self.check(tlb == 0).map(|()| None)?,
            _ => {
                self.check(known)?;
                let (depth, physical) = (tlb as u8, (tlb >> 16) as u16);
                Some(DeviceTlb { depth, physical, twice: tlb >> 8 & 1 != 0 })
            }
        };
        Ok(StreamHandover { requester: Requester { stream, pasid }, target, tlb })
    }

    fn reserved(&mut self) -> Result<ReservedHandover, SectionError> {
        let stream = StreamId::new(self.next32()?);
        Ok(ReservedHandover { stream, range: self.range()? })
    }

    fn interrupt(&mut self) -> Result<InterruptHandover, SectionError> {
        let from = self.next()?;
        let named = SOURCE.of(from);
        let requester = RequesterId::new(named as u16);
        let source = match SOURCE_KIND.of(from) {
            0 => InterruptSource::Requester(requester),
            1 => InterruptSource::Device(requester),
            2 => InterruptSource::Buses { first: (named >> 8) as u8, last: named as u8 },
            _ => return Err(self.wrong()),
        };
        let to = self.next()?;
        self.check(to >> 43 == 0)?;
        let vector = Vector::new(VECTOR.of(to) as u8).ok_or(self.wrong())?;
        let destination = DESTINATION.of(to) as u32;
        let destination = match LOGICAL.of(to) {
            0 => Destination::Physical(destination),
            _ => Destination::Logical(destination),
        };
        let mut target = InterruptTarget::new(vector, destination);
        if LOWEST_PRIORITY.of(to) != 0 {
            target.delivery = Delivery::LowestPriority;
        }
        if LEVEL.of(to) != 0 {
            target.trigger = Trigger::Level;
        }
        Ok(InterruptHandover { source, index: INDEX.of(from) as u16, target })
    }
}
