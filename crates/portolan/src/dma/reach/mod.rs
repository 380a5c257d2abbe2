//! Memory that a mapping keeps, and the way in which a device reaches it: the settings of the device,
//! copies, a pool that stays mapped, and the segments that go into descriptors.
//!
//! Copies that are mapped and unmapped one by one cost an invalidation each, like buffers in place.
//! A pool that stays mapped costs none: a buffer that is copied there takes slots, and is its owner's
//! again as soon as the device is done. The price: the device reaches all slots, free ones and those of
//! its other buffers, for reading and writing. So it has to be trusted to be done when its driver says
//! so, and the pool should be its own. Buffers themselves are as unreachable as before.
//!
//! *Context.* Interrupt, but for making, cloning and dropping settings.

mod contexts;
mod copies;

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::num::NonZeroU64;

use spin::Once;

use super::error::{Lost, MapError, PremapError};
use super::flush_queue::Clearance;
use super::layout::{DmaSegment, Layout};
use super::policy::{Coherency, Constraints, Trust};
use super::space::DmaSpace;
use crate::addr::{Iova, IovaRange, PageSize, PhysRange};
use crate::bounce::BouncePool;
use crate::iommu::Requester;
use crate::platform::contract::{
    Buffer, HostVisibility, MemoryKind, Sharing, Unowned, hidden_from,
};
use crate::platform::{Cpus, DataCache, Item, LeftBehind, Transfer};
use crate::table::Access;
use crate::tdisp::Admission;
pub(super) use contexts::ContextCopies;
use copies::SpareRecords;
pub(super) use copies::{
    Copies, CopyChoice, CopyFacts, CopyRecord, Cut, ONE_BYTE, Reached, Stretch, Through,
    WantedCopies, shares,
};
pub use copies::{CopyPrices, CopyWhen, Copying};

/// The settings of a device. Its mappings keep them: they lead to their space through it. On lines of its
/// own, with the count of those that keep it.
#[repr(align(128))]
pub(super) struct DeviceContext<P: Cpus + Clone> {
    pub platform: P,
    /// There if the device is translated.
    pub space: Option<Arc<DmaSpace<P>>>,
    pub requester: Requester,
    pub constraints: Constraints,
    pub cache: Option<Arc<dyn DataCache>>,
    pub copying: Option<Copying>,
    /// The interface, of a device that a confidential guest let in.
    pub admission: Option<Arc<Admission>>,
    pub spares: Arc<SpareRecords<P>>,
    /// A pool that stays mapped.
    pub premapped: Option<Arc<Premapped<P>>>,
    /// Buffers that mappings gave up which are in no space.
    pub lost: Arc<Lost>,
    /// Itself, once no device has it: its memory stays when the last mapping is gone.
    me: Once<Weak<Self>>,
    /// Box in which it is handed on then.
    parcel: Option<Box<Parcel<P>>>,
}

/// Ways in which a buffer's bytes are synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferBytes {
    /// CPUs keep them in their caches.
    in_caches: bool,
    sharing: Sharing,
}

impl BufferBytes {
    #[inline]
    pub fn of<B: Buffer>(buffer: &B) -> Self {
        let in_caches = buffer.memory_kind() == MemoryKind::Cached;
        Self { in_caches, sharing: buffer.sharing() }
    }
}

/// A context that is not used any more, on their way to a task that drops it.
struct Parcel<P: Cpus + Clone> {
    context: Option<DeviceContext<P>>,
    next: Option<LeftBehind>,
}

impl<P: Cpus + Clone> Parcel<P> {
    fn empty() -> Option<Box<Self>> {
        Some(Box::new(Self { context: None, next: None }))
    }
}

impl<P: Cpus + Clone> Item for Parcel<P> {
    fn next(&mut self) -> &mut Option<LeftBehind> {
        &mut self.next
    }
}

impl<P: Cpus + Clone> Clone for DeviceContext<P> {
    fn clone(&self) -> Self {
        Self {
            platform: self.platform.clone(),
            space: self.space.clone(),
            requester: self.requester,
            constraints: self.constraints,
            cache: self.cache.clone(),
            copying: self.copying.clone(),
            admission: self.admission.clone(),
            spares: self.spares.clone(),
            premapped: self.premapped.clone(),
            lost: self.lost.clone(),
            me: Once::new(),
            parcel: Parcel::empty(),
        }
    }
}

impl<P: Cpus + Clone> DeviceContext<P> {
    /// Memory that the device reaches: private memory too, if the guest let it in.
    ///
    /// # Errors
    /// [`MapError::NotRunning`] if its interface does not run any more.
    #[inline]
    pub fn reach(&self) -> Result<HostVisibility, MapError> {
        match &self.admission {
            None => Ok(self.constraints.reach),
            Some(admission) if admission.is_running() => Ok(HostVisibility::Private),
            Some(_) => Err(MapError::NotRunning),
        }
    }

