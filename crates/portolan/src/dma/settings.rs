//! Settings of a device for its buffers, shared with its mappings.
//!
//! *Context.* Interrupt, but for making, cloning and dropping them.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};

use spin::Once;

use super::Constraints;
use super::copies::{Copies, Copying, Reached, Record, Spares, Stretch};
use super::premapped::Premapped;
use super::quarantine::Lost;
use super::space::DmaSpace;
use super::streams::Requester;
use super::waiting::Clearance;
use crate::bounce::BouncePool;
use crate::platform::contract::{Buffer, MemoryKind};
use crate::platform::{Cpus, DataCache, Item, LeftBehind, Transfer};

/// Settings of a device. Its mappings keep it: they lead to their space through it.
pub(super) struct Settings<P: Cpus + Clone> {
    pub platform: P,
    /// There if the device is translated.
    pub space: Option<Arc<DmaSpace<P>>>,
    pub requester: Requester,
    pub constraints: Constraints,
    pub cache: Option<Arc<dyn DataCache>>,
    pub copying: Option<Copying>,
    pub spares: Spares<P>,
    /// A pool that stays mapped.
    pub premapped: Option<Arc<Premapped<P>>>,
    /// Buffers that mappings gave up which are in no space.
    pub lost: Arc<Lost>,
    /// Itself, once no device has it: its memory stays when the last mapping is gone.
    me: Once<Weak<Self>>,
    /// Box in which it is handed on then.
    parcel: Option<Box<Parcel<P>>>,
}

/// Settings that are not used any more, on their way to a task that drops them.
struct Parcel<P: Cpus + Clone> {
    settings: Option<Settings<P>>,
    next: Option<LeftBehind>,
}

impl<P: Cpus + Clone> Parcel<P> {
    fn empty() -> Option<Box<Self>> {
        Some(Box::new(Self { settings: None, next: None }))
    }
}

impl<P: Cpus + Clone> Item for Parcel<P> {
    fn next(&mut self) -> &mut Option<LeftBehind> {
        &mut self.next
    }
}

impl<P: Cpus + Clone> Clone for Settings<P> {
    fn clone(&self) -> Self {
        Self {
            platform: self.platform.clone(),
            space: self.space.clone(),
            requester: self.requester,
            constraints: self.constraints,
            cache: self.cache.clone(),
            copying: self.copying.clone(),
            spares: Spares::new(),
            premapped: self.premapped.clone(),
            lost: self.lost.clone(),
            me: Once::new(),
            parcel: Parcel::empty(),
        }
    }
}

impl<P: Cpus + Clone> Settings<P> {
    pub fn new(
        platform: P,
        space: Option<Arc<DmaSpace<P>>>,
        requester: Requester,
        constraints: Constraints,
    ) -> Self {
        Self {
            platform,
            space,
            requester,
            constraints,
            cache: None,
            copying: None,
            spares: Spares::new(),
            premapped: None,
            lost: Arc::default(),
            me: Once::new(),
            parcel: Parcel::empty(),
        }
    }

    /// For a device that lets go of its settings while mappings may have them: from here on the last
    /// of those hands them on ([`Settings::let_go`]). No memory is needed.
    pub fn orphan(settings: &Arc<Self>) {
        settings.me.call_once(|| Arc::downgrade(settings));
    }

    /// For a mapping that ends. A handler may be at it: so the last one does not drop them.
    #[inline]
    pub fn let_go(settings: Arc<Self>) {
        if let Some(last) = Arc::into_inner(settings) {
            last.hand_on();
        }
    }

    #[cold]
    fn hand_on(mut self) {
        let platform = self.platform.clone();
        if let Some(mut parcel) = self.parcel.take() {
            parcel.settings = Some(self);
            platform.drop_later(LeftBehind::new(parcel));
        }
    }

    /// Pool of `copies`, if there are some.
    fn pool(&self, copies: Option<&Copies>) -> Option<&dyn BouncePool> {
        let copying = self.copying.as_ref()?;
        copies.map(|_| &*copying.pool)
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
        let (cache, pool) = (self.cache.as_deref(), self.pool(copies));
        let in_caches = buffer.memory_kind() == MemoryKind::Cached;
        for stretch in Reached::new(buffer.pieces(), copies).stretches(at, last) {
            let copied = stretch.is_copied();
            if let Some(cache) = cache.filter(|_| in_caches || copied) {
                cache.invalidate(stretch.reached);
            }
            if let Some(pool) = pool.filter(|_| copied) {
                let (to, copy) = (stretch.buffer.start(), stretch.reached.start());
                pool.copy(&Transfer::new(copy, to, stretch.bytes()).of(buffer.sharing()));
            }
        }
    }

    /// Brings the bytes that the CPU wrote, from offset `at` to offset `last`, to their copy. Lines
    /// of that stay in caches until [`Settings::clean`].
    pub fn copy_in<B: Buffer>(&self, buffer: &B, copies: Option<&Copies>, at: u64, last: u64) {
        let Some(pool) = self.pool(copies) else {
            return;
        };
        let stretches = Reached::new(buffer.pieces(), copies).stretches(at, last);
        for stretch in stretches.filter(Stretch::is_copied) {
            let (from, copy) = (stretch.buffer.start(), stretch.reached.start());
            pool.copy(&Transfer::new(from, copy, stretch.bytes()).of(buffer.sharing()));
        }
    }

    /// Writes lines back that the device is to see, from offset `at` to offset `last`; also before it
    /// writes, since a line written back later would overwrite that.
    #[inline]
    pub fn clean<B: Buffer>(&self, buffer: &B, copies: Option<&Copies>, at: u64, last: u64) {
        if let Some(cache) = &self.cache {
            let in_caches = buffer.memory_kind() == MemoryKind::Cached;
            let reached = Reached::new(buffer.pieces(), copies).stretches(at, last);
            reached
                .filter(|stretch| in_caches || stretch.is_copied())
                .for_each(|stretch| cache.clean(stretch.reached));
        }
    }

    /// Gives copies back.
    #[inline]
    pub fn give_back(&self, copies: Option<Record>, _: Clearance) {
        if let (Some(copying), Some(copies)) = (&self.copying, copies) {
            self.spares.give_back(copies, &*copying.pool);
        }
    }
}
