//! Parts that differ by the kind of unit.

use std::fmt::Debug;
use std::sync::Arc;

use portolan::addr::{PhysAddr, StreamId};
use portolan::platform::Word;

use super::{DesignState, Unit};
use crate::inject::DmaFault;
use crate::stage::Stage;
use portolan_sim::adversary::Rank;
use portolan_sim::clock::VirtualClock;
use portolan_sim::iommu::Temper;
use portolan_sim::request::Request;

/// A kind of unit.
pub trait Design: Debug + Sized {
    /// Entry of the tables that it reads.
    type Word: Word + std::fmt::Debug;
    /// Its setup.
    type Setup: Conditions + Clone + Debug + Send + Sync;
    /// Registers, caches, and all other state of this kind.
    type Own: Debug + Send;
    /// Counts of events.
    type Counts: Told + Clone + Debug + Default + Send;
    /// An invalidation.
    type Invalidate: Debug + Send;
    /// Reason why an access is refused.
    type Refusal;

    /// Bytes of registers.
    const WINDOW: usize;

    /// The unit after reset.
    fn reset(setup: &Self::Setup) -> Self::Own;

    /// The caches of translations.
    fn stages(own: &mut Self::Own) -> Vec<&mut Stage>;

    /// Entries in its other caches.
    fn others(own: &Self::Own) -> usize;

    /// Empties those caches.
    fn evict(own: &mut Self::Own);

    /// Carries out the operations that are due.
    fn go_on(unit: &Unit<Self>, state: &mut DesignState<Self>);

    /// Memory address of a device address.
    fn translate(
        unit: &Unit<Self>,
        state: &mut DesignState<Self>,
        of: Request,
    ) -> Result<PhysAddr, Self::Refusal>;

    /// Records a refusal, and returns the fault for the device.
    fn refuse(
        unit: &Unit<Self>,
        state: &mut DesignState<Self>,
        refusal: Self::Refusal,
        of: Request,
    ) -> DmaFault;

    /// Tells if a refusal is for entries of two sizes that met in a cache.
    fn is_conflict(_: &Self::Refusal) -> bool {
        false
    }

    /// Rank of an invalidation, by the entries that it drops.
    fn rank(what: &Self::Invalidate) -> Rank;

    /// Class of an invalidation. It does not overtake those of lower classes.
    fn class(_: &Self::Invalidate) -> u8 {
        0
    }

    /// Drops the entries of an invalidation.
    fn invalidate(state: &mut DesignState<Self>, what: Self::Invalidate);

    /// Tells if a device may ask for translations.
    fn lets_translate(_: &Unit<Self>, _: &mut DesignState<Self>, _: StreamId) -> bool {
        false
    }

    /// Tells if accesses by translations that devices keep are let through only while those may ask.
    fn checks_translated(_: &Self::Own) -> bool {
        true
    }
}

/// Counts of every unit.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    pub accesses: u64,
    pub walk_steps: u64,
    pub stray_responses: u64,
}

/// Settings of every setup.
pub trait Conditions {
    /// Behaviour of the caches, and the clock for the unit's delays.
    fn conditions(&self) -> (&Temper, &Arc<VirtualClock>);
}

/// Counts of events that include those of every unit.
pub trait Told {
    /// Returns these counts with `sums` filled in.
    #[must_use]
    fn told(&self, sums: Sums) -> Self;
}
