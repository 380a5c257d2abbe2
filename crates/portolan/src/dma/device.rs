//! A device, attached.

use alloc::sync::Arc;

use core::mem::ManuallyDrop;

use super::Policy;
use super::buffer::{Buffer, Unowned, bytes_of};
use super::constraints::{Coherency, Constraints, Trust};
use super::copies::{Copies, CopyWhen, Copying, Cut, Through, cut};
use super::direction::{Direction, Fills};
use super::error::{DeviceError, MapError, StandingError};
use super::mapping::{Extras, Kit, Mapping, Place};
use super::quarantine::{Lost, Quarantine};
use super::quieting::Wait;
use super::retired::Retired;
use super::space::{Handle, Waiting};
use super::standing::Standing;
use super::streams::{AnyUnit, Member};
use crate::addr::StreamId;
use crate::bounce::Fill;
use crate::platform::DataCache;
use crate::table::Access;
use crate::unit::{Attach, AttachError, Unit};

/// How a device's addresses become memory's.
enum Translation<H> {
    Space(H, Member),
    Identity,
    Blocked,
}

/// One stream of a unit, and what it may reach.
///
/// A stream has one device at a time: [`Device::move_to`] moves it to another space. One that is
/// made for the stream beside another is refused in the same space, and in another blocked when the
/// other one is dropped.
///
/// *Drop.* Task. It blocks the stream. If the hardware does not complete that, the unit keeps what
/// the stream was attached to.
pub struct Device<H: Handle> {
    /// None once the stream is another device's.
    unit: Option<AnyUnit>,
    stream: StreamId,
    translation: Translation<H>,
    kit: Arc<Kit>,
    standing: Option<Arc<Standing<H>>>,
}

/// A buffer that was not mapped.
pub struct NotMapped<H: Handle, B: Buffer> {
    /// Why.
    pub error: MapError,
    /// The buffer; retired if the hardware failed while it was mapped, since a device may have
    /// reached it: then it comes back once the space has recovered.
    pub buffer: Result<B, Retired<H, B>>,
}

/// Why a buffer was not placed, and its copies and what they wait for if a device may have reached
/// it.
struct Failed {
    error: MapError,
    held: Option<(Copies, Wait)>,
}

impl From<MapError> for Failed {
    fn from(error: MapError) -> Self {
        Self { error, held: None }
    }
}

impl Kit {
    fn of(constraints: Constraints) -> Arc<Self> {
        Arc::new(Self {
            constraints,
            cache: None,
            copying: None,
            lost: Arc::new(Lost::default()),
        })
    }
}

impl<H: Handle> Device<H> {
    /// Attaches `stream` to `space`: it reaches what is mapped there.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`DeviceError`]. If the unit does not move the stream, it is where it was, or blocked.
    pub fn translated<U>(
        unit: Arc<U>,
        stream: StreamId,
        space: H,
        constraints: Constraints,
    ) -> Result<Self, DeviceError>
    where
        U: Attach<H::Domain> + Send + Sync + 'static,
    {
        if constraints.trust == Trust::Untrusted && space.policy() == Policy::Lazy {
            return Err(DeviceError::Untrusted);
        }
        if let Some(error) = space.failure() {
            return Err(DeviceError::Broken(error));
        }
        let any: AnyUnit = unit.clone();
        let member = space.join(&any, stream)?;
        let attached = space
            .keep_off_reserved(&*any, stream)
            .and_then(|()| Ok(unit.attach(stream, &space.domain)?));
        if let Err(error) = attached {
            space.leave(member);
            return Err(error);
        }
        let device = Self {
            unit: Some(any),
            stream,
            translation: Translation::Space(space, member),
            kit: Kit::of(constraints),
            standing: None,
        };
        match device.space().and_then(|space| space.failure()) {
            None => Ok(device),
            // It broke meanwhile, and may have blocked the stream before it was attached: dropping
            // the device blocks it.
            Some(error) => Err(DeviceError::Broken(error)),
        }
    }

