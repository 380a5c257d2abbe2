//! Repeats of a fault, as one.

use std::collections::{BTreeMap, HashMap};

use super::context::Range;
use super::lines::Stamp;
use super::seen::{Kind, Seen};
use crate::facts::IommuKind;

/// Faults of different kinds that are kept; beyond it they are only counted.
const MOST: usize = 1024;
/// Pages of a fault that are kept.
pub(super) const MOST_PAGES: usize = 64;
/// A page, as the smallest that all units have.
pub(super) const PAGE: u64 = 4096;
/// Window of interrupt messages on x86 processors.
pub(super) const MESSAGES: Range = Range { first: 0xfee0_0000, last: 0xfeef_ffff };

/// A fault and its repeats.
#[derive(Clone, Debug)]
pub(super) struct Folded {
    /// The first one.
    pub(super) first: Seen,
    pub(super) last: Stamp,
    pub(super) count: u64,
    /// Lines about such faults that the kernel left out.
    pub(super) left_out: u64,
    /// From the lowest address to the highest.
    pub(super) range: Option<Range>,
    /// First addresses of pages, and the time of the last fault there.
    pub(super) pages: BTreeMap<u64, Option<u64>>,
    /// There were more pages.
    pub(super) has_more_pages: bool,
}

/// Addresses that are told apart although the rest is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Zone {
    None,
    Zero,
    Message,
    Other,
}

impl Zone {
    fn of(address: Option<u64>) -> Self {
        match address {
            None => Self::None,
            Some(0..PAGE) => Self::Zero,
            Some(address) if MESSAGES.has(address) => Self::Message,
            Some(_) => Self::Other,
        }
    }
}

/// The faults so far.
#[derive(Debug, Default)]
pub(super) struct Fold {
    at: HashMap<(String, Zone), usize>,
    pub(super) all: Vec<Folded>,
    /// Faults beyond the limit.
    pub(super) beyond: u64,
    /// Lines that the kernel left out before the first fault of these units.
    awaiting: Vec<(IommuKind, u64)>,
}

impl Fold {
    /// Adds a fault.
    pub(super) fn add(&mut self, seen: Seen) {
        let name = format!("{:?}", (&seen.unit, &seen.sender, seen.attempt, seen.kind, seen.pasid));
        let key = (name, Zone::of(seen.address));
        let known = self.at.get(&key).and_then(|at| self.all.get_mut(*at));
        if let Some(known) = known {
            return known.add(seen);
        }
        if self.all.len() >= MOST {
            self.beyond += 1;
            return;
        }
        self.at.insert(key, self.all.len());
        let last = seen.stamp.clone();
        let kind = seen.unit.kind;
        let mut one = Folded {
            first: seen.clone(),
            last,
            count: 0,
            left_out: 0,
            range: None,
            pages: BTreeMap::new(),
            has_more_pages: false,
        };
        one.add(seen);
        self.all.push(one);
        let of_kind = |waiting: &(IommuKind, u64)| waiting.0 == kind;
        if let Some(at) = self.awaiting.iter().position(of_kind) {
            let (kind, count) = self.awaiting.swap_remove(at);
            self.leave_out(kind, count);
        }
    }

    /// Notes that the kernel left out lines about the units of `kind`: those of its last fault, or of the next.
    pub(super) fn leave_out(&mut self, kind: IommuKind, count: u64) {
        let mut of_kind = self.all.iter_mut().rev().filter(|one| one.first.unit.kind == kind);
        if let Some(one) = of_kind.next() {
            one.left_out = one.left_out.saturating_add(count);
            return;
        }
        match self.awaiting.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, known)) => *known = known.saturating_add(count),
            None => self.awaiting.push((kind, count)),
        }
    }
}

impl Folded {
    fn add(&mut self, seen: Seen) {
        self.count += 1;
        if let Some(address) = seen.address {
            let known = self.range.unwrap_or(Range { first: address, last: address });
            let (first, last) = (known.first.min(address), known.last.max(address));
            self.range = Some(Range { first, last });
            let page = address / PAGE * PAGE;
            if self.pages.len() < MOST_PAGES || self.pages.contains_key(&page) {
                self.pages.insert(page, seen.stamp.since_start);
            } else {
                self.has_more_pages = true;
            }
        }
        self.first.driver = self.first.driver.take().or(seen.driver);
        self.last = seen.stamp;
    }

    /// Tells if a request of a device was refused.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(
            self.first.kind,
            Kind::Refused(_) | Kind::AbsentOrForbidden | Kind::BadRequest | Kind::Untold
        )
    }
}
