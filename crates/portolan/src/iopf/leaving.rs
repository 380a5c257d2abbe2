//! Groups that end without a handler: late, lost, unregistered, or of a device that goes.

use super::bounds::Bounds;
use super::counts::Cause;
use super::device::{FaultingDevice, Refused, Stay};
use super::group::{Key, Open, Owed, Phase};
use super::state::State;
use super::{GroupId, ReplyName};
use crate::addr::{Pasid, StreamId};
use crate::platform::Nanos;

/// A device has groups that are not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy;

impl State {
    /// Makes requests of `stream` from now on answered without a record.
    pub fn begin_leaving(&mut self, stream: StreamId) {
        if let Some(device) = self.devices.get_mut(&stream) {
            device.stay = Stay::Leaving;
        }
    }

    /// Takes out a group that has waited for its last request too long; else when the next will
    /// have.
    pub fn next_late(&mut self, now: Nanos, bounds: &Bounds) -> Result<Owed, Option<Nanos>> {
        let mut next: Option<Nanos> = None;
        let mut found = None;
        for (key, open) in self.open.entries() {
            match open.phase {
                Phase::Partial { deadline } if deadline <= now => found = Some(*key),
                Phase::Partial { deadline } => {
                    next = Some(next.map_or(deadline, |next| next.min(deadline)));
                }
                Phase::Ready | Phase::Running => {}
            }
        }
        if let Some(gone) = found.and_then(|key| self.forget(key)) {
            return Ok(self.owe(gone.to, Cause::Late, bounds));
        }
        let mut late = None;
        for (stream, device) in self.devices.entries() {
            for (group, of) in device.refused.entries() {
                match of.deadline <= now {
                    true => late = Some((*stream, *group)),
                    false => next = Some(next.map_or(of.deadline, |next| next.min(of.deadline))),
                }
            }
        }
        if let Some((stream, group)) = late {
            let device = self.devices.get_mut(&stream);
            if let Some(of) = device.and_then(|device| device.refused.remove(&group)) {
                return Ok(self.owe(of.to(stream, group), of.cause, bounds));
            }
        }
        Err(next)
    }

    /// Takes out a complete group of an address space that is being unregistered. Those without
    /// their last request are refused instead.
    pub fn next_leaving(
        &mut self,
        stream: StreamId,
        pasid: Option<Pasid>,
        bounds: &Bounds,
    ) -> Option<Owed> {
        loop {
            let key =
                self.of_stream(stream).find(|(_, open)| open.pasid == pasid).map(|of| of.0)?;
            let gone = self.forget(key)?;
            match (gone.phase, key.1) {
                (Phase::Partial { deadline }, ReplyName::Group(group)) => {
                    let refused =
                        Refused { cause: Cause::Detached, pasid: gone.to.pasid, deadline };
                    if let Some(device) = self.devices.get_mut(&stream) {
                        // There is room for each number that a group can have.
                        let _ = device.refused.insert(group, refused);
                    }
                }
                _ => return Some(self.owe(gone.to, Cause::Detached, bounds)),
            }
        }
    }

    /// Takes out any group of a device.
    pub fn next_of_device(&mut self, stream: StreamId, bounds: &Bounds) -> Option<Owed> {
        let found = self.of_stream(stream).next().map(|(key, _)| *key);
        if let Some(gone) = found.and_then(|key| self.forget(key)) {
            return Some(self.owe(gone.to, Cause::Detached, bounds));
        }
        let device = self.devices.get_mut(&stream)?;
        let (group, refused) = device.refused.pop_first()?;
        Some(self.owe(refused.to(stream, group), refused.cause, bounds))
    }

    fn of_stream(&self, stream: StreamId) -> impl Iterator<Item = &(Key, Open)> {
        let first = (stream, ReplyName::Group(GroupId::new(0)));
        let open = self.open.entries_from(&first).iter();
        open.take_while(move |(key, _)| key.0 == stream)
    }

    /// Forgets groups that may be incomplete because the unit lost requests.
    pub fn lose(&mut self) {
        self.counts.overflows += 1;
        let mut at = 0;
        while let Some((key, open)) = self.open.entries().get(at) {
            if matches!(open.phase, Phase::Partial { .. }) {
                self.forget(*key);
                self.counts.discarded += 1;
            } else {
                at += 1;
            }
        }
        for (_, device) in self.devices.values_mut() {
            self.counts.discarded += device.refused.len() as u64;
            device.refused.clear();
        }
    }

    /// Groups that are not answered yet.
    pub fn outstanding(&self) -> usize {
        let devices = self.devices.entries().iter();
        let refused = devices.map(|(_, device)| device.refused.len());
        self.open.len() + self.unsent() + refused.sum::<usize>()
    }

    /// Forgets a device without groups.
    ///
    /// # Errors
    /// If it has some.
    pub fn remove_idle(&mut self, stream: StreamId) -> Result<Option<FaultingDevice>, Busy> {
        let refused = self.devices.get(&stream).map_or(0, |device| device.refused.len());
        if refused != 0 || self.of_stream(stream).next().is_some() {
            return Err(Busy);
        }
        Ok(self.devices.remove(&stream))
    }
}