    /// Moves the device, of `unit`, to `space`, without a time in which it is blocked: what it is
    /// doing in the space that it leaves ends. Its pool does not stay mapped there.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Device::translated`], and [`DeviceError::InUse`] for another unit; the stream is blocked
    /// then.
    pub fn move_to<U>(mut self, unit: Arc<U>, space: H) -> Result<Self, DeviceError>
    where
        U: Attach<H::Domain> + Send + Sync + 'static,
    {
        let here = self
            .unit
            .as_ref()
            .map(|unit| Arc::as_ptr(unit).cast::<()>());
        if here != Some(Arc::as_ptr(&unit).cast::<()>()) {
            return Err(DeviceError::InUse);
        }
        let mut moved = Self::translated(unit, self.stream, space, self.kit.constraints)?;
        moved.kit = self.kit.clone();
        self.unit = None;
        Ok(moved)
    }

    /// Passes `stream` through: it reaches all memory at its physical address, and mappings only
    /// check what the device can reach.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Device::translated`]; a device that is not trusted is not passed through.
    pub fn identity<U>(
        unit: Arc<U>,
        stream: StreamId,
        constraints: Constraints,
    ) -> Result<Self, DeviceError>
    where
        U: Unit + Send + Sync + 'static,
    {
        if constraints.trust == Trust::Untrusted {
            return Err(DeviceError::Untrusted);
        }
        unit.pass_through(stream)?;
        Ok(Self {
            unit: Some(unit),
            stream,
            translation: Translation::Identity,
            kit: Kit::of(constraints),
            standing: None,
        })
    }