    pub fn new(
        platform: P,
        space: Option<Arc<DmaSpace<P>>>,
        requester: Requester,
        constraints: Constraints,
    ) -> Self {
        let cache = match constraints.coherency {
            Coherency::Coherent => None,
            Coherency::NotCoherent => platform.data_cache(),
        };
        Self {
            platform,
            space,
            requester,
            constraints,
            cache,
            copying: None,
            admission: None,
            spares: Arc::new(SpareRecords::new()),
            premapped: None,
            lost: Arc::default(),
            me: Once::new(),
            parcel: Parcel::empty(),
        }
    }

    /// For a device that lets go of it while mappings may have it: from here on the last
    /// of those hands it on ([`DeviceContext::let_go`]). No memory is needed.
    pub fn orphan(context: &Arc<Self>) {
        context.me.call_once(|| Arc::downgrade(context));
    }

    /// For a mapping that ends. A handler may be at it: so the last one does not drop it.
    #[inline]
    pub fn let_go(context: Arc<Self>) {
        if let Some(last) = Arc::into_inner(context) {
            last.hand_on();
        }
    }

    #[cold]
    fn hand_on(mut self) {
        let platform = self.platform.clone();
        if let Some(mut parcel) = self.parcel.take() {
            parcel.context = Some(self);
            platform.drop_later(LeftBehind::new(parcel));
        }
    }

    /// Brings the bytes that the device wrote, from offset `at` to offset `last`, to the memory
    /// where the CPU sees them.
    #[inline]
    pub fn take_in<B: Buffer>(&self, buffer: &B, copies: Option<&Copies>, at: u64, last: u64) {
        if self.cache.is_some() || copies.is_some() {
            self.take_in_apart(buffer, copies, at, last);
        }
    }

    /// The same of a buffer that is not just where the device wrote it.
    fn take_in_apart<B: Buffer>(&self, buffer: &B, copies: Option<&Copies>, at: u64, last: u64) {
        let bytes = BufferBytes::of(buffer);
        for stretch in Reached::new(buffer.pieces(), copies).stretches(at, last) {
            self.take_in_stretch(stretch, bytes);
        }
    }

    /// The same of bytes that lie together.
    #[inline]
    pub fn take_in_stretch(&self, stretch: Stretch, bytes: BufferBytes) {
        let copied = stretch.is_copied();
        if let Some(cache) = self.cache.as_deref().filter(|_| bytes.in_caches || copied) {
            cache.invalidate(stretch.reached);
        }
        if let Some(Copying { pool, .. }) = self.copying.as_ref().filter(|_| copied) {
            let (to, copy) = (stretch.buffer.start(), stretch.reached.start());
            pool.copy(&Transfer::new(copy, to, stretch.bytes()).of(bytes.sharing));
        }
    }

    /// Brings the bytes that the CPU wrote, from offset `at` to offset `last`, to their copy. Lines
    /// of that stay in caches until [`DeviceContext::clean`].
    pub fn copy_in<B: Buffer>(&self, buffer: &B, copies: Option<&Copies>, at: u64, last: u64) {
        if copies.is_some() {
            let bytes = BufferBytes::of(buffer);
            let stretches = Reached::new(buffer.pieces(), copies).stretches(at, last);
            stretches.for_each(|stretch| self.copy_in_stretch(stretch, bytes));
        }
    }

    /// The same of bytes that lie together.
    #[inline]
    pub fn copy_in_stretch(&self, stretch: Stretch, bytes: BufferBytes) {
        if let Some(Copying { pool, .. }) = self.copying.as_ref().filter(|_| stretch.is_copied()) {
            let (from, copy) = (stretch.buffer.start(), stretch.reached.start());
            pool.copy(&Transfer::new(from, copy, stretch.bytes()).of(bytes.sharing));
        }
    }

    /// Writes lines back that the device is to see, from offset `at` to offset `last`; also before it
    /// writes, since a line written back later would overwrite that.
    #[inline]
    pub fn clean<B: Buffer>(&self, buffer: &B, copies: Option<&Copies>, at: u64, last: u64) {
        if self.cache.is_some() {
            let bytes = BufferBytes::of(buffer);
            let reached = Reached::new(buffer.pieces(), copies).stretches(at, last);
            reached.for_each(|stretch| self.clean_stretch(stretch, bytes));
        }
    }

