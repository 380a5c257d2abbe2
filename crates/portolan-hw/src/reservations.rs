//! Addresses that firmware reserves for streams, as a unit is told of them.
//!
//! Firmware's tables ([`Dmar::reserved`](portolan_tables::dmar::Dmar::reserved),
//! [`Ivrs::reserved`](portolan_tables::ivrs::Ivrs::reserved),
//! [`Iort::reserved`](portolan_tables::iort::Iort::reserved)) yield [`Reserved`]; so may a reader
//! of a device tree (`reserved-memory` with `iommu-addresses`, message doorbells). [`Reservations`]
//! takes those that make sense, and counts the others with the reason. It is a part of the
//! configuration of each driver here, which reports it by
//! [`Iommu::reserved`](portolan::iommu::Iommu::reserved): then the DMA layer keeps off them, and
//! maps the memory that devices go on using before it attaches them.
//!
//! Firmware is not trusted: a driver leaves out regions that devices are to reach, unless
//! [`TrustedDescription`] comes with it ([`Reservations::believe`]). The embedder decides on the
//! amount of memory that firmware may claim: the tables cannot tell, only the machine's own memory
//! map can ([`Reservations::retain`]).
//!
//! *Context.* Interrupt for values; the methods of [`Reservations`] take memory: task.

use alloc::vec::Vec;

use portolan::addr::{PageSize, StreamId};
use portolan::iommu::{ReservedRegion, disjoint};
use thiserror::Error;

pub use portolan_tables::reserved::{Reserved, Streams};

use crate::promise::TrustedDescription;
use portolan_tables::TableError;

/// The page with which regions of firmware's are compared: no table has a smaller one.
const PAGE: PageSize = PageSize::SIZE_4K;

/// Reason for which a reservation of firmware is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Ignored {
    /// The table makes no sense there.
    #[error(transparent)]
    Table(#[from] TableError),
    /// It is larger than a region may be: mapping it would take too much memory, and time.
    #[error("{reserved} is longer than {most_bytes:#x} bytes")]
    TooLarge {
        /// The reservation.
        reserved: Reserved,
        /// Greatest length of a region, in bytes.
        most_bytes: u64,
    },
    /// The unit has no physical addresses as high.
    #[error("{reserved} reaches beyond {address_lg2} bits of physical addresses")]
    Beyond {
        /// The reservation.
        reserved: Reserved,
        /// Width of physical addresses in bits.
        address_lg2: u32,
    },
    /// It is to be mapped, and nothing is allowed there.
    #[error("{reserved} allows no access")]
    NoAccess {
        /// The reservation.
        reserved: Reserved,
    },
    /// Some stream cannot have both.
    #[error("{reserved} contradicts {other}")]
    Contradiction {
        /// The reservation that is ignored.
        reserved: Reserved,
        /// The reservation that it contradicts.
        other: Reserved,
    },
    /// The embedder does not believe it.
    #[error("{reserved} is not believed")]
    NotBelieved {
        /// The reservation.
        reserved: Reserved,
    },
    /// There are more than any machine has. The rest is not read.
    #[error("more than {most} reservations")]
    TooMany {
        /// Number of reservations that are read.
        most: usize,
    },
}

/// Limits of the memory that firmware may reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one region that is mapped one to one.
    pub most_bytes: u64,
    /// Reservations, those that are ignored or that repeat others included.
    pub most: usize,
}

impl Limits {
    /// 16 GiB, and 4096 reservations: servers' tables name each of their slots for each of ten
    /// regions.
    pub const USUAL: Self = Self { most_bytes: 16 << 30, most: 4096 };
}

impl Default for Limits {
    /// [`Limits::USUAL`].
    fn default() -> Self {
        Self::USUAL
    }
}

/// Reservations that were ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// Number of reservations.
    pub count: usize,
    /// The first of them.
    pub first: Option<Ignored>,
}

/// Addresses reserved for the streams of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Reservations {
    list: Vec<Reserved>,
    limits: Limits,
    offered: usize,
    left_out: LeftOut,
    believed: Option<TrustedDescription>,
}

impl Reservations {
    /// None yet.
    pub const fn new(limits: Limits) -> Self {
        Self {
            list: Vec::new(),
            limits,
            offered: 0,
            left_out: LeftOut { count: 0, first: None },
            believed: None,
        }
    }

    /// Lets drivers map regions that devices use at their own addresses, those in the list and
    /// later ones. Without that they leave them out ([`Ignored::NotBelieved`]).
    pub const fn believe(&mut self, description: TrustedDescription) {
        self.believed = Some(description);
    }

