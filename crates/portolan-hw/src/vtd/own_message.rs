//! The unit's own interrupts: a message for faults, and one for page requests.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 7.3 and 7.4
//! (when they are sent), 11.4.11 (page-request event) and 11.4.12 to 11.4.15 (fault event). They
//! choose CPU and vector themselves, and no unit remaps them. Not supported: the message for
//! completions.

use portolan::iommu::{InterruptTarget, IommuError};
use portolan::platform::{Mmio, UnitPlatform};

use super::features::Has;
use super::unit::Vtd;
use crate::chassis::Present;
use crate::interrupt::compose::plain_message;
use portolan_spec::vtd::reg::{self, event};

impl<P: UnitPlatform> Vtd<P> {
    /// Programs the fault event message, as [`IommuDomains`](portolan::iommu::IommuDomains) says.
    pub(crate) fn signal(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        self.program(reg::FECTL, target)
    }

    /// Makes the unit send a message to `target` whenever there is something for
    /// [`Vtd::next_page_request`], or no longer with `None`. The handler reads until there is
    /// nothing left, and so does the caller that has switched the message on: earlier requests may
    /// send none. No unit remaps the message.
    ///
    /// *Context.* Atomic, one caller at a time.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without page requests, or if no message reaches `target`;
    /// [`IommuError::Gone`].
    pub fn signal_page_requests(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        match self.features().has.contains(Has::PAGE_REQUESTS) {
            true => self.program(reg::PECTL, target),
            false => Err(IommuError::Unsupported),
        }
    }

    /// Programs the message whose control register is `control`.
    fn program(&self, control: usize, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        let regs = &self.core.control.regs;
        regs.write32(control, event::IM);
        // So that no message is sent with half of an address.
        regs.present32(control)?;
        let Some(target) = target else { return Ok(()) };
        let message = plain_message(&target, self.apic()).map_err(|_| IommuError::Unsupported)?;
        regs.write32(control + event::DATA, message.data);
        regs.write32(control + event::ADDRESS, message.address as u32);
        regs.write32(control + event::UPPER, (message.address >> 32) as u32);
        regs.write32(control, 0);
        Ok(())
    }
}