    /// The same of bytes that lie together.
    #[inline]
    pub fn clean_stretch(&self, stretch: Stretch, bytes: BufferBytes) {
        let maintained = bytes.in_caches || stretch.is_copied();
        if let Some(cache) = self.cache.as_deref().filter(|_| maintained) {
            cache.clean(stretch.reached);
        }
    }

    /// Copies that go back when they are dropped.
    pub fn retired(&self, copies: Option<CopyRecord>) -> Option<RetiredCopies> {
        let pool = self.copying.as_ref().map(|copying| copying.pool.clone());
        copies.zip(pool).map(|(copies, pool)| RetiredCopies { copies, pool })
    }

    /// Gives copies back.
    #[inline]
    pub fn give_back(&self, copies: Option<CopyRecord>, _: &Clearance) {
        if let Some(copies) = copies {
            self.give_back_some(copies);
        }
    }

    #[cold]
    fn give_back_some(&self, copies: CopyRecord) {
        if let Some(copying) = &self.copying {
            self.spares.give_back(copies, &*copying.pool);
        }
    }
}

/// The copies of a buffer that was dropped. Dropping them gives their slots back.
///
/// *Drop.* Task: frees their record, and the pool if it is no device's any more.
pub(super) struct RetiredCopies {
    copies: CopyRecord,
    pool: Arc<dyn BouncePool>,
}

impl Drop for RetiredCopies {
    fn drop(&mut self) {
        self.copies.give_back(&*self.pool);
    }
}

/// A pool that a translated device reaches at all times: its memory in a space, for as long as
/// something is copied there.
///
/// *Context.* Interrupt, but for [`Premapped::new`], which takes heap memory and is for tasks.
pub(super) struct Premapped<P: Cpus + Clone> {
    space: Arc<DmaSpace<P>>,
    memory: PhysRange,
    first: Iova,
    /// There until it is dropped.
    range: Option<IovaRange>,
}

impl<P: Cpus + Clone> Premapped<P> {
    /// Maps the memory of a pool for reading and writing.
    pub fn new(
        space: Arc<DmaSpace<P>>,
        pool: &Unowned,
        constraints: &Constraints,
    ) -> Result<Arc<Self>, PremapError> {
        if constraints.trust == Trust::Untrusted {
            return Err(PremapError::Untrusted);
        }
        if let Some(piece) = hidden_from(constraints.reach, pool) {
            return Err(MapError::Private { piece }.into());
        }
        let (granule, memory) = (space.granule(), pool.memory());
        if constraints.align > granule {
            let align = constraints.align;
            return Err(PremapError::Alignment { align, granule });
        }
        let after = memory.last().get().wrapping_add(1);
        if (memory.start().get() | after) & (granule.bytes() - 1) != 0 {
            return Err(PremapError::Uneven { memory });
        }
        let (range, first) = space.place_kept(memory, Access::READ_WRITE, constraints)?;
        Ok(Arc::new(Self { space, memory, first, range: Some(range) }))
    }

    /// Placing of copies for the device.
    pub fn placing(&self) -> Placing {
        Placing::Moved(self.first.get().wrapping_sub(self.memory.start().get()))
    }
}

impl<P: Cpus + Clone> Drop for Premapped<P> {
    /// Interrupt. It unmaps the pool and waits for nothing: its memory is its owner's to keep until the
    /// space has been flushed.
    fn drop(&mut self) {
        let Some(range) = self.range.take() else {
            return;
        };
        let bytes = range.len_minus_one().saturating_add(1);
        match self.space.defer(range) {
            Ok(wait) => self.space.abandon(&wait),
            Err(_) => self.space.count_dropped(bytes),
        }
    }
}

/// Places of the pieces of a buffer for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placing {
    /// One after the other, each in pages of its own.
    From(Layout),
    /// At their physical addresses.
    Identity,
    /// At their physical addresses and so much, modulo 2^64.
    Moved(u64),
}

/// The segments of a mapping: neighbours joined, then cut at the device's limits.
///
/// ```no_run
/// # use portolan::dma::{Buffer, DataDirection, Mapping};
/// # use portolan::platform::Platform;
/// /// Fills a ring's descriptors: an address and a length each.
/// fn describe<P, B, D>(mapping: &Mapping<P, B, D>, ring: &mut [(u64, u32)]) -> Option<usize>
/// where
///     P: Platform,
///     B: Buffer,
///     D: DataDirection,
/// {
///     let mut used = 0;
///     for segment in mapping.segments() {
///         let bytes = u32::try_from(segment.bytes.get()).ok()?;
///         *ring.get_mut(used)? = (segment.iova.get(), bytes);
///         used += 1;
///     }
///     Some(used)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct DmaSegments<'m> {
    pieces: core::iter::Peekable<Reached<'m>>,
    placing: Placing,
    max: u64,
    boundary: Option<PageSize>,
    /// First address and number of bytes not handed out yet.
    run: Option<(u64, u64)>,
}

