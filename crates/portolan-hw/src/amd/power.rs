//! A unit that loses its power and gets it back.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2, 2.4 and
//! 3.4. While the unit is suspended the entries of all streams that were attached block accesses, and
//! let interrupts through as before. After the return of its power the unit is off and lets everything pass
//! until it has the device table with these entries, which are opened as the last step. Devices that keep
//! translations forget them behind their closed entries, and page requests that were in the log count as lost.
//!
//! Not supported: an MSI capability that is lost with the power. The embedder writes it again.

use super::tables::{BLOCKED, Streams};
use super::takeover::{start, stop_rings};
use super::unit::AmdVi;
use core::sync::atomic::Ordering;
use portolan::inval::Walker;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;
use portolan_spec::amd::reg::{self, control};

impl<P: UnitPlatform> AmdVi<P> {
    /// As [`Iommu::suspend`](portolan::iommu::Iommu::suspend).
    pub(super) fn power_down(&self) -> Result<(), IommuError> {
        let shared = &*self.shared;
        let suspend = |streams: &mut Streams| {
            let shut = || {
                let open: alloc::vec::Vec<u16> = streams.not_blocked(..).collect();
                for stream in open {
                    let at = self.table.at(stream);
                    streams.state.shut.close(&shared.control.mem, Walker::Coherent, at, BLOCKED);
                }
                let asked = shared.logs.requests.is_some() && !streams.state.remotes.is_empty();
                shared.requests_cut.fetch_or(asked, Ordering::Relaxed);
                shared.forget_everything()?;
                // Their entries still say that they may be asked, and give them nothing new.
                shared.ask(|| shared.atcs.all(), None)
            };
            shared.operation.suspend(shut, || shared.queue.drain(shared))
        };
        self.book.with(self.turn().always(), suspend)?
    }

    /// As [`Iommu::resume`](portolan::iommu::Iommu::resume).
    pub(super) fn power_up(&self) -> Result<(), IommuError> {
        let shared = &*self.shared;
        let unit = &shared.control;
        let resume = |streams: &mut Streams| {
            let begin = |streams: &mut Streams| {
                stop_rings(unit)?;
                start(shared, &self.table, &self.config)?;
                if !streams.state.remotes.is_empty() {
                    self.limit_devices()?;
                }
                let target = *self.signals.lock();
                self.signal_events(target)?;
                self.resume_sleepers()
            };
            let open = |streams: &mut Streams| {
                streams.state.shut.open(&unit.mem, Walker::Coherent);
                shared.forget_everything()?;
                match unit.read(reg::CONTROL)? & control::ENABLE {
                    0 => Err(IommuError::Stopped),
                    _ => Ok(()),
                }
            };
            shared.operation.resume(streams, begin, open)
        };
        self.book.with(self.turn().always(), resume)?
    }
}
