//! A unit that loses its power and gets it back.
//!
//! IHI 0062, reset and initialisation. While the unit is suspended the stream-to-context registers of all streams
//! say that their accesses fault, and no register is accessed: it may be without power. After its return the
//! unit lets everything pass until its registers are as they were, and its streams blocked; then each of
//! them is pointed at its bank, as the last step.
//!
//! Not supported: accesses that stall while the power goes.

use super::queue::SmmuV2Shared;
use super::streams::{GroupDestination, StreamGroups};
use super::takeover::restore;
use super::unit::{RUNNING, SmmuV2};
use crate::chassis::book::Streams;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;

type All = Streams<usize, GroupDestination, StreamGroups>;

impl<P: UnitPlatform> SmmuV2<P> {
    /// As [`Iommu::suspend`](portolan::iommu::Iommu::suspend).
    pub(super) fn power_down(&self) -> Result<(), IommuError> {
        let SmmuV2Shared { machine, operation, .. } = &*self.shared;
        let suspend = |streams: &mut All| {
            let shut = || {
                let mut open = streams.not_blocked(..);
                open.try_for_each(|slot| self.mapping.point(machine, slot, None))?;
                machine.forget_everything()?;
                machine.is_on()
            };
            operation.suspend(shut, || Ok(()))
        };
        self.book.with(self.turn().always(), suspend)?
    }

    /// As [`Iommu::resume`](portolan::iommu::Iommu::resume).
    pub(super) fn power_up(&self) -> Result<(), IommuError> {
        let SmmuV2Shared { machine, operation, written, implementation, .. } = &*self.shared;
        let resume = |streams: &mut All| {
            let start = |streams: &mut All| {
                let groups = &streams.state;
                restore(machine, &self.mapping, groups, written, *implementation, RUNNING)
            };
            let open = |streams: &mut All| {
                let mut all = streams.attached(..);
                all.try_for_each(|(slot, at)| self.mapping.point(machine, slot, Some(at.to)))?;
                machine.is_on()
            };
            operation.resume(streams, start, open)
        };
        self.book.with(self.turn().always(), resume)?
    }
}
