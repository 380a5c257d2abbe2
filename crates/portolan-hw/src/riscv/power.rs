//! A unit that loses its power and gets it back.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections 6.4 and 6.5. While the unit is suspended
//! it is in mode Off, in which it lets nothing through; messages of devices are accesses. After the return
//! of its power it is in the mode that the platform chose, Off or Bare.
//!
//! Not supported: counters of events, which are lost with the power.

use super::tables::Streams;
use super::takeover::{close, start, stop, use_directory};
use super::unit::RiscvIommu;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;

impl<P: UnitPlatform> RiscvIommu<P> {
    /// As [`Iommu::suspend`](portolan::iommu::Iommu::suspend).
    pub(super) fn power_down(&self) -> Result<(), IommuError> {
        let shared = &*self.shared;
        let shut = || {
            close(&shared.control)?;
            shared.forget_everything()?;
            shared.ask(|| shared.atcs.all(), None)
        };
        let suspend = || shared.operation.suspend(shut, || shared.queue.drain(shared));
        self.book.with(self.turn().always(), |_| suspend())?
    }

    /// As [`Iommu::resume`](portolan::iommu::Iommu::resume).
    pub(super) fn power_up(&self) -> Result<(), IommuError> {
        let shared = &*self.shared;
        let (unit, signal) = (&shared.control, self.config.signal);
        let begin = |_: &mut Streams| {
            stop(unit, signal, false)?;
            start(shared, signal)
        };
        let open = |streams: &mut Streams| use_directory(unit, &mut streams.state.directory);
        let resume = |streams: &mut _| shared.operation.resume(streams, begin, open);
        self.book.with(self.turn().always(), resume)?
    }
}
