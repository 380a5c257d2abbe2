//! What a kind of unit says of itself.

use std::fmt::Debug;
use std::sync::Arc;

use portolan::addr::{PhysAddr, StreamId};

use super::{State, Unit};
use crate::adversary::Rank;
use crate::asking::Request;
use crate::clock::VirtualClock;
use crate::inject::DmaFault;
use crate::iommu::Temper;
use crate::stage::Stage;

/// What is a unit's own.
pub trait Design: Debug + Sized {
    /// How it is set up.
    type Setup: Conditions + Debug + Send + Sync;
    /// Registers, caches, and what else only this kind of unit has.
    type Own: Debug + Send;
    /// Numbers of what happened.
    type Counts: Told + Clone + Debug + Default + Send;
    /// An invalidation.
    type Invalidate: Debug + Send;
    /// Why an access is refused.
    type Refusal;

    /// Bytes of registers.
    const WINDOW: usize;

    /// The unit after reset.
    fn reset(setup: &Self::Setup) -> Self::Own;

    /// The caches of translations.
    fn stages(own: &mut Self::Own) -> Vec<&mut Stage>;

    /// Entries in its other caches.
    fn others(own: &Self::Own) -> usize;

    /// Carries out what its time has come for.
    fn go_on(unit: &Unit<Self>, state: &mut State<Self>);

    /// Where an address goes.
    fn translate(
        unit: &Unit<Self>,
        state: &mut State<Self>,
        of: Request,
    ) -> Result<PhysAddr, Self::Refusal>;

    /// Records a refusal, and says what the device is told.
    fn refuse(
        unit: &Unit<Self>,
        state: &mut State<Self>,
        refusal: Self::Refusal,
        of: Request,
    ) -> DmaFault;

    /// Whether a refusal says that entries of two sizes met in a cache.
    fn is_conflict(_: &Self::Refusal) -> bool {
        false
    }

    /// What an invalidation is about.
    fn rank(what: &Self::Invalidate) -> Rank;

    /// The class of an invalidation, which does not overtake those of lower classes.
    fn class(_: &Self::Invalidate) -> u8 {
        0
    }

    /// Drops what an invalidation concerns.
    fn invalidate(state: &mut State<Self>, what: Self::Invalidate);

    /// Whether a device may ask for translations.
    fn lets_translate(_: &Unit<Self>, _: &mut State<Self>, _: StreamId) -> bool {
        false
    }

    /// Whether accesses by translations that devices keep are let through only while those may ask.
    fn checks_translated(_: &Self::Own) -> bool {
        true
    }
}

/// What is counted for every unit.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    pub accesses: u64,
    pub walk_steps: u64,
    pub stray_responses: u64,
}

/// What every setup says.
pub trait Conditions {
    /// How caches behave, and the clock by which the unit is slow.
    fn conditions(&self) -> (&Temper, &Arc<VirtualClock>);
}

/// Numbers of what happened, with those that are counted for every unit.
pub trait Told {
    /// These with `sums` filled in.
    #[must_use]
    fn told(&self, sums: Sums) -> Self;
}
