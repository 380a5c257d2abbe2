//! Devices whose accesses do not carry just one stream, or one that is not theirs alone: devices
//! behind a bridge that puts its own identifier in the place of theirs.
//!
//! Each such stream is attached once, by a [`Device`] of its own that all have in common
//! ([`Device::beside`], [`Device::with_streams`]); it is blocked when the last of them is dropped.
//!
//! *Context.* Task.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::constraints::Constraints;
use super::device::{Device, Translation};
use super::error::DeviceError;
use super::settings::Settings;
use crate::platform::Cpus;

impl<P: Cpus + Clone> Device<P> {
    /// A device whose accesses carry the stream of `owner`, which stays attached as long as either is
    /// there. The two are in one space and cannot be told apart by the unit; each has limits of its
    /// own.
    ///
    /// ```no_run
    /// # use portolan::addr::StreamId;
    /// # use portolan::dma::{Constraints, Device, DeviceError, DmaSpace};
    /// # use portolan::platform::Platform;
    /// # use std::sync::Arc;
    /// /// Two cards behind a bridge, which sends what they send as its own.
    /// fn cards<P: Platform>(space: Arc<DmaSpace<P>>) -> Result<[Device<P>; 2], DeviceError> {
    ///     let limits = Constraints::trusted();
    ///     let bridge = Arc::new(Device::translated(space, StreamId::new(0x200), limits)?);
    ///     Ok([Device::beside(bridge.clone(), limits)?, Device::beside(bridge, limits)?])
    /// }
    /// ```
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if `owner` is in no space; the others as of [`Device::translated`].
    pub fn beside(owner: Arc<Self>, constraints: Constraints) -> Result<Self, DeviceError> {
        let space = owner.space().ok_or(DeviceError::InUse)?.clone();
        let trust = constraints.trust;
        let constraints = space.admit(constraints)?;
        if let Some(error) = space.failure() {
            return Err(DeviceError::Broken(error));
        }
        let requester = owner.settings.requester;
        let settings = Settings::new(space.cpus.clone(), Some(space), requester, constraints);
        Ok(Self {
            unit: None,
            translation: Translation::Space(None),
            trust,
            settings: Arc::new(settings),
            beside: alloc::vec![owner],
        })
    }

    /// The same, whose accesses carry the streams of `others` as well: those stay attached as long as
    /// it. They have to be in the same space.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if one is in another space.
    pub fn with_streams(
        mut self,
        others: impl IntoIterator<Item = Arc<Self>>,
    ) -> Result<Self, DeviceError> {
        let mut beside: Vec<Arc<Self>> = others.into_iter().collect();
        let same = |other: &Arc<Self>| match (self.space(), other.space()) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        if !beside.iter().all(same) {
            return Err(DeviceError::InUse);
        }
        self.beside.append(&mut beside);
        Ok(self)
    }
}
