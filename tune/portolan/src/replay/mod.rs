//! Replay: costs of a machine's DMA activity under each invalidation policy.
//!
//! Each policy drives the library's DMA layer against the model of one machine, in virtual time.
//! `docs/replay.md` describes the counts.

mod answer;
mod bins;
mod bounce;
mod chunk;
mod cost;
mod drive;
mod findings;
mod fit;
mod input;
mod lane;
mod policy;
mod recorded;
mod report;
mod run;
mod sent;
mod setting;
mod settings;
mod shape;
mod situation;
mod state;
mod tally;
mod text;
mod timeline;
mod warnings;
mod window;
mod worth;

pub(crate) use answer::{answer, more, understood};
pub use bounce::{Force, Swiotlb};
pub(crate) use chunk::padded;
pub use cost::{Causes, CpuCost, MappingCost, WORTH_PCT_OF_LOAD};
pub(crate) use findings::sent_finding;
pub use fit::{Choice, Measured, Sureness, fit, sentences};
pub(crate) use fit::{of_machine, of_recording, priced_as};
pub use input::TraceInput;
pub use policy::Policy;
pub use recorded::{DeviceTimeline, RecordedTimeline};
pub use report::{
    BounceCounts, DeviceCounts, ENOUGH_PCT, PolicyReport, ReplayReport, Saved, TimeByCause,
    TraceReport,
};
pub use run::Replay;
pub use sent::{Predicted, Sent};
pub use setting::{Besides, Effect, Evidence, Rule, Saving, Setting, Target, Then};
pub use shape::{ClassShape, Directions, Histogram, OperationGroup, Share, TraceShape};
pub use situation::{KnownBy, Now, Situation};
pub use text::{COLUMNS_IN_WORDS, text};
pub use timeline::{Interval, Timeline};

/// The machine that replays run on if none is named.
pub const DEFAULT_MACHINE: &str = "xeon-vtd";
/// Seed of the order of events at one time.
pub const SEED: u64 = 1;
