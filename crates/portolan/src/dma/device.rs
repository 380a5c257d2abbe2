//! A device, attached.

use alloc::sync::Arc;

use super::buffer::{Buffer, bytes_of};
use super::constraints::{Coherency, Constraints, Trust};
use super::copies::{Copies, CopyWhen, Copying, Cut, Through, cut};
use super::direction::Direction;
use super::error::{DeviceError, MapError, StandingError};
use super::mapping::{Extras, Kit, Mapping, Place};
use super::space::Handle;
use super::standing::Standing;
use crate::addr::{PhysRange, StreamId};
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
    translation: Translation<H>,
    kit: Arc<Kit>,
    standing: Option<Arc<Standing<H>>>,
}

/// A buffer that was not mapped.
pub struct NotMapped<B> {
    /// Why.
    pub error: MapError,
    /// The buffer.
    pub buffer: B,
}

impl Kit {
    fn of(constraints: Constraints) -> Arc<Self> {
        Arc::new(Self {
            constraints,
            cache: None,
            copying: None,
        })
    }
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
            translation: Translation::Space(space),
            kit: Kit::of(constraints),
            standing: None,
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
            translation: Translation::Identity,
            kit: Kit::of(constraints),
            standing: None,
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
            translation: Translation::Blocked,
            kit: Kit::of(constraints),
            standing: None,
        })
    }

    /// The same, for a machine where devices that do not snoop need `cache` to be maintained. One that
    /// snoops never touches it.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<dyn DataCache>) -> Self {
        let cache = match self.kit.constraints.coherency {
            Coherency::Coherent => None,
            Coherency::NotCoherent => Some(cache),
        };
        Arc::make_mut(&mut self.kit).cache = cache;
        self
    }

    /// The same, with copies of what must not, or cannot, be reached in place.
    #[must_use]
    pub fn with_copies(mut self, copying: Copying) -> Self {
        Arc::make_mut(&mut self.kit).copying = Some(copying);
        self
    }

    /// The same, with the memory of its pool mapped as long as the device, or a mapping of it, is
    /// there: buffers that are copied whole ([`CopyWhen::UpTo`], [`CopyWhen::Always`]) then owe no
    /// invalidation. For a pool of its own and a device that is trusted; it reaches all of `memory`.
    /// Buffers for which there is no room are mapped in place, where that is enough.
    ///
    /// # Errors
    /// See [`StandingError`].
    pub fn with_standing_pool(mut self, memory: PhysRange) -> Result<Self, StandingError>
    where
        H: Clone,
    {
        let Translation::Space(space) = &self.translation else {
            return Err(StandingError::NotTranslated);
        };
        if self.kit.copying.is_none() {
            return Err(StandingError::NoPool);
        }
        let standing = Standing::new(space.clone(), memory, &self.kit.constraints)?;
        self.standing = Some(standing);
        Ok(self)
    }

    /// The stream.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The limits.
    pub fn constraints(&self) -> &Constraints {
        &self.kit.constraints
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
                let kit = self.kit.clone();
                let extras = Extras { kit, copies };
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
                if let Some(pool) = &self.standing {
                    if let Some(copies) = self.standing_copies::<Dir, B>(buffer, pool) {
                        return Ok((Place::Standing(pool.clone()), copies));
                    }
                }
                let through = Through::Pages(space.granule());
                let mut copies = self.copies::<Dir, B>(buffer, through)?;
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
                let mut copies = self.copies::<Dir, B>(buffer, Through::Nothing)?;
                let limit = self.kit.constraints.limit;
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
            self.kit.constraints.trust
        } else {
            // Copies have pages of their own, and what is in place fills its pages.
            Trust::Trusted
        };
        Constraints {
            trust,
            ..self.kit.constraints
        }
    }

    /// Copies of all of `buffer` in the pool that stays mapped, if they are wanted and fit.
    fn standing_copies<Dir: Direction, B: Buffer>(
        &self,
        buffer: &B,
        standing: &Standing<H>,
    ) -> Option<Copies> {
        let copying = self.kit.copying.as_ref()?;
        let bytes = bytes_of(buffer);
        let wanted = match copying.when {
            CopyWhen::Needed => false,
            CopyWhen::UpTo(most) => bytes <= most,
            CopyWhen::Always => true,
        };
        if !wanted || bytes == 0 || standing.space().failure().is_some() {
            return None;
        }
        let through = Through::Standing;
        let fill = self.fill::<Dir>(copying);
        let made = Copies::make(
            copying,
            buffer.pieces(),
            Cut::Whole,
            &self.kit.constraints,
            through,
            fill,
        );
        let mut copies = made.ok()?;
        if standing.holds(&copies) {
            return Some(copies);
        }
        copies.give_back(&*copying.pool);
        None
    }

    fn fill<Dir: Direction>(&self, copying: &Copying) -> Fill {
        match (
            Dir::ACCESS.contains(Access::READ),
            self.kit.constraints.trust,
        ) {
            (false, Trust::Trusted) => copying.fill,
            _ => Fill::Buffer,
        }
    }

    fn copies<Dir: Direction, B: Buffer>(
        &self,
        buffer: &B,
        through: Through,
    ) -> Result<Copies, MapError> {
        let Some(copying) = &self.kit.copying else {
            return Ok(Copies::none());
        };
        let page = match through {
            Through::Pages(page) => Some(page),
            Through::Nothing | Through::Standing => None,
        };
        let cut = match (copying.when, &self.standing) {
            // It was tried, or is not worth it.
            (CopyWhen::UpTo(_), Some(_)) => Cut::InPlace,
            (CopyWhen::UpTo(_), None) => {
                cut(Some(copying), &self.kit.constraints, bytes_of(buffer), page)
            }
            _ => cut(Some(copying), &self.kit.constraints, 0, page),
        };
        if cut == Cut::InPlace {
            return Ok(Copies::none());
        }
        let fill = self.fill::<Dir>(copying);
        let pieces = buffer.pieces();
        Copies::make(copying, pieces, cut, &self.kit.constraints, through, fill)
    }

    /// Gives copies back after a failure. After one of the hardware a device may have reached them for a
    /// moment: they stay taken.
    fn take_back(&self, copies: &mut Copies, error: MapError) {
        if let (Some(copying), false) = (&self.kit.copying, matches!(error, MapError::Unit(_))) {
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