    /// Blocks `stream`: it reaches nothing, and nothing can be mapped.
    ///
    /// *Context.* Task.
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
            unit: Some(unit),
            stream,
            translation: Translation::Blocked,
            kit: Kit::of(constraints),
            standing: None,
        })
    }

    /// The same, for a machine where devices that do not snoop need `cache` to be maintained. One that
    /// snoops never touches it.
    ///
    /// *Context.* Task.
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
    ///
    /// *Context.* Task.
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
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`StandingError`].
    pub fn with_standing_pool(mut self, memory: Unowned) -> Result<Self, StandingError>
    where
        H: Clone,
    {
        let Translation::Space(space, _) = &self.translation else {
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
    ///
    /// *Context.* Interrupt.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The limits.
    ///
    /// *Context.* Interrupt.
    pub fn constraints(&self) -> &Constraints {
        &self.kit.constraints
    }

    /// What was given up of the device's mappings; in a space, of those of all its devices.
    ///
    /// *Context.* Interrupt.
    pub fn quarantine(&self) -> Quarantine {
        match self.space() {
            Some(space) => space.quarantine(),
            None => self.kit.lost.get(),
        }
    }

    /// The space, if its addresses are translated.
    ///
    /// *Context.* Interrupt.
    pub fn space(&self) -> Option<&H> {
        match &self.translation {
            Translation::Space(space, _) => Some(space),
            Translation::Identity | Translation::Blocked => None,
        }
    }

    /// Lets the device reach `buffer` in direction `Dir`, pieces at contiguous addresses as far as
    /// they fill their pages. [`Mapping::segments`] says where.
    ///
    /// *Context.* Atomic; memory is taken for table pages and for the records of addresses.
    ///
    /// # Errors
    /// With the buffer; see [`MapError`].
    pub fn map<Dir: Direction, B: Buffer>(
        &self,
        buffer: B,
    ) -> Result<Mapping<H, B, Dir>, NotMapped<H, B>>
    where
        H: Clone,
    {
        self.map_waiting(buffer, Waiting::Allowed)
    }

    /// As [`Device::map`], and never waits: for handlers that refill their rings.
    ///
    /// *Context.* Interrupt, as far as the memory for table pages and for the records of addresses
    /// can be taken there.
    ///
    /// # Errors
    /// With the buffer; see [`MapError`]. [`MapError::WouldWait`] where the hardware has to be told
    /// of a new mapping, where addresses have to become quiet first, and for copies of more than two
    /// pieces.
    pub fn try_map<Dir: Direction, B: Buffer>(
        &self,
        buffer: B,
    ) -> Result<Mapping<H, B, Dir>, NotMapped<H, B>>
    where
        H: Clone,
    {
        self.map_waiting(buffer, Waiting::Refused)
    }

    #[inline]
    fn map_waiting<Dir: Direction, B: Buffer>(
        &self,
        buffer: B,
        waiting: Waiting,
    ) -> Result<Mapping<H, B, Dir>, NotMapped<H, B>>
    where
        H: Clone,
    {
        // Whatever panics from here on, a buffer that is mapped is not dropped.
        let buffer = ManuallyDrop::new(buffer);
        let Failed { error, held } = match self.find_place::<Dir, B>(&buffer, waiting) {
            Ok((place, copies)) => {
                let kit = self.kit.clone();
                return Ok(Mapping::new(place, buffer, Extras { kit, copies }));
            }
            Err(failed) => failed,
        };
        let buffer = match (held, self.space()) {
            (Some((copies, wait)), Some(space)) => {
                let kit = self.kit.clone();
                let held = Some((space.clone(), wait));
                Err(Retired::new(buffer, Extras { kit, copies }, held))
            }
            _ => Ok(ManuallyDrop::into_inner(buffer)),
        };
        Err(NotMapped { error, buffer })
    }

    #[inline]
    fn find_place<Dir: Direction, B: Buffer>(
        &self,
        buffer: &B,
        waiting: Waiting,
    ) -> Result<(Place<H>, Copies), Failed>
    where
        H: Clone,
    {
        if Dir::FILLS == Fills::Buffer && !buffer.device_may_write() {
            return Err(MapError::ReadOnly.into());
        }
        match &self.translation {
            Translation::Space(space, _) => self.place_in::<Dir, B>(space, buffer, waiting),
            Translation::Identity => self.place_as_is::<Dir, B>(buffer, waiting),
            Translation::Blocked => Err(MapError::Blocked.into()),
        }
    }

    #[inline]
    fn place_in<Dir: Direction, B: Buffer>(
        &self,
        space: &H,
        buffer: &B,
        waiting: Waiting,
    ) -> Result<(Place<H>, Copies), Failed>
    where
        H: Clone,
    {
        if let Some(error) = space.failure() {
            return Err(MapError::Broken(error).into());
        }
        if let Some(pool) = &self.standing {
            if let Some(copies) = self.standing_copies::<Dir, B>(buffer, pool, waiting) {
                return Ok((Place::Standing(pool.clone()), copies));
            }
        }
        let through = Through::Pages(space.granule());
        let mut copies = self.copies::<Dir, B>(buffer, through, waiting)?;
        let reached = copies.reached(buffer.pieces());
        let placed = space.place(reached, Dir::ACCESS, &self.placed(&copies), waiting);
        match placed {
            Ok(range) => Ok((Place::Space(space.clone(), range), copies)),
            Err(failed) => {
                let error = failed.error;
                let held = match failed.held {
                    Some(wait) => Some((copies, wait)),
                    None => {
                        self.give_back(&mut copies);
                        None
                    }
                };
                Err(Failed { error, held })
            }
        }
    }

    fn place_as_is<Dir: Direction, B: Buffer>(
        &self,
        buffer: &B,
        waiting: Waiting,
    ) -> Result<(Place<H>, Copies), Failed> {
        let mut copies = self.copies::<Dir, B>(buffer, Through::Nothing, waiting)?;
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
                self.give_back(&mut copies);
                Err(error.into())
            }
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
        waiting: Waiting,
    ) -> Option<Copies> {
        let copying = self.kit.copying.as_ref()?;
        let bytes = bytes_of(buffer);
        let wanted = match copying.when {
            CopyWhen::Needed => false,
            CopyWhen::UpTo(most) => bytes <= most,
            CopyWhen::Always => true,
        };
        if !wanted || bytes == 0 {
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
            waiting,
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
        waiting: Waiting,
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
        let constraints = &self.kit.constraints;
        Copies::make(copying, pieces, cut, constraints, through, fill, waiting)
    }

    /// Gives copies back that no device has reached.
    fn give_back(&self, copies: &mut Copies) {
        if let Some(copying) = &self.kit.copying {
            copies.give_back(&*copying.pool);
        }
    }

    /// Blocks the stream, and says whether that worked.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the hardware did not complete.
    pub fn detach(self) -> Result<(), AttachError> {
        match &self.unit {
            Some(unit) => unit.block(self.stream),
            None => Ok(()),
        }
    }
}

impl<H: Handle> Drop for Device<H> {
    fn drop(&mut self) {
        if let Some(unit) = &self.unit {
            // After `detach` this is a second time, which is cheap.
            let _ = unit.block(self.stream);
        }
        if let Translation::Space(space, member) = &self.translation {
            space.leave(*member);
        }
    }
}