impl Placing {
    /// Address of `piece`, and the placing for the one after it.
    #[inline]
    pub fn place(self, piece: PhysRange) -> (u64, Self) {
        match self {
            Self::Identity => (piece.start().get(), self),
            Self::Moved(by) => (piece.start().get().wrapping_add(by), self),
            Self::From(mut layout) => (layout.place(piece).first, Self::From(layout)),
        }
    }
}

impl<'m> DmaSegments<'m> {
    pub(super) fn new(pieces: Reached<'m>, placing: Placing, constraints: &Constraints) -> Self {
        Self {
            pieces: pieces.peekable(),
            placing,
            max: constraints.max_segment.get(),
            boundary: constraints.seg_boundary,
            run: None,
        }
    }

    /// The offset in the buffer that the device reaches at `iova`.
    pub(super) fn offset_of(mut self, iova: Iova) -> Option<u64> {
        let mut before = 0u64;
        while let Some((start, bytes)) = self.next_run() {
            let inside = iova.get().wrapping_sub(start);
            if inside < bytes {
                return before.checked_add(inside);
            }
            before = before.saturating_add(bytes);
        }
        None
    }

    fn next_run(&mut self) -> Option<(u64, u64)> {
        let first = self.pieces.next()?;
        let (start, after) = self.placing.place(first);
        self.placing = after;
        let mut bytes = first.len_minus_one().saturating_add(1);
        while let Some(&piece) = self.pieces.peek() {
            let (at, after) = self.placing.place(piece);
            if at != start.wrapping_add(bytes) {
                break;
            }
            self.placing = after;
            bytes = bytes.saturating_add(piece.len_minus_one().saturating_add(1));
            self.pieces.next();
        }
        Some((start, bytes))
    }
}

impl Iterator for DmaSegments<'_> {
    type Item = DmaSegment;

    fn next(&mut self) -> Option<DmaSegment> {
        let (start, left) = match self.run.take() {
            Some(run) => run,
            None => self.next_run()?,
        };
        let mut bytes = left.min(self.max);
        if let Some(boundary) = self.boundary {
            let room = boundary.bytes() - (start & (boundary.bytes() - 1));
            bytes = bytes.min(room);
        }
        if bytes < left {
            self.run = Some((start.wrapping_add(bytes), left - bytes));
        }
        NonZeroU64::new(bytes).map(|bytes| DmaSegment { iova: Iova::new(start), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PhysAddr;
    use crate::dma::Pieces;
    use alloc::vec::Vec;

    fn piece(start: u64, bytes: u64) -> PhysRange {
        PhysRange::from_len(PhysAddr::new(start), bytes).unwrap()
    }

    fn segments(pieces: &[PhysRange], constraints: &Constraints) -> Vec<(u64, u64)> {
        let layout = Layout::new(Iova::new(0x10_0000), PageSize::SIZE_4K, constraints);
        let all = Reached::new(Pieces::List(pieces), None);
        DmaSegments::new(all, Placing::From(layout), constraints)
            .map(|segment| (segment.iova.get(), segment.bytes.get()))
            .collect()
    }

    #[test]
    fn whole_pages_join_and_others_keep_their_offsets() {
        let pieces = [piece(0x5000, 0x1000), piece(0x9000, 0x2000)];
        let plain = Constraints::trusted();
        assert_eq!(segments(&pieces, &plain), [(0x10_0000, 0x3000)]);
        let pieces = [piece(0x5ff0, 0x20), piece(0x9000, 0x1800), piece(0x700, 0x10)];
        let expected = [(0x10_0ff0, 0x20), (0x10_2000, 0x1800), (0x10_4700, 0x10)];
        assert_eq!(segments(&pieces, &plain), expected);
    }

    #[test]
    fn runs_are_cut_at_the_device_s_limits() {
        let mut limits =
            Constraints { max_segment: NonZeroU64::new(0x3000).unwrap(), ..Constraints::trusted() };
        let pieces = [piece(0x1_0800, 0x7000)];
        let expected = [(0x10_0800, 0x3000), (0x10_3800, 0x3000), (0x10_6800, 0x1000)];
        assert_eq!(segments(&pieces, &limits), expected);
        limits.seg_boundary = Some(PageSize::of_lg2(14));
        let expected =
            [(0x10_0800, 0x3000), (0x10_3800, 0x800), (0x10_4000, 0x3000), (0x10_7000, 0x800)];
        assert_eq!(segments(&pieces, &limits), expected);
    }
}
