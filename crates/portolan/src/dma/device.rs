//! A device, attached.

use alloc::sync::Arc;

use super::buffer::Buffer;
use super::constraints::{Coherency, Constraints};
use super::direction::Direction;
use super::error::{DeviceError, MapError};
use super::mapping::{Mapping, Place};
use super::space::Handle;
use crate::addr::StreamId;
use crate::platform::DataCache;
use crate::unit::{Attach, AttachError, Unit};

/// How a device's addresses become memory's.
enum Translation<H> {
    Space(H),
    Identity,
    Blocked,
}

/// One stream of a unit, and what it may reach.
///
/// Dropping one blocks the stream. If the hardware does not complete that, the unit keeps what the
/// stream was attached to.
pub struct Device<H: Handle> {
    unit: Arc<dyn Unit + Send + Sync>,
    stream: StreamId,
    constraints: Constraints,
    translation: Translation<H>,
    cache: Option<Arc<dyn DataCache>>,
}

/// A buffer that was not mapped.
pub struct NotMapped<B> {
    /// Why.
    pub error: MapError,
    /// The buffer.
    pub buffer: B,
}

impl<H: Handle> Device<H> {
    /// Attaches `stream` to `space`: it reaches what is mapped there.
    ///
    /// # Errors
    /// If the unit does not move the stream; it is then where it was, or blocked.
    pub fn translated<U>(
        unit: Arc<U>,
        stream: StreamId,
        space: H,
        constraints: Constraints,
    ) -> Result<Self, DeviceError>
    where
        U: Attach<H::Domain> + Send + Sync + 'static,
    {
        let known = space.join(unit.clone(), stream);
        known.map_err(|_| DeviceError::Memory)?;
        if let Err(error) = unit.attach(stream, space.domain()) {
            space.leave(stream);
            return Err(error.into());
        }
        Ok(Self {
            unit,
            stream,
            constraints,
            translation: Translation::Space(space),
            cache: None,
        })
    }

    /// Passes `stream` through: it reaches all memory at its physical address, and mappings only
    /// check what the device can reach.
    ///
    /// # Errors
    /// As [`Device::translated`].
    pub fn identity<U>(
        unit: Arc<U>,
        stream: StreamId,
        constraints: Constraints,
    ) -> Result<Self, DeviceError>
    where
        U: Unit + Send + Sync + 'static,
    {
        unit.pass_through(stream)?;
        Ok(Self {
            unit,
            stream,
            constraints,
            translation: Translation::Identity,
            cache: None,
        })
    }

    /// Blocks `stream`: it reaches nothing, and nothing can be mapped.
    ///
    /// # Errors
    /// As [`Device::translated`].
    pub fn blocked<U>(
        unit: Arc<U>,
        stream: StreamId,
        constraints: Constraints,
    ) -> Result<Self, DeviceError>
    where
        U: Unit + Send + Sync + 'static,
    {
        unit.block(stream)?;
        Ok(Self {
            unit,
            stream,
            constraints,
            translation: Translation::Blocked,
            cache: None,
        })
    }

    /// The same, for a machine where devices that do not snoop need `cache` to be maintained. One that
    /// snoops never touches it.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<dyn DataCache>) -> Self {
        self.cache = match self.constraints.coherency {
            Coherency::Coherent => None,
            Coherency::NotCoherent => Some(cache),
        };
        self
    }

    /// The stream.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The limits.
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// The space, if its addresses are translated.
    pub fn space(&self) -> Option<&H> {
        match &self.translation {
            Translation::Space(space) => Some(space),
            Translation::Identity | Translation::Blocked => None,
        }
    }

    /// Lets the device reach `buffer` in direction `Dir`, pieces at contiguous addresses as far as
    /// they fill their pages. [`Mapping::segments`] says where.
    ///
    /// # Errors
    /// With the buffer; see [`MapError`].
    pub fn map<Dir: Direction, B: Buffer>(
        &self,
        buffer: B,
    ) -> Result<Mapping<H, B, Dir>, NotMapped<B>>
    where
        H: Clone,
    {
        match self.find_place::<Dir, B>(&buffer) {
            Ok(place) => {
                let cache = self.cache.clone();
                Ok(Mapping::new(place, buffer, self.constraints, cache))
            }
            Err(error) => Err(NotMapped { error, buffer }),
        }
    }

    fn find_place<Dir: Direction, B: Buffer>(&self, buffer: &B) -> Result<Place<H>, MapError>
    where
        H: Clone,
    {
        match &self.translation {
            Translation::Space(space) => {
                let range = space.place(buffer.pieces(), Dir::ACCESS, &self.constraints)?;
                Ok(Place::Space(space.clone(), range))
            }
            Translation::Identity => {
                let limit = self.constraints.limit;
                let mut pieces = buffer.pieces();
                if pieces.clone().next().is_none() {
                    return Err(MapError::Empty);
                }
                match pieces.find(|piece| piece.last().get() > limit.get()) {
                    Some(piece) => Err(MapError::AboveLimit { piece, limit }),
                    None => Ok(Place::Identity),
                }
            }
            Translation::Blocked => Err(MapError::Blocked),
        }
    }

    /// Blocks the stream, and says whether that worked.
    ///
    /// # Errors
    /// If the hardware did not complete.
    pub fn detach(self) -> Result<(), AttachError> {
        self.unit.block(self.stream)
    }
}

impl<H: Handle> Drop for Device<H> {
    fn drop(&mut self) {
        // After `detach` this is a second time, which is cheap.
        let _ = self.unit.block(self.stream);
        if let Translation::Space(space) = &self.translation {
            space.leave(self.stream);
        }
    }
}
