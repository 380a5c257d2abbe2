//! A vhost-user device's IOTLB, as `vm_memory` takes it.

use std::io;
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use portolan::addr::IovaRange;
use vm_memory::iommu::{Error as IommuError, Iommu, IotlbIterator};
use vm_memory::{GuestAddress, Permissions};

use super::asked::translate;
use super::counts::{Counters, Counts};
use super::held::IotlbGuard;
use super::questions::{Questions, Replies};
use super::set::{EVERYTHING, Translation};
use super::sets::{Missing, Replacement, Sets, StillHeld};
use crate::message::{Message, MessageError};
use crate::regions::{FrontendAddr, MemoryRegion, Regions, RegionsError};

/// Limits of an IOTLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IotlbOptions {
    /// Translations that it keeps at most; one takes about 130 bytes.
    pub capacity: NonZeroUsize,
    /// Way in which room is made for others.
    pub replacement: Replacement,
    /// Longest time that a look-up waits for translations that are missing, in all.
    pub miss_limit: Duration,
    /// Longest time that an invalidation waits for guards on its range.
    pub invalidation_limit: Duration,
}

impl Default for IotlbOptions {
    /// 16,384 translations in sets; 5 seconds.
    fn default() -> Self {
        Self {
            capacity: const { NonZeroUsize::new(16 << 10).unwrap() },
            replacement: Replacement::InSets,
            miss_limit: Duration::from_secs(5),
            invalidation_limit: Duration::from_secs(5),
        }
    }
}

/// Reason why a front-end's message was not carried out. It has to be told so, or to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The message makes no sense.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The memory is not in one region of the table.
    #[error("{iova} would lead to {target}, where the guest has no memory that is as long")]
    NotMemory {
        /// The device's addresses.
        iova: IovaRange,
        /// Address that they would lead to.
        target: FrontendAddr,
    },
    /// A guard was not dropped in time: the device may still use the translations.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
}

/// A vhost-user device's translations: the front-end sends them, and is asked for missing ones.
///
/// Look-ups that hit take no lock. A look-up that misses asks the front-end over the backend's channel and
/// waits, with a bound, without holding a translation meanwhile. An invalidation returns once every guard
/// on its range is gone; only then may the front-end be told so. A translation that allows less than
/// an access wants is a miss.
///
/// Share it in an [`Arc`]; the memory that is behind it is [`IommuMemory`](vm_memory::iommu::IommuMemory)'s.
///
/// ```
/// use portolan::addr::{Iova, IovaRange, PhysAddr};
/// use portolan_vmm::{FrontendAddr, IotlbOptions, MemoryRegion, Message, VhostIotlb};
/// use vm_memory::iommu::IommuMemory;
/// use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, Permissions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // What `VHOST_USER_SET_MEM_TABLE` says: 1 MiB, which the front-end has elsewhere.
/// let region = MemoryRegion {
///     guest: PhysAddr::new(0),
///     frontend: FrontendAddr::new(0x7f00_0000_0000),
///     bytes: 1 << 20,
/// };
/// let guest = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 20)])?;
/// let iotlb = VhostIotlb::new(IotlbOptions::default());
/// iotlb.set_memory(&[region])?;
/// let memory = IommuMemory::new(guest, iotlb, true, ());
///
/// // What `VHOST_USER_IOTLB_MSG` says: a page that the device may write.
/// let page = IovaRange::from_len(Iova::new(0xffff_0000), 4096).unwrap();
/// let update = Message::Update {
///     iova: page,
///     target: FrontendAddr::new(0x7f00_0000_3000),
///     access: Permissions::Write,
/// };
/// memory.iommu().handle(&update.payload())?;
/// memory.write_slice(b"packet", GuestAddress(0xffff_0010))?;
///
/// let mut found = [0; 6];
/// memory.get_backend().read_slice(&mut found, GuestAddress(0x3010))?;
/// assert_eq!(&found, b"packet");
///
/// // Afterwards there is nothing, and no channel to ask for more.
/// memory.iommu().invalidate(page)?;
/// assert!(memory.write_slice(b"packet", GuestAddress(0xffff_0010)).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct VhostIotlb {
    sets: Sets,
    /// Read where translations come in, never where they are used.
    regions: RwLock<Regions>,
    questions: Arc<Questions>,
    counters: Counters,
    options: IotlbOptions,
}

impl VhostIotlb {
    /// An IOTLB without translations, memory and channel.
    pub fn new(options: IotlbOptions) -> Self {
        Self {
            sets: Sets::new(options.capacity, options.replacement),
            regions: RwLock::default(),
            questions: Arc::default(),
            counters: Counters::default(),
            options,
        }
    }

