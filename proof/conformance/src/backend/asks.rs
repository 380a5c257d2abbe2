//! Devices of the model that ask for pages that are not there.

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iommu::{AttachError, DeviceTlb, IommuDomains, IommuError};
use portolan::iopf::{RawPageRequest, ReplyTo, Responder, Response};
use portolan_chips::Transfer;
use portolan_chips::amd::AmdRegisters;
use portolan_chips::riscv::RiscvRegisters;
use portolan_chips::smmuv3::SmmuRegisters;
use portolan_chips::vtd::VtdRegisters;
use portolan_hw::amd::PageRequestEvent;
use portolan_sim::decode::AccessKind;

use crate::conformance::{DriverEvent, FaultSource, Faulting, Leave};
use crate::promise::all_memory;

/// A unit of the model that devices can ask.
pub trait Asks {
    /// Address at which a write of a device arrives, by translations that the device keeps.
    fn kept(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Option<PhysAddr>;

    /// A write that may wait.
    fn transfer(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Transfer;

    /// Results of writes that had to wait, since the last call.
    fn finished(&self) -> Vec<Transfer>;

    /// See [`Asker::ask`](crate::conformance::Asker::ask).
    fn ask(&self, raw: RawPageRequest);

    /// See [`Asker::told`](crate::conformance::Asker::told).
    fn told(&self) -> Vec<(ReplyTo, Response)>;

    /// See [`Asker::unanswered`](crate::conformance::Asker::unanswered).
    fn unanswered(&self) -> usize;

    /// See [`Asker::strays`](crate::conformance::Asker::strays) and [`Asker::lost`](crate::conformance::Asker::lost).
    fn strays_and_lost(&self) -> (u64, u64);

    /// See [`Asker::reset`](crate::conformance::Asker::reset).
    fn reset(&self, device: StreamId);
}

/// Functions of a unit whose devices ask for pages once they keep translations.
pub(super) fn asking_by_tlb<U: IommuDomains + Responder<Error = IommuError>>(
    gone: Leave<U>,
    next: fn(&U) -> Result<Option<DriverEvent>, IommuError>,
) -> Faulting<U> {
    Faulting {
        ways: &[FaultSource::Requests],
        enable: |unit, stream, _| keep_translations(unit, stream),
        disable: None,
        gone,
        next,
        respond: |unit, to, response| unit.respond(to, response),
    }
}

/// Lets the device of a stream keep translations.
pub(super) fn keep_translations<U: IommuDomains>(
    unit: &U,
    stream: StreamId,
) -> Result<(), AttachError> {
    let tlb = DeviceTlb { depth: 1, physical: stream.get() as u16, twice: false };
    Ok(unit.use_device_tlb(stream, tlb, all_memory())?)
}

/// Event of a page request, or of requests that were lost.
pub(super) fn request_event(event: PageRequestEvent) -> DriverEvent {
    match event {
        PageRequestEvent::Request(request) => DriverEvent::Request(request),
        PageRequestEvent::Lost => DriverEvent::Lost,
    }
}

/// Answers that are alike for all units of the model, by methods of the same names.
macro_rules! as_every_unit {
    () => {
        fn kept(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Option<PhysAddr> {
            self.ats_access(device, pasid, iova, AccessKind::Write)
        }

        fn ask(&self, raw: RawPageRequest) {
            self.ask(raw);
        }

        fn told(&self) -> Vec<(ReplyTo, Response)> {
            self.told()
        }

        fn unanswered(&self) -> usize {
            self.unanswered().len()
        }

        fn strays_and_lost(&self) -> (u64, u64) {
            let counts = self.counts();
            (counts.stray_responses, counts.lost_requests)
        }

        fn reset(&self, device: StreamId) {
            self.reset_device(device);
        }
    };
}

impl Asks for SmmuRegisters {
    fn transfer(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Transfer {
        self.transfer(device, pasid, iova, AccessKind::Write, 4)
    }

    fn finished(&self) -> Vec<Transfer> {
        let finished = self.finished().into_iter();
        finished.map(|(_, transfer)| transfer).collect()
    }

    as_every_unit!();
}

impl Asks for AmdRegisters {
    fn transfer(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Transfer {
        match self.dma_as(device, pasid, iova, AccessKind::Write, 4) {
            Ok(pieces) => Transfer::Done(pieces),
            Err(fault) => Transfer::Refused(fault),
        }
    }

    /// No transfers: they never wait here.
    fn finished(&self) -> Vec<Transfer> {
        Vec::new()
    }

    as_every_unit!();
}

/// A unit that holds no access back.
macro_rules! without_stalls {
    ($unit:ty) => {
        impl Asks for $unit {
            fn transfer(&self, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Transfer {
                match self.dma(device, pasid, iova, AccessKind::Write, 4) {
                    Ok(pieces) => Transfer::Done(pieces),
                    Err(fault) => Transfer::Refused(fault),
                }
            }

            /// No transfers: they never wait here.
            fn finished(&self) -> Vec<Transfer> {
                Vec::new()
            }

            as_every_unit!();
        }
    };
}

without_stalls!(VtdRegisters);
without_stalls!(RiscvRegisters);
