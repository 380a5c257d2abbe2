//! A unit that loses its power and gets it back.
//!
//! Tegra X1 Technical Reference Manual, chapter 17.5. While the unit is suspended all swgroups are in the
//! address space without tables. After the return of its power it lets everything pass until they are
//! there again; then each of them gets its own, as the last step.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;

use super::attach::Written;
use super::config::WriteKind;
use super::shared::TegraShared;
use super::swgroup::Swgroup;
use super::unit::{EnableBits, StreamDestination, TegraSmmu};
use crate::chassis::book::Streams;
use portolan_spec::tegra_smmu::reg::{self, tlb_flush};

type All = Streams<usize, StreamDestination, EnableBits>;

impl<P: UnitPlatform<AtomicU32>> TegraSmmu<P> {
    /// As [`Iommu::suspend`](portolan::iommu::Iommu::suspend).
    pub(super) fn power_down(&self) -> Result<(), IommuError> {
        let shared = &*self.shared;
        let suspend = |streams: &mut All| {
            let shut = || {
                for group in shared.chip.swgroups() {
                    shared.place(&mut streams.state, group, None, Written::Unsure)?;
                }
                shared.forget_everything()
            };
            shared.operation.suspend(shut, || Ok(()))
        };
        self.book.with(self.turn().always(), suspend)?
    }

    /// As [`Iommu::resume`](portolan::iommu::Iommu::resume).
    pub(super) fn power_up(&self) -> Result<(), IommuError> {
        let shared = &*self.shared;
        let groups = shared.chip.swgroups();
        let enables = core::array::from_fn(|n| shared.chip.enables(n));
        let start = |streams: &mut All| {
            streams.state = enables;
            self.start(enables)?;
            // Behind the step that turns the unit on: if that is still so in the end, they are there.
            shared.restore_directories()
        };
        let open = |streams: &mut All| {
            let attached = streams.attached(..).map(|(n, at)| (groups.get(n), at.to));
            let to: Vec<(Option<&Swgroup>, StreamDestination)> = attached.collect();
            let mut to = to.into_iter().filter_map(|(group, to)| Some((group?, to)));
            to.try_for_each(|(group, to)| {
                shared.place(&mut streams.state, group, Some(to), Written::Unsure)
            })?;
            shared.must_be_on()
        };
        let resume = |streams: &mut All| shared.operation.resume(streams, start, open);
        self.book.with(self.turn().always(), resume)?
    }
}

impl<P: UnitPlatform<AtomicU32>> TegraShared<P> {
    /// Flushes both caches, and waits.
    fn forget_everything(&self) -> Result<(), IommuError> {
        self.forget_tables();
        self.write(WriteKind::TlbAll, reg::TLB_FLUSH, tlb_flush::ALL);
        self.read_back()
    }
}