    /// Replaces the table of memory, and forgets all translations: they lead to the old one.
    ///
    /// # Errors
    /// [`SetMemoryError`]: a table that makes no sense, after which the old one stays; or a guard that was not
    /// dropped in time.
    pub fn set_memory(&self, regions: &[MemoryRegion]) -> Result<(), SetMemoryError> {
        let regions = Regions::new(regions)?;
        let mut current = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        *current = regions;
        // An update that came between the two would lead to the old memory.
        let all = self.forget(EVERYTHING);
        drop(current);
        Ok(all?)
    }

    /// Asks over `stream` from now on (`VHOST_USER_SET_BACKEND_REQ_FD`), and expects replies there as
    /// `VHOST_USER_PROTOCOL_F_REPLY_ACK` has them.
    ///
    /// # Errors
    /// If no thread can be started, which reads the replies.
    pub fn connect(&self, stream: UnixStream) -> io::Result<()> {
        self.questions.connect(stream, Replies::Agreed)
    }

    /// The same where replies were not agreed on: a miss ends with a translation, or when the time is over.
    ///
    /// # Errors
    /// As [`VhostIotlb::connect`].
    pub fn connect_without_replies(&self, stream: UnixStream) -> io::Result<()> {
        self.questions.connect(stream, Replies::None)
    }

    /// Notes that the front-end has gone: threads that wait for it get an error, and so do all later
    /// misses. Translations stay until they are invalidated.
    pub fn disconnect(&self) {
        self.questions.disconnect();
    }

    /// Carries out a front-end's message, whose payload this is (`VHOST_USER_IOTLB_MSG`).
    ///
    /// # Errors
    /// See [`ApplyError`]. An invalidation that fails must not be acknowledged: end the connection.
    pub fn handle(&self, payload: &[u8]) -> Result<(), ApplyError> {
        match Message::read(payload)? {
            Message::Invalidate { iova } => Ok(self.invalidate(iova)?),
            Message::Update { iova, target, access } => self.update(iova, target, access),
        }
    }

    /// Takes in a translation.
    ///
    /// # Errors
    /// [`ApplyError::NotMemory`].
    pub fn update(
        &self,
        iova: IovaRange,
        target: FrontendAddr,
        access: Permissions,
    ) -> Result<(), ApplyError> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let bytes = iova.len_minus_one().checked_add(1);
        let found = bytes.and_then(|bytes| regions.guest(target, bytes));
        let new = Translation {
            iova,
            target: found.ok_or(ApplyError::NotMemory { iova, target })?,
            access,
        };
        let evicted = self.sets.insert(new);
        drop(regions);
        self.counters.updates.fetch_add(1, Relaxed);
        self.counters.evictions.fetch_add(evicted, Relaxed);
        self.questions.touch(iova);
        Ok(())
    }

    /// Forgets every translation that overlaps `iova`, and waits until no guard on one is left.
    ///
    /// # Errors
    /// If one was left when the time was over. The translations are forgotten all the same.
    pub fn invalidate(&self, iova: IovaRange) -> Result<(), StillHeld> {
        let done = self.forget(iova);
        self.questions.touch(iova);
        done?;
        self.counters.invalidations.fetch_add(1, Relaxed);
        Ok(())
    }

    fn forget(&self, iova: IovaRange) -> Result<(), StillHeld> {
        let looks = self.sets.invalidate(iova, self.options.invalidation_limit);
        if looks != Ok(1) {
            self.counters.waits.fetch_add(1, Relaxed);
        }
        looks.map(drop)
    }

    /// Counts of events so far.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// Number of translations.
    pub fn translations(&self) -> usize {
        self.sets.count()
    }

    /// A look-up that missed: asks until everything is there.
    #[cold]
    fn miss(
        &self,
        range: IovaRange,
        access: Permissions,
        missing: Missing,
    ) -> Result<IotlbIterator<IotlbGuard>, String> {
        let until = Instant::now() + self.options.miss_limit;
        let mut missing = missing;
        loop {
            let at = missing.at()?;
            self.counters.misses.fetch_add(1, Relaxed);
            if let Err(error) = self.questions.ask(at, access, until) {
                self.counters.failures.fetch_add(1, Relaxed);
                return Err(format!("{error} ({at})"));
            }
            match self.sets.find(range, access) {
                Ok(found) => return Ok(found),
                Err(next) => missing = next,
            }
        }
    }
}

/// Reason why a table of memory was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetMemoryError {
    /// The table makes no sense.
    #[error(transparent)]
    Regions(#[from] RegionsError),
    /// A guard was not dropped in time: the device may still use the memory of the old table.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
}

impl Drop for VhostIotlb {
    fn drop(&mut self) {
        self.questions.disconnect();
    }
}

impl Iommu for VhostIotlb {
    type IotlbGuard<'a> = IotlbGuard;

    fn translate(
        &self,
        iova: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<IotlbIterator<IotlbGuard>, IommuError> {
        translate(iova, length, |range| match self.sets.find(range, access) {
            Ok(found) => {
                self.counters.hits.add_one();
                Ok(found)
            }
            Err(missing) => self.miss(range, access, missing),
        })
    }
}
