//! A unit that loses its power and gets it back.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.6, 6.7, 11.4.4 and
//! 11.4.5. While the unit is suspended its root table leads nowhere, so that it blocks all streams with translation on.
//! The remapping of interrupts stays on for those that wake the machine, with the entries that it has. After
//! the return of its power the unit is off and lets everything pass until it translates by that root table,
//! which leads to the streams' entries again as the last step.
//!
//! Not supported: pass-through by protected memory regions meanwhile; a device TLB that keeps its power.

use super::control::Way;
use super::tables::{InheritedTranslation, Streams};
use super::takeover::quiet;
use super::unit::Vtd;
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;
use portolan_spec::vtd::reg::command;

impl<P: UnitPlatform> Vtd<P> {
    /// As [`Iommu::suspend`](portolan::iommu::Iommu::suspend).
    pub(super) fn power_down(&self) -> Result<(), IommuError> {
        let core = &*self.core;
        if core.control.features.translates() && self.root.is_due() {
            // Devices reach the tables of the system before.
            return Err(IommuError::Unsupported);
        }
        let drain = || match &core.way {
            Way::Ring(ring) => ring.drain(core),
            Way::Direct(_) => Ok(()),
        };
        let suspend = |streams: &mut Streams| {
            let shut = || {
                streams.state.shut(core);
                core.control.flush_write_buffer()?;
                self.forget_everything()?;
                core.forget_devices()
            };
            core.operation.suspend(shut, drain)
        };
        self.book.with(self.turn().always(), suspend)?
    }

    /// As [`Iommu::resume`](portolan::iommu::Iommu::resume).
    pub(super) fn power_up(&self) -> Result<(), IommuError> {
        let core = &*self.core;
        let resume = |streams: &mut Streams| {
            let open = |streams: &mut Streams| {
                streams.state.open(core);
                core.control.flush_write_buffer()?;
                self.forget_everything()?;
                self.still_translates()
            };
            core.operation.resume(streams, |_| self.start_again(), open)
        };
        self.book.with(self.turn().always(), resume)?
    }

    /// From a unit in any state to one that translates by the root table.
    fn start_again(&self) -> Result<(), IommuError> {
        let control = &self.core.control;
        control.begin_again();
        let on = control.status()? & command::TE != 0;
        let found =
            if on { InheritedTranslation::Translation } else { InheritedTranslation::Nothing };
        // The table of interrupts is this driver's, and some may be wanted.
        quiet(control, found, false)?;
        self.start_queue()?;
        self.start_interrupts()?;
        self.requests.install(control);
        self.restore_messages()?;
        if !control.features.translates() {
            return Ok(());
        }
        self.set_root()?;
        self.translate()
    }

    /// Sees that the unit has not lost its power once more.
    fn still_translates(&self) -> Result<(), IommuError> {
        let control = &self.core.control;
        let wanted = if control.features.translates() { command::TE } else { 0 };
        match control.status()? & wanted == wanted {
            true => Ok(()),
            false => Err(IommuError::Stopped),
        }
    }
}
