//! Copies of a device's settings, so that CPUs that map for one device do not count mappings in one word.
//!
//! A mapping keeps the settings alive by a count. Each of up to [`COPIES`] CPUs has a copy of its own for
//! that; where there are more CPUs, some share one.
//!
//! *Context.* Interrupt, but for making and changing copies, which are for tasks.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;

use super::DeviceContext;
use crate::platform::{Cpus, count_of};

/// Copies at most: beyond that, memory costs more than sharing does.
const COPIES: usize = 32;

/// The settings of a device, in copies.
pub(in crate::dma) struct ContextCopies<P: Cpus + Clone> {
    first: Arc<DeviceContext<P>>,
    others: Vec<Arc<DeviceContext<P>>>,
}

impl<P: Cpus + Clone> ContextCopies<P> {
    /// As many copies of `context` as there are CPUs; fewer without memory.
    pub fn new(context: DeviceContext<P>) -> Self {
        let wanted = count_of(&context.platform).min(COPIES).saturating_sub(1);
        let mut others = Vec::new();
        if others.try_reserve_exact(wanted).is_ok() {
            others.extend((0..wanted).map(|_| Arc::new(context.clone())));
        }
        Self { first: Arc::new(context), others }
    }

    /// The settings, for callers that do not keep them.
    #[inline]
    pub fn first(&self) -> &Arc<DeviceContext<P>> {
        &self.first
    }

    /// The calling CPU's copy, for a mapping that keeps it.
    #[inline]
    pub fn own(&self) -> &Arc<DeviceContext<P>> {
        let cpu = self.first.platform.current().get() as usize;
        let own = match cpu.checked_sub(1) {
            None => Some(&self.first),
            Some(other) => self.others.get(other),
        };
        own.unwrap_or_else(|| self.shared(cpu))
    }

    #[cold]
    fn shared(&self, cpu: usize) -> &Arc<DeviceContext<P>> {
        let other = (cpu % (self.others.len() + 1)).checked_sub(1);
        other.and_then(|other| self.others.get(other)).unwrap_or(&self.first)
    }

    /// Tells if a mapping keeps a copy.
    pub fn is_kept(&mut self) -> bool {
        self.all_mut().any(|copy| Arc::get_mut(copy).is_none())
    }

    /// Does `change` to all copies. Mappings that are there already keep theirs as it was.
    pub fn change(&mut self, change: impl Fn(&mut DeviceContext<P>)) {
        for copy in self.all_mut() {
            if Arc::get_mut(copy).is_none() {
                DeviceContext::orphan(copy);
                *copy = Arc::new(DeviceContext::clone(copy));
            }
            // No other device has it.
            change(Arc::make_mut(copy));
        }
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Arc<DeviceContext<P>>> {
        iter::once(&mut self.first).chain(&mut self.others)
    }

    /// All copies.
    pub fn all(&self) -> impl Iterator<Item = &Arc<DeviceContext<P>>> {
        iter::once(&self.first).chain(&self.others)
    }
}

impl<P: Cpus + Clone> Drop for ContextCopies<P> {
    fn drop(&mut self) {
        self.all().for_each(DeviceContext::orphan);
    }
}
