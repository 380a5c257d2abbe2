//! Operations on their way out, in the order of the trace.
//!
//! The operation of an event may be known only by a later one: a piece of a table is a part of the operation of the
//! `dma:*` event after it, or of an operation of its own, which ends where the unmap says. Such an event keeps a
//! place, and later events wait. Places are limited: if there are more, the first is decided with the knowledge of
//! that time.

use std::collections::VecDeque;

use super::op::{Op, OpKind, Piece};
use super::summary::EVIDENCE;

/// Operations, places and pieces that wait at most.
const MOST_WAITING: usize = 1 << 16;
/// Emptied operations that are kept to be filled again.
const SPARE: usize = 1 << 10;

/// An operation, with the memory that it borrows when it is handed out.
pub(super) struct Outgoing {
    op: Option<Op<'static>>,
    pieces: Vec<Piece>,
    /// Beginning of the text of its line, as long as an excerpt shows.
    text: Vec<u8>,
    next: Option<Box<Outgoing>>,
}

impl Outgoing {
    pub(super) fn op(&self) -> Option<Op<'_>> {
        let mut op: Op<'_> = self.op?;
        op.text = &self.text;
        if let OpKind::Map { pieces, .. } = &mut op.kind {
            *pieces = &self.pieces;
        }
        Some(op)
    }
}

/// Reason why a place waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// A piece of a table at these addresses, first and last, for the operation that it is a part of.
    Piece(u64, u64),
    /// The unmap of a mapping that begins at this address, for its `dma:*` event.
    Unmap(u64),
}

struct KeptPlace {
    /// Parts of its event that are not decided.
    undecided: u32,
    waits: Option<Waits>,
    first: Option<Box<Outgoing>>,
}

/// Operations and places, oldest first.
#[derive(Default)]
pub(super) struct Outbox {
    slots: VecDeque<KeptPlace>,
    /// Number of the first slot.
    first: u64,
    /// Pieces of the operations that wait.
    pieces: usize,
    #[expect(clippy::vec_box, reason = "they are handed out as they are")]
    spare: Vec<Box<Outgoing>>,
}

impl Outbox {
    fn fresh(&mut self, text: &[u8]) -> Box<Outgoing> {
        let mut fresh = self.spare.pop().unwrap_or_else(|| {
            Box::new(Outgoing { op: None, pieces: Vec::new(), text: Vec::new(), next: None })
        });
        let text = text.trim_ascii();
        // One byte more says that there is more.
        let kept = text.get(..=EVIDENCE).unwrap_or(text);
        fresh.text.extend_from_slice(kept);
        fresh
    }

    /// Keeps an empty operation to be filled again.
    pub(super) fn give_back(&mut self, mut used: Box<Outgoing>) {
        if self.spare.len() < SPARE {
            used.op = None;
            used.pieces.clear();
            used.text.clear();
            used.next = None;
            self.spare.push(used);
        }
    }

    /// Adds an operation that is known.
    pub(super) fn push(&mut self, op: Op<'static>, pieces: &[Piece], text: &[u8]) {
        let mut outgoing = self.fresh(text);
        outgoing.op = Some(op);
        outgoing.pieces.extend_from_slice(pieces);
        self.pieces += pieces.len();
        self.slots.push_back(KeptPlace { undecided: 0, waits: None, first: Some(outgoing) });
    }

    /// Keeps a place for the operation of an event; returns the place's number.
    pub(super) fn wait(&mut self, waits: Waits, text: &[u8]) -> u64 {
        let number = self.first + self.slots.len() as u64;
        let first = Some(self.fresh(text));
        self.slots.push_back(KeptPlace { undecided: 1, waits: Some(waits), first });
        number
    }

    fn slot(&mut self, number: u64) -> Option<&mut KeptPlace> {
        let index = number.checked_sub(self.first)?;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    /// Puts an operation where place `number` was kept.
    pub(super) fn fill(&mut self, number: u64, op: Op<'static>, pieces: &[Piece]) {
        let Some(slot) = self.slot(number) else {
            return;
        };
        let Some(mut outgoing) = slot.first.take() else {
            return;
        };
        if outgoing.op.is_some() {
            // Another part of the event: after those that are there.
            let mut other = self.fresh(&outgoing.text);
            other.next = Some(outgoing);
            outgoing = other;
        }
        outgoing.op = Some(op);
        outgoing.pieces.extend_from_slice(pieces);
        self.pieces += pieces.len();
        if let Some(slot) = self.slot(number) {
            slot.first = Some(outgoing);
        }
    }

    /// Says that the event at place `number` has a part more that is not decided.
    pub(super) fn split(&mut self, number: u64) {
        if let Some(slot) = self.slot(number) {
            slot.undecided += 1;
        }
    }

    /// Says that a part of the event at place `number` is decided.
    pub(super) fn decide(&mut self, number: u64) {
        let Some(slot) = self.slot(number) else {
            return;
        };
        slot.undecided = slot.undecided.saturating_sub(1);
        if slot.undecided == 0
            && let Some(empty) = slot.first.take_if(|first| first.op.is_none())
        {
            self.give_back(empty);
        }
    }

    /// The next operation, if it is known and nothing before it waits.
    pub(super) fn pop(&mut self) -> Option<Box<Outgoing>> {
        loop {
            let slot = self.slots.front_mut()?;
            if slot.undecided > 0 {
                return None;
            }
            if let Some(mut outgoing) = slot.first.take() {
                slot.first = outgoing.next.take();
                self.pieces = self.pieces.saturating_sub(outgoing.pieces.len());
                return Some(outgoing);
            }
            self.slots.pop_front();
            self.first += 1;
        }
    }

    /// The place that has waited longest, and its number.
    pub(super) fn longest_waiting(&self) -> Option<(u64, Waits)> {
        let slot = self.slots.front().filter(|slot| slot.undecided > 0)?;
        Some((self.first, slot.waits?))
    }

    /// Tells if something waits.
    pub(super) fn waits(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Tells if more wait than may.
    pub(super) fn is_full(&self) -> bool {
        self.slots.len() + self.pieces > MOST_WAITING
    }
}
