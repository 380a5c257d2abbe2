//! Mappings of identifiers from node to node, and following them to an SMMU.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, section 3.1.1 (table 4). That HiSilicon's HIP07
//! and HIP08 count otherwise is known from Linux (`drivers/acpi/arm64/iort.c`, 2020).
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use portolan::addr::StreamId;

use super::super::TableError;
use super::super::bytes::Bytes;
use super::super::sdt::Maker;
use super::Iort;
use super::node::{Body, Node};
use portolan::addr::{RequesterId, Segment};

/// Bytes of a mapping.
pub(super) const BYTES: usize = 20;
/// Nodes on a path: a component, translators and an interrupt service are fewer.
const MOST_STEPS: u32 = 16;

/// What the field "number of IDs" of a mapping holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdCount {
    /// The number less one, as specified.
    LessOne,
    /// The number itself: firmware of some machines misread the specification, so that each range
    /// reaches into the one behind it.
    Whole,
}

/// Firmware that writes [`IdCount::Whole`].
const WHOLE_COUNTS: [Maker; 2] = [maker(*b"HIP07   "), maker(*b"HIP08   ")];

const fn maker(table: [u8; 8]) -> Maker {
    Maker {
        oem: *b"HISI  ",
        table,
        revision: 0,
    }
}

impl IdCount {
    /// How the maker of a table counts.
    pub(super) fn of(maker: Maker) -> Self {
        if WHOLE_COUNTS.contains(&maker) {
            Self::Whole
        } else {
            Self::LessOne
        }
    }

    /// The number less one. A count of none is taken for one, which is what every reading of the
    /// field gives a single device.
    const fn less_one(self, field: u32) -> u32 {
        match self {
            Self::LessOne => field,
            Self::Whole => field.saturating_sub(1),
        }
    }
}

/// Whether a mapping is for one device that has no identifier of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {
    /// A range of identifiers.
    Range,
    /// Whatever goes in, the output base comes out.
    Single,
}

/// Which identifiers leave a node, and what they are at the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First identifier.
    pub input: u32,
    /// Number of identifiers less one, whatever the table's [`IdCount`].
    pub count_minus_one: u32,
    /// What the first identifier becomes.
    pub output: u32,
    /// Offset of the next node.
    pub target: u32,
    /// Which kind.
    pub single: Single,
}

impl Mapping {
    /// What `id` becomes; `None` if the mapping is not for it.
    pub fn apply(&self, id: u32) -> Option<u32> {
        if self.single == Single::Single {
            return Some(self.output);
        }
        let above = id.checked_sub(self.input)?;
        if above > self.count_minus_one {
            return None;
        }
        self.output.checked_add(above)
    }

    /// Whether `id` is the last of several. Then a mapping that begins there is to be believed
    /// rather: the count of this one is the number of identifiers, not that less one.
    fn ends_at(&self, id: u32) -> bool {
        let last = self.input.checked_add(self.count_minus_one);
        self.single == Single::Range && self.count_minus_one > 0 && last == Some(id)
    }
}

/// The mappings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappings<'a> {
    rest: Bytes<'a>,
    id_count: IdCount,
}

impl<'a> Mappings<'a> {
    pub(super) fn new(rest: Bytes<'a>, id_count: IdCount) -> Self {
        Self { rest, id_count }
    }
}

impl Iterator for Mappings<'_> {
    type Item = Mapping;

    fn next(&mut self) -> Option<Mapping> {
        let one = self.rest.part(0, BYTES).ok()?;
        self.rest = self.rest.from(BYTES);
        let word = |at| one.u32(at).ok();
        Some(Mapping {
            input: word(0)?,
            count_minus_one: self.id_count.less_one(word(4)?),
            output: word(8)?,
            target: word(12)?,
            single: if word(16)? & 1 != 0 {
                Single::Single
            } else {
                Single::Range
            },
        })
    }
}

/// Where an identifier ends up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The SMMU's node.
    pub unit: Node<'a>,
    /// The stream there.
    pub stream: StreamId,
}

impl Node<'_> {
    /// Where `id` of this node leads, and what it is there.
    ///
    /// Ranges must not overlap. Where they share one identifier, the end of one and the start of the
    /// other, the one that starts has it.
    fn leads(&self, id: u32) -> Option<(u32, u32)> {
        // Elsewhere a single mapping is for the messages that the node sends itself.
        let single = matches!(self.body, Body::NamedComponent(_) | Body::RootComplex(_));
        let mut shared = None;
        for mapping in self.mappings {
            let fits = mapping.single == Single::Range || single;
            let Some(output) = mapping.apply(id).filter(|_| fits) else {
                continue;
            };
            let found = (mapping.target, output);
            match shared {
                None if mapping.ends_at(id) => shared = Some(found),
                Some(_) if mapping.input != id => {}
                _ => return Some(found),
            }
        }
        shared
    }
}

impl<'a> Iort<'a> {
    /// The SMMU that serves a PCI function, and the function's stream there. `None` if no root
    /// complex has the function, or it reaches memory untranslated.
    ///
    /// # Errors
    /// What is wrong with a node on the way; [`TableError::Loop`] if the way does not end.
    pub fn resolve(
        &self,
        segment: Segment,
        requester: RequesterId,
    ) -> Result<Option<Resolved<'a>>, TableError> {
        for node in self.nodes() {
            let node = node?;
            let Body::RootComplex(complex) = node.body else {
                continue;
            };
            if complex.segment != segment {
                continue;
            }
            // Several root complexes may share a segment, each with its buses.
            if let Some(found) = self.resolve_from(&node, requester.get().into())? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// As [`Iort::resolve`], for `input` of `node`: a requester of a root complex, or the number of
    /// an identifier of a named component.
    ///
    /// # Errors
    /// As [`Iort::resolve`].
    pub fn resolve_from(
        &self,
        node: &Node<'a>,
        input: u32,
    ) -> Result<Option<Resolved<'a>>, TableError> {
        let (mut at, mut id) = (*node, input);
        for _ in 0..MOST_STEPS.min(self.count.saturating_add(1)) {
            let Some((target, output)) = at.leads(id) else {
                return Ok(None);
            };
            at = self.node_at(at.offset, target)?;
            id = output;
            match at.body {
                Body::Smmu(_) | Body::SmmuV3(_) => {
                    return Ok(Some(Resolved {
                        unit: at,
                        stream: StreamId::new(id),
                    }));
                }
                Body::ItsGroup(_) => return Ok(None),
                _ => {}
            }
        }
        Err(TableError::Loop {
            offset: node.offset,
        })
    }
}
