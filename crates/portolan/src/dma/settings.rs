//! What a device needs for its buffers, shared with its mappings.
//!
//! *Context.* Interrupt.

use alloc::sync::Arc;

use super::Constraints;
use super::copies::{Copies, Copying, Reached, Record, Spares};
use super::quarantine::Lost;
use super::space::DmaSpace;
use super::standing::Standing;
use crate::bounce::{Bouncer, Way};
use crate::contract::{Buffer, Pieces};
use crate::platform::{Cpus, DataCache};

/// How a device is set up. Its mappings keep it: they lead to their space through it.
pub(super) struct Settings<P: Cpus + Clone> {
    pub platform: P,
    /// There if the device is translated.
    pub space: Option<Arc<DmaSpace<P>>>,
    pub constraints: Constraints,
    pub cache: Option<Arc<dyn DataCache>>,
    pub copying: Option<Copying>,
    pub spares: Spares<P>,
    /// A pool that stays mapped.
    pub standing: Option<Arc<Standing<P>>>,
    /// What was given up of mappings that are in no space.
    pub lost: Arc<Lost>,
}

impl<P: Cpus + Clone> Clone for Settings<P> {
    fn clone(&self) -> Self {
        Self {
            platform: self.platform.clone(),
            space: self.space.clone(),
            constraints: self.constraints,
            cache: self.cache.clone(),
            copying: self.copying.clone(),
            spares: Spares::new(),
            standing: self.standing.clone(),
            lost: self.lost.clone(),
        }
    }
}

impl<P: Cpus + Clone> Settings<P> {
    pub fn new(platform: P, space: Option<Arc<DmaSpace<P>>>, constraints: Constraints) -> Self {
        Self {
            platform,
            space,
            constraints,
            cache: None,
            copying: None,
            spares: Spares::new(),
            standing: None,
            lost: Arc::default(),
        }
    }

    /// Where `copies` are, if there are some.
    fn pool(&self, copies: Option<&Copies>) -> Option<&dyn Bouncer> {
        let copying = self.copying.as_ref()?;
        copies.map(|_| &*copying.pool)
    }

    /// Brings the bytes from offset `at` to offset `last` to where the device or the CPU sees them.
    pub fn sync<B: Buffer>(
        &self,
        buffer: &B,
        copies: Option<&Copies>,
        way: Way,
        at: u64,
        last: u64,
    ) {
        let (cache, pool) = (self.cache.as_deref(), self.pool(copies));
        if cache.is_none() && pool.is_none() {
            return;
        }
        for stretch in Reached::new(buffer.pieces(), copies).stretches(at, last) {
            if let (Some(cache), Way::Out) = (cache, way) {
                cache.invalidate(stretch.reached);
            }
            if let Some(pool) = pool.filter(|_| stretch.reached != stretch.buffer) {
                let bytes = stretch.buffer.len_minus_one().saturating_add(1);
                let (buffer, copy) = (stretch.buffer.start(), stretch.reached.start());
                match way {
                    Way::In => pool.copy(buffer, copy, bytes),
                    Way::Out => pool.copy(copy, buffer, bytes),
                }
            }
            if let (Some(cache), Way::In) = (cache, way) {
                cache.clean(stretch.reached);
            }
        }
    }

    /// Writes lines back that the device is to see; also before it writes, since a line written
    /// back later would overwrite that.
    pub fn clean(&self, pieces: Pieces<'_>, copies: Option<&Copies>) {
        if let Some(cache) = &self.cache {
            Reached::new(pieces, copies).for_each(|lines| cache.clean(lines));
        }
    }

    /// Gives copies back that no device reaches any more.
    pub fn give_back(&self, copies: Option<Record>) {
        if let (Some(copying), Some(copies)) = (&self.copying, copies) {
            self.spares.give_back(copies, &*copying.pool);
        }
    }
}
