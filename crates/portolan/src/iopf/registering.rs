//! Records of devices and of their address spaces. Their memory is made without the lock, and moved
//! in under it.

use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Handler;
use super::device::{FaultingDevice, ReplyPasid, Space, Stay};
use super::flat::room;
use super::outcome::RegisterError;
use super::state::State;
use crate::addr::{IovaRange, Pasid, StreamId};

/// Entries that a map which is full grows by at least.
const FEWEST: usize = 4;

/// Memory for records that may be missing. The rest of it is freed when the lock is free.
#[derive(Default)]
pub(super) struct Offer {
    devices: Vec<(StreamId, FaultingDevice)>,
    device: Option<FaultingDevice>,
    spaces: Vec<(Option<Pasid>, Space)>,
}

/// Memory that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Room for so many devices.
    Devices(usize),
    /// The record of a device.
    Device,
    /// Room for so many address spaces of a device.
    Spaces(usize),
}

impl Offer {
    /// Makes the missing records.
    pub(super) fn make(&mut self, missing: Missing) -> Result<(), TryReserveError> {
        match missing {
            Missing::Devices(count) => self.devices = room(count)?,
            Missing::Device => self.device = Some(FaultingDevice::new()?),
            Missing::Spaces(count) => self.spaces = room(count)?,
        }
        Ok(())
    }
}

impl State {
    /// The record of `stream`, a new one if there is none.
    fn device(
        &mut self,
        stream: StreamId,
        offer: &mut Offer,
    ) -> Result<&mut FaultingDevice, Missing> {
        if !self.devices.contains(&stream) {
            if !self.devices.has_room() {
                self.devices.move_to(&mut offer.devices);
            }
            let most = Missing::Devices(self.devices.len().saturating_mul(2).max(FEWEST));
            if !self.devices.has_room() {
                return Err(most);
            }
            let device = offer.device.take().ok_or(Missing::Device)?;
            self.devices.insert(stream, device).map_err(|_| most)?;
        }
        self.devices.get_mut(&stream).ok_or(Missing::Device)
    }

    /// Sets the address space in responses to `stream`.
    pub(super) fn set_reply_pasid(
        &mut self,
        stream: StreamId,
        reply: ReplyPasid,
        offer: &mut Offer,
    ) -> Result<(), Missing> {
        self.device(stream, offer)?.reply_pasid = reply;
        Ok(())
    }

    /// Registers an address space, unless it is registered already.
    pub(super) fn register(
        &mut self,
        stream: StreamId,
        pasid: Option<Pasid>,
        reach: IovaRange,
        handler: &Arc<dyn Handler>,
        offer: &mut Offer,
    ) -> Result<Result<(), RegisterError>, Missing> {
        let device = self.device(stream, offer)?;
        if device.spaces.contains(&pasid) || device.stay == Stay::Leaving {
            return Ok(Err(RegisterError::Taken { stream, pasid }));
        }
        if !device.spaces.has_room() {
            device.spaces.move_to(&mut offer.spaces);
        }
        let handler = Arc::clone(handler);
        let more = Missing::Spaces(device.spaces.len().saturating_mul(2).max(FEWEST));
        let space = Space::Registered { reach, handler };
        device.spaces.insert(pasid, space).map_err(|_| more)?;
        Ok(Ok(()))
    }
}
