//! Setup of an IOMMU: its capabilities, its temper, its queue, and the prices of its events.

use std::sync::Arc;

use portolan::addr::{InvalTag, PageSize, StreamId};
use portolan::dma::TrapCost;
use portolan::inval::{Capabilities, Command, PageForm, RangeForm, Walker};
use thiserror::Error;

use crate::clock::VirtualClock;
use crate::decode::TableRoot;
use crate::profile::{CacheSizes, Event, MissingPrice, Profile, QueueLimits};

/// Behaviour of caches where the architecture leaves it open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Temper {
    /// The worst behaviour that the specification allows. Caches forget nothing until told and are always used. An
    /// invalidation takes effect only at the sync that awaits it, in the most harmful order.
    Adversarial,
    /// Behaviour of hardware: caches have a size and replace the least recently used entry; invalidations take effect
    /// at once.
    Realistic(CacheSizes),
}

/// Part of a page that an invalidation by address has to name, so that cached entries of it leave an adversarial
/// IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Any part of the page, as Arm has it.
    AnyPart,
    /// The whole page in one command, as VT-d has it: the address mask is at least as large as the
    /// page (IVA_REG, section 11.4.8).
    WholePage,
}

/// Configuration of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamConfig {
    /// All accesses are blocked.
    Blocked,
    /// Device addresses are memory addresses.
    Bypass,
    /// Through a table.
    Translate {
        /// Tag of its translations.
        context: InvalTag,
        /// The table.
        table: TableRoot,
    },
}

impl StreamConfig {
    /// The context that it points at.
    pub fn context(self) -> Option<InvalTag> {
        match self {
            Self::Translate { context, .. } => Some(context),
            Self::Blocked | Self::Bypass => None,
        }
    }
}

/// Origin of a debt, where the hardware's price depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// Maps only.
    AfterMap,
    /// Unmaps, perhaps among others.
    AfterUnmap,
}

/// Nanoseconds of the events that an IOMMU charges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommandPrices {
    /// [`Event::CmdPage`].
    pub page: f64,
    /// [`Event::CmdPageAfterMap`], or [`Event::CmdPage`] where the profile has no other price.
    pub page_after_map: f64,
    /// [`Event::CmdRange`].
    pub range: f64,
    /// [`Event::CmdContext`].
    pub context: f64,
    /// [`Event::CmdGlobal`].
    pub global: f64,
    /// [`Event::Sync`].
    pub sync: f64,
    /// [`Event::Exit`], for each [doorbell](crate::counters::doorbells).
    pub exit: f64,
    /// [`Event::CleanLine`].
    pub clean_line: f64,
    /// [`Event::IotlbMissStep`]: not charged to the clock, since it is the device that waits.
    pub miss_step: f64,
}

impl CommandPrices {
    /// Prices of `profile`; 0 for commands that it does not have.
    ///
    /// # Errors
    /// [`MissingPrice`] if one of the others is not there.
    pub fn of(profile: &Profile) -> Result<Self, MissingPrice> {
        let caps = profile.capabilities();
        let given = |can, event| if can { profile.price(event) } else { Ok(0.0) };
        let page = given(caps.page != PageForm::Absent, Event::CmdPage)?;
        Ok(Self {
            page,
            page_after_map: profile.price(Event::CmdPageAfterMap).unwrap_or(page),
            range: given(caps.range != RangeForm::Absent, Event::CmdRange)?,
            context: profile.price(Event::CmdContext)?,
            global: profile.price(Event::CmdGlobal)?,
            sync: profile.price(Event::Sync)?,
            exit: given(profile.surroundings().exits == TrapCost::Expensive, Event::Exit)?,
            clean_line: given(caps.walker == Walker::NonCoherent, Event::CleanLine)?,
            miss_step: profile.price(Event::IotlbMissStep)?,
        })
    }

    pub(crate) fn of_command(&self, command: Command, owed: Owed) -> f64 {
        match (command, owed) {
            (Command::Page { .. }, Owed::AfterMap) => self.page_after_map,
            (command, _) => self.of_other(command),
        }
    }

    fn of_other(&self, command: Command) -> f64 {
        match command {
            Command::Page { .. } => self.page,
            Command::Range { .. } => self.range,
            Command::Context { .. } | Command::Configuration { .. } => self.context,
            Command::Global => self.global,
        }
    }
}

/// Settings of an IOMMU.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Capabilities of the hardware; commands beyond them are refused.
    pub capabilities: Capabilities,
    /// Behaviour of its caches.
    pub temper: Temper,
    /// Part of a page that an invalidation by address has to name.
    pub names: Names,
    /// Its queue.
    pub queue: QueueLimits,
    /// Prices of its events.
    pub prices: CommandPrices,
    /// The clock that they are charged to.
    pub clock: Arc<VirtualClock>,
}

impl Setup {
    /// An adversarial IOMMU that takes no time, with a queue of 256 commands and a deadline of a
    /// second.
    pub fn adversarial(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            temper: Temper::Adversarial,
            names: Names::AnyPart,
            queue: QueueLimits { depth: 256, deadline_ns: 1_000_000_000 },
            prices: CommandPrices::default(),
            clock: Arc::default(),
        }
    }

    /// The IOMMU of a machine, with realistic caches.
    ///
    /// # Errors
    /// [`MissingPrice`] if the profile lacks the price of something that it can do.
    pub fn realistic(profile: &Profile) -> Result<Self, MissingPrice> {
        Ok(Self {
            capabilities: profile.capabilities(),
            temper: Temper::Realistic(profile.caches()),
            names: Names::AnyPart,
            queue: profile.queue(),
            prices: CommandPrices::of(profile)?,
            clock: Arc::default(),
        })
    }

    /// Everything that the types can express, with a coherent walker that caches present entries only: a starting
    /// point for tests.
    pub fn able(granule: PageSize) -> Capabilities {
        Capabilities {
            range: RangeForm::PowerOfTwo { max_lg2_pages: 52 },
            ..Capabilities::new(granule)
        }
    }
}

/// Faults on demand, for tests of error paths. Numbers count from 1, over the IOMMU's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injection {
    /// The invalidation that is refused.
    pub fail_command: Option<u64>,
    /// The sync that does not complete.
    pub stall_sync: Option<u64>,
}

/// A step that was not carried out; earlier ones were, later ones were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The hardware reported an error.
    #[error("invalidation number {ordinal} failed: {command:?}")]
    Failed {
        /// Its number since the start, from 1.
        ordinal: u64,
        /// The command.
        command: Command,
    },
    /// The hardware does not have the command, according to its capabilities.
    #[error("this hardware has no such command: {command:?}")]
    Illegal {
        /// The command.
        command: Command,
    },
    /// A sync did not complete in time.
    #[error("sync number {ordinal} did not complete in {waited_ns} ns")]
    TimedOut {
        /// Its number since the start, from 1.
        ordinal: u64,
        /// The deadline, which has passed in virtual time.
        waited_ns: u64,
    },
}

/// Entry of a stream in the configuration cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CachedConfig {
    pub(super) stream: StreamId,
    /// Configuration of the stream. `None` is cached only by hardware that caches absence.
    pub(super) config: Option<StreamConfig>,
}
