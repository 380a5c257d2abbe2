//! Making of a record.
//!
//! *Context.* Task: sections are put together in heap memory.

use alloc::vec::Vec;

use portolan::addr::{Pasid, PhysAddr};
use portolan::iommu::handover::{
    DomainHandover, HandoverTarget, InterruptHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{Delivery, Destination, DeviceTlb, InterruptSource, Trigger};
use portolan::table::format::DirtyTracking;

use super::PrepareError;
use super::layout::{
    DESTINATION, ENTRY, HAS_PASID, HAS_TLB, HEADER, INDEX, INTERRUPTS, LEVEL, LOGICAL,
    LOWEST_PRIORITY, MAGIC, MOST_UNITS, PASSES, RecordedKind, SEAL, SOURCE, SOURCE_KIND, VECTOR,
    VERSION, crc32,
};

/// Unit for a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedUnit {
    /// Address of its registers.
    pub base: PhysAddr,
    /// Its kind.
    pub kind: RecordedKind,
    /// Its state.
    pub state: UnitHandover,
}

/// Writes the record of `units` into the first bytes of `into`; returns their number.
///
/// # Errors
/// See [`PrepareError`]; nothing is written.
pub fn write(units: &[RecordedUnit], into: &mut [u8]) -> Result<usize, PrepareError> {
    let count = u32::try_from(units.len()).ok().filter(|count| *count <= MOST_UNITS);
    let count = count.ok_or(PrepareError::TooLong)?;
    let first = HEADER + ENTRY * units.len() + SEAL;
    let mut directory = Vec::new();
    let mut sections = Vec::new();
    for unit in units {
        let section = section(&unit.state);
        let offset = u32::try_from(first + sections.len()).map_err(|_| PrepareError::TooLong)?;
        let length = u32::try_from(section.len()).map_err(|_| PrepareError::TooLong)?;
        directory.extend(unit.base.get().to_le_bytes());
        for word in [unit.kind.number(), offset, length, crc32(&section)] {
            directory.extend(word.to_le_bytes());
        }
        sections.extend(section);
    }
    let length = (first + sections.len()) as u64;
    let mut record = Vec::from(MAGIC);
    record.extend(VERSION.to_le_bytes());
    record.extend(count.to_le_bytes());
    record.extend(length.to_le_bytes());
    record.extend(directory);
    let seal = u64::from(crc32(&record));
    record.extend(seal.to_le_bytes());
    record.extend(sections);
    let (needed, room) = (record.len(), into.len());
    let place = into.get_mut(..needed).ok_or(PrepareError::Room { needed, room })?;
    place.copy_from_slice(&record);
    Ok(needed)
}

/// The section of a unit.
fn section(state: &UnitHandover) -> Vec<u8> {
    let mut words = Vec::from(state.features);
    words.extend([state.root, state.shape, state.interrupt_root]);
    let [queues, domains, streams] = [state.queues.len(), state.domains.len(), state.streams.len()];
    let counts = [queues, domains, streams, state.reserved.len(), state.interrupts.len()];
    words.extend(counts.map(|count| count as u64));
    for queue in &state.queues {
        words.extend([queue.at.get(), queue.bytes]);
    }
    for domain in &state.domains {
        add_domain(&mut words, domain);
    }
    for stream in &state.streams {
        words.extend(stream_words(stream));
    }
    for reserved in &state.reserved {
        let range = reserved.range;
        let stream = u64::from(reserved.stream.get());
        words.extend([stream, range.start().get(), range.last().get()]);
    }
    words.extend(state.interrupts.iter().flat_map(interrupt_words));
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn add_domain(words: &mut Vec<u64>, domain: &DomainHandover) {
    let tables = &domain.tables;
    let [levels, input, output] =
        [tables.levels, tables.input_lg2, tables.output_lg2].map(u64::from);
    let marks = u64::from(tables.dirty == DirtyTracking::Hardware);
    let shape = levels | input << 8 | output << 16 | marks << 24;
    let ranges = tables.mapped.len() as u64;
    words.extend([domain.tag.get().into(), tables.root.get(), shape, tables.pages, ranges]);
    for range in &tables.mapped {
        words.extend([range.start().get(), range.last().get()]);
    }
}

/// The words of an attachment.
fn stream_words(stream: &StreamHandover) -> [u64; 4] {
    let pasid = stream.requester.pasid;
    let flag = |is: bool, flag: u64| if is { flag } else { 0 };
    let (passes, tag) = match stream.target {
        HandoverTarget::Everything => (PASSES, 0),
        HandoverTarget::Domain(tag) => (0, tag.get()),
        HandoverTarget::Interrupts => (INTERRUPTS, 0),
    };
    let tlb = stream.tlb.map_or(0, |DeviceTlb { depth, physical, twice }| {
        u64::from(depth) | u64::from(twice) << 8 | u64::from(physical) << 16
    });
    [
        u64::from(stream.requester.stream.get()) | flag(pasid.is_some(), HAS_PASID),
        u64::from(pasid.map_or(0, Pasid::get)) | passes | flag(stream.tlb.is_some(), HAS_TLB),
        tag.into(),
        tlb,
    ]
}

/// The words of an interrupt.
fn interrupt_words(interrupt: &InterruptHandover) -> [u64; 2] {
    let InterruptHandover { source, index, target } = interrupt;
    let (kind, source) = match *source {
        InterruptSource::Requester(of) => (0, of.get().into()),
        InterruptSource::Device(of) => (1, of.get().into()),
        InterruptSource::Buses { first, last } => (2, u64::from(first) << 8 | u64::from(last)),
    };
    let logical = matches!(target.destination, Destination::Logical(_));
    [
        SOURCE_KIND.at(kind) | SOURCE.at(source) | INDEX.at((*index).into()),
        DESTINATION.at(target.destination.get().into())
            | VECTOR.at(target.vector.get().into())
            | LOGICAL.at(logical.into())
            | LOWEST_PRIORITY.at((target.delivery == Delivery::LowestPriority).into())
            | LEVEL.at((target.trigger == Trigger::Level).into()),
    ]
}