    /// Adds `reserved`, unless it makes no sense beside the others.
    ///
    /// # Errors
    /// See [`Ignored`]. It is counted.
    pub fn add(&mut self, reserved: Reserved) -> Result<(), Ignored> {
        let is_new = self.offer().and_then(|()| self.is_new(reserved));
        if is_new.map_err(|why| self.leave_out(why))? {
            self.list.push(reserved);
        }
        Ok(())
    }

    /// Adds all that `found` yields, until there are too many.
    ///
    /// # Errors
    /// The first thing that was ignored; all the rest is taken over nevertheless. All of them are
    /// counted.
    pub fn read<I>(&mut self, found: I) -> Result<(), Ignored>
    where
        I: IntoIterator<Item = Result<Reserved, TableError>>,
    {
        let mut first = Ok(());
        for item in found {
            let added = match item {
                Ok(reserved) => self.add(reserved),
                Err(error) => {
                    self.offer().and(Err(error.into())).map_err(|why| self.leave_out(why))
                }
            };
            first = first.and(added);
            if matches!(added, Err(Ignored::TooMany { .. })) {
                break;
            }
        }
        first
    }

    /// Ignores those that `believed` says no of.
    pub fn retain(&mut self, mut believed: impl FnMut(&Reserved) -> bool) {
        self.drop_some(|&reserved| {
            (!believed(&reserved)).then_some(Ignored::NotBelieved { reserved })
        });
    }

    /// Adds addresses that the hardware itself reserves for all streams. Reservations that
    /// contradict them go.
    pub(crate) fn hold(&mut self, windows: impl Iterator<Item = ReservedRegion>) {
        for region in windows {
            let other = Reserved::everywhere(region);
            self.drop_some(|&reserved| {
                let torn = reserved.contradicts(&other, PAGE);
                torn.then_some(Ignored::Contradiction { reserved, other })
            });
            self.list.push(other);
        }
    }

    /// Ignores regions to be mapped that are not believed, or lie beyond physical addresses of
    /// `address_lg2` bits: a driver's first step.
    pub(crate) fn within(&mut self, address_lg2: u32) {
        if self.believed.is_none() {
            self.retain(|reserved| reserved.region.kind.direct().is_none());
        }
        let beyond = 1u64.checked_shl(address_lg2).unwrap_or(u64::MAX);
        self.drop_some(|&reserved| {
            let last = reserved.region.range.last().get();
            let gone = reserved.region.kind.direct().is_some() && last >= beyond;
            gone.then_some(Ignored::Beyond { reserved, address_lg2 })
        });
    }

    /// Ignores those for which there is a reason.
    fn drop_some(&mut self, mut reason: impl FnMut(&Reserved) -> Option<Ignored>) {
        let mut list = core::mem::take(&mut self.list);
        list.retain(|reserved| match reason(reserved) {
            Some(why) => {
                self.leave_out(why);
                false
            }
            None => true,
        });
        self.list = list;
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Reserved> {
        self.list.iter()
    }

    /// Reservations that were ignored so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Hands the regions reserved for `stream` to `each`; those that are mapped one to one are in
    /// whole pages that do not overlap.
    pub fn of(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        let its = self.list.iter().filter(|one| one.streams.contains(stream));
        let regions: Vec<ReservedRegion> = its.map(|one| one.region).collect();
        // They were compared when they were added; without memory they are as good as they are.
        let regions = disjoint(&regions, PAGE).unwrap_or(regions);
        regions.into_iter().for_each(each);
    }

    /// Tells if the list lacks `reserved`, which makes sense beside the others.
    fn is_new(&self, reserved: Reserved) -> Result<bool, Ignored> {
        if let Some(access) = reserved.region.kind.direct() {
            let most_bytes = self.limits.most_bytes;
            if reserved.region.range.len_minus_one() >= most_bytes {
                return Err(Ignored::TooLarge { reserved, most_bytes });
            }
            if access.is_empty() {
                return Err(Ignored::NoAccess { reserved });
            }
        }
        let has =
            |one: &Reserved| one.region == reserved.region && one.streams.covers(reserved.streams);
        if self.list.iter().any(has) {
            return Ok(false);
        }
        match self.list.iter().find(|one| reserved.contradicts(one, PAGE)) {
            Some(&other) => Err(Ignored::Contradiction { reserved, other }),
            None => Ok(true),
        }
    }

    /// Counts one that is looked at.
    fn offer(&mut self) -> Result<(), Ignored> {
        let most = self.limits.most;
        if self.offered >= most {
            return Err(Ignored::TooMany { most });
        }
        self.offered += 1;
        Ok(())
    }

    fn leave_out(&mut self, why: Ignored) -> Ignored {
        self.left_out.count = self.left_out.count.saturating_add(1);
        self.left_out.first.get_or_insert(why);
        why
    }
}

#[cfg(test)]
mod tests;
