//! A unit that is suspended, and whose device may be reset meanwhile.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 to 5.13.6.5. All endpoints are detached, upon which
//! the device forgets their domains, and attached again, with the mappings that the domains have by then.
//! The owner of the transport resets the device and sets its queues up again before the unit is resumed.

use super::transport::Transport;
use super::unit::{Attachment, Streams, Viommu};
use crate::chassis::OperationState;
use alloc::vec::Vec;
use portolan::addr::StreamId;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::Cpus;

impl<T: Transport + Send + Sync, C: Cpus> Viommu<T, C> {
    /// As [`Iommu::suspend`](portolan::iommu::Iommu::suspend).
    pub(super) fn power_down(&self) -> Result<(), IommuError> {
        self.book.with(self.turn().always(), |streams| {
            let shut = || {
                let open: Vec<u32> = streams.not_blocked(..).collect();
                open.into_iter().try_for_each(|stream| {
                    keep(streams, stream);
                    self.leave(StreamId::new(stream), streams).map(drop)
                })
            };
            self.operation.suspend(shut, || Ok(()))
        })?
    }

    /// As [`Iommu::resume`](portolan::iommu::Iommu::resume).
    pub(super) fn power_up(&self) -> Result<(), IommuError> {
        let start = |streams: &mut Streams<T, C>| {
            self.device.block_others()?;
            self.operation.set(OperationState::Running);
            // What was not detached, a device that was reset may have forgotten.
            let open: Vec<u32> = streams.not_blocked(..).collect();
            open.iter().for_each(|stream| keep(streams, *stream));
            streams.unsettle(..);
            let mut open = open.into_iter().map(StreamId::new);
            open.try_for_each(|stream| self.settle(stream, streams).map(drop))
        };
        let open = |streams: &mut Streams<T, C>| self.attach_again(streams);
        let resume = |streams: &mut _| self.operation.resume(streams, start, open);
        self.book.with(self.turn().always(), resume)?
    }

    /// Attaches the endpoints that were detached.
    fn attach_again(&self, streams: &mut Streams<T, C>) -> Result<(), IommuError> {
        while let Some((stream, to)) = streams.state.last().map(|(of, to)| (*of, to.again())) {
            let mapped = to.again();
            let stream = StreamId::new(stream);
            let attached = self.attach_to(stream, Attachment::without_domain(to), streams);
            match attached.map(drop) {
                // Its endpoint is gone.
                Err(AttachError::NoSuchStream { .. }) | Ok(()) => {}
                Err(AttachError::Iommu(error)) => return Err(error),
                Err(_) => return Err(IommuError::Unsupported),
            }
            mapped.replay()?;
            streams.state.pop();
        }
        Ok(())
    }
}

/// Notes where an endpoint is attached, to be attached again.
fn keep<T: Transport + Send + Sync, C: Cpus>(streams: &mut Streams<T, C>, stream: u32) {
    if let Some(to) = streams.attachment(stream).map(|at| at.to.again()) {
        streams.state.retain(|(of, _)| *of != stream);
        streams.state.push((stream, to));
    }
}
