//! Groups that end without a handler: late, lost, unregistered, or of a device that goes.

use super::bounds::Bounds;
use super::counts::Cause;
use super::device::{Device, Refused};
use super::state::{Key, Open, Owed, Phase, State};
use super::{GroupId, ReplyName};
use crate::addr::{Pasid, StreamId};
use crate::platform::Nanos;

/// A device has groups that are not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy;

impl State {
    /// Takes out a group that has waited for its last request too long; else when the next will
    /// have.
    pub fn next_late(&mut self, now: Nanos, bounds: &Bounds) -> Result<Owed, Option<Nanos>> {
        let mut next: Option<Nanos> = None;
        let mut found = None;
        for (key, open) in &self.open {
            match open.phase {
                Phase::Partial { deadline } if deadline <= now => found = Some(*key),
                Phase::Partial { deadline } => {
                    next = Some(next.map_or(deadline, |next| next.min(deadline)));
                }
                Phase::Ready | Phase::Running => {}
            }
        }
        if let Some(open) = found.and_then(|key| self.forget(key)) {
            return Ok(self.owe(open.to, Cause::Late, bounds));
        }
        for device in self.devices.values_mut() {
            let late = device.refused.iter().find(|(_, of)| of.deadline <= now);
            if let Some((&group, &Refused { cause, to, .. })) = late {
                device.refused.remove(&group);
                return Ok(self.owe(to, cause, bounds));
            }
            let deadlines = device.refused.values().map(|of| of.deadline);
            next = next.into_iter().chain(deadlines).min();
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
            let (key, to, phase) = self
                .of_stream(stream)
                .find(|(_, open)| open.pasid == pasid)
                .map(|(key, open)| (*key, open.to, open.phase))?;
            self.forget(key);
            match (phase, key.1) {
                (Phase::Partial { deadline }, ReplyName::Group(group)) => {
                    let refused = Refused {
                        cause: Cause::Detached,
                        to,
                        deadline,
                    };
                    if let Some(device) = self.devices.get_mut(&stream) {
                        device.refused.insert(group, refused);
                    }
                }
                _ => return Some(self.owe(to, Cause::Detached, bounds)),
            }
        }
    }

    /// Takes out any group of a device.
    pub fn next_of_device(&mut self, stream: StreamId, bounds: &Bounds) -> Option<Owed> {
        let found = self.of_stream(stream).next().map(|(key, _)| *key);
        if let Some(open) = found.and_then(|key| self.forget(key)) {
            return Some(self.owe(open.to, Cause::Detached, bounds));
        }
        let device = self.devices.get_mut(&stream)?;
        let (_, refused) = device.refused.pop_first()?;
        Some(self.owe(refused.to, refused.cause, bounds))
    }

    fn of_stream(&self, stream: StreamId) -> impl Iterator<Item = (&Key, &Open)> {
        let first = (stream, ReplyName::Group(GroupId::new(0)));
        let open = self.open.range(first..);
        open.take_while(move |(key, _)| key.0 == stream)
    }

    /// Forgets what may be incomplete because the unit lost requests.
    pub fn lose(&mut self) {
        self.counts.overflows += 1;
        let partial = |open: &Open| matches!(open.phase, Phase::Partial { .. });
        while let Some(key) = self
            .open
            .iter()
            .find(|(_, open)| partial(open))
            .map(|(key, _)| *key)
        {
            self.forget(key);
            self.counts.discarded += 1;
        }
        for device in self.devices.values_mut() {
            self.counts.discarded += device.refused.len() as u64;
            device.refused.clear();
        }
    }

    /// Groups that are not answered yet.
    pub fn outstanding(&self) -> usize {
        let refused = self.devices.values().map(|device| device.refused.len());
        self.open.len() + refused.sum::<usize>()
    }

    /// Forgets a device without groups.
    ///
    /// # Errors
    /// If it has some.
    pub fn remove_idle(&mut self, stream: StreamId) -> Result<Option<Device>, Busy> {
        let refused = self
            .devices
            .get(&stream)
            .map_or(0, |device| device.refused.len());
        if refused != 0 || self.of_stream(stream).next().is_some() {
            return Err(Busy);
        }
        Ok(self.devices.remove(&stream))
    }
}
