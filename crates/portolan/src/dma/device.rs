//! A device, attached.

use alloc::sync::Arc;

use super::buffer::Buffer;
use super::constraints::{Coherency, Constraints, Trust};
use super::copies::{Copies, CopyWhen, Copying, Cut, cut};
use super::direction::Direction;
use super::error::{DeviceError, MapError};
use super::mapping::{Extras, Mapping, Place};
use super::space::Handle;
use crate::addr::{PageSize, StreamId};
use crate::bounce::Fill;
use crate::platform::DataCache;
use crate::table::Access;
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
    copying: Option<Copying>,
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
            copying: None,
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
            copying: None,
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
            copying: None,
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

    /// The same, with copies of what must not, or cannot, be reached in place.
    #[must_use]
    pub fn with_copies(mut self, copying: Copying) -> Self {
        self.copying = Some(copying);
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
            Ok((place, copies)) => {
                let copied = if copies.is_empty() {
                    None
                } else {
                    self.copying.as_ref()
                };
                let extras = Extras {
                    constraints: self.constraints,
                    cache: self.cache.clone(),
                    pool: copied.map(|copying| copying.pool.clone()),
                    copies,
                };
                Ok(Mapping::new(place, buffer, extras))
            }
            Err(error) => Err(NotMapped { error, buffer }),
        }
    }

    fn find_place<Dir: Direction, B: Buffer>(
        &self,
        buffer: &B,
    ) -> Result<(Place<H>, Copies), MapError>
    where
        H: Clone,
    {
        match &self.translation {
            Translation::Space(space) => {
                let mut copies = self.copies::<Dir, B>(buffer, Some(space.granule()))?;
                let reached = copies.reached(buffer.pieces());
                match space.place(reached, Dir::ACCESS, &self.placed(&copies)) {
                    Ok(range) => Ok((Place::Space(space.clone(), range), copies)),
                    Err(error) => {
                        self.take_back(&mut copies, error);
                        Err(error)
                    }
                }
            }
            Translation::Identity => {
                let mut copies = self.copies::<Dir, B>(buffer, None)?;
                let limit = self.constraints.limit;
                let mut reached = copies.reached(buffer.pieces());
                let error = if reached.clone().next().is_none() {
                    Some(MapError::Empty)
                } else {
                    let above = reached.find(|piece| piece.last().get() > limit.get());
                    above.map(|piece| MapError::AboveLimit { piece, limit })
                };
                match error {
                    None => Ok((Place::Identity, copies)),
                    Some(error) => {
                        self.take_back(&mut copies, error);
                        Err(error)
                    }
                }
            }
            Translation::Blocked => Err(MapError::Blocked),
        }
    }

    /// The limits under which a buffer is placed whose shared pages, if it has some, are copied.
    fn placed(&self, copies: &Copies) -> Constraints {
        let trust = if copies.is_empty() {
            self.constraints.trust
        } else {
            // Copies have pages of their own, and what is in place fills its pages.
            Trust::Trusted
        };
        Constraints {
            trust,
            ..self.constraints
        }
    }

    fn copies<Dir: Direction, B: Buffer>(
        &self,
        buffer: &B,
        page: Option<PageSize>,
    ) -> Result<Copies, MapError> {
        let Some(copying) = &self.copying else {
            return Ok(Copies::none());
        };
        let bytes = match copying.when {
            CopyWhen::UpTo(_) => buffer.pieces().fold(0u64, |sum, piece| {
                sum.saturating_add(piece.len_minus_one()).saturating_add(1)
            }),
            _ => 0,
        };
        let cut = cut(Some(copying), &self.constraints, bytes, page);
        if cut == Cut::InPlace {
            return Ok(Copies::none());
        }
        let fill = match (Dir::ACCESS.contains(Access::READ), self.constraints.trust) {
            (false, Trust::Trusted) => copying.fill,
            _ => Fill::Buffer,
        };
        Copies::make(copying, buffer.pieces(), cut, &self.constraints, page, fill)
    }

    /// Gives copies back after a failure. After one of the hardware a device may have reached them for a
    /// moment: they stay taken.
    fn take_back(&self, copies: &mut Copies, error: MapError) {
        if let (Some(copying), false) = (&self.copying, matches!(error, MapError::Unit(_))) {
            copies.give_back(&*copying.pool);
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
