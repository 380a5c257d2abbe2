//! Invalidation through registers, for units without a queue.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 6.5.1, and
//! 11.4.8.2 and 11.4.9 for the registers. One command at a time, each awaited. The hardware may do
//! more than was asked, never less. Refused while the queue is on (6.5.1).

use portolan::platform::{Cpus, Mmio, poll};
use portolan::unit::{Awaited, UnitError};

use super::control::{Control, Turn};
use super::counts::Kind;
use super::features::Has;
use super::refusal;
use super::request::{Contexts, Iotlb};
use super::spec::{Bits, descriptor, reg, reg::ccmd, reg::command, reg::iotlb};

/// Commands through registers.
#[derive(Debug, Default)]
pub(super) struct Direct {
    turn: Turn,
}

impl Direct {
    /// Invalidates part of the context cache.
    pub(super) fn contexts<R: Mmio, C: Cpus>(
        &self,
        control: &Control<R, C>,
        what: Contexts,
    ) -> Result<(), UnitError> {
        let (kind, asked, fields) = match what {
            Contexts::All => (Kind::ContextGlobal, 1, 0),
            Contexts::Device { domain, stream } => (
                Kind::ContextDevice,
                3,
                ccmd::DID.at(domain.into()) | ccmd::SID.at(stream.into()),
            ),
        };
        let value = ccmd::ICC.mask() | ccmd::CIRG.at(asked) | fields;
        self.run(
            control,
            kind,
            None,
            (reg::CCMD, value),
            (ccmd::ICC, ccmd::CAIG),
        )
    }

    /// Invalidates part of the IOTLB.
    pub(super) fn iotlb<R: Mmio, C: Cpus>(
        &self,
        control: &Control<R, C>,
        what: Iotlb,
    ) -> Result<(), UnitError> {
        let (kind, asked, domain, address) = match what {
            Iotlb::All => (Kind::IotlbGlobal, 1, 0, None),
            Iotlb::Domain { domain } => (Kind::IotlbDomain, 2, domain, None),
            Iotlb::Pages {
                domain,
                start,
                lg2_pages,
                hint,
            } => {
                let fields = descriptor::AM.at(lg2_pages.into()) | descriptor::IH.at(hint.bit());
                (Kind::IotlbPages, 3, domain, Some(start | fields))
            }
        };
        let has = control.features.has;
        let drain = |flag, bits: Bits| bits.at(has.contains(flag).into());
        let value = iotlb::IVT.mask()
            | iotlb::IIRG.at(asked)
            | iotlb::DID.at(domain.into())
            | drain(Has::DRAIN_READS, iotlb::DR)
            | drain(Has::DRAIN_WRITES, iotlb::DW);
        let base = control.features.iotlb;
        let address = address.map(|address| (base, address));
        self.run(
            control,
            kind,
            address,
            (base + 8, value),
            (iotlb::IVT, iotlb::IAIG),
        )
    }

    /// Writes an address, if any, then a command, and waits for it to be done.
    fn run<R: Mmio, C: Cpus>(
        &self,
        control: &Control<R, C>,
        kind: Kind,
        address: Option<(usize, u64)>,
        (offset, value): (usize, u64),
        (busy, done): (Bits, Bits),
    ) -> Result<(), UnitError> {
        let _turn = self.turn.take(&control.clock, control.limit)?;
        if control.status()? & command::QIE != 0 {
            return Err(UnitError::Unsupported);
        }
        // Whoever was here before may have given up on a command that is still under way.
        self.idle(control, offset, busy)?;
        if let Some((offset, address)) = address {
            control.regs.write64(offset, address);
        }
        control.counters.add(kind);
        control.regs.write64(offset, value);
        match done.of(self.idle(control, offset, busy)?) {
            0 => Err(UnitError::Refused {
                code: refusal::REGISTERS,
            }),
            _ => Ok(()),
        }
    }

    fn idle<R: Mmio, C: Cpus>(
        &self,
        control: &Control<R, C>,
        offset: usize,
        busy: Bits,
    ) -> Result<u64, UnitError> {
        let look = || match control.regs.read64(offset) {
            u64::MAX => Some(Err(UnitError::Gone)),
            value => (busy.of(value) == 0).then_some(Ok(value)),
        };
        let awaited = Awaited::Invalidation;
        poll(&control.clock, control.limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }))
    }
}
