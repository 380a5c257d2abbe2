//! Values by the address that a device has for them.
//!
//! *Context.* Interrupt: sections are short, and entries come from a reserve. Where that is used up, an insertion
//! takes heap memory, outside of the lock.

use alloc::boxed::Box;

use portolan::platform::{Cpus, Guarded};

/// Number of chains. Neighbouring pages are in different ones.
const CHAINS: usize = 64;

type Link<V> = Option<Box<TableEntry<V>>>;

struct TableEntry<V> {
    at: u64,
    /// Taken when the entry is put back into the reserve.
    value: Option<V>,
    next: Link<V>,
}

impl<V> TableEntry<V> {
    fn unused() -> Box<Self> {
        Box::new(Self { at: 0, value: None, next: None })
    }
}

struct Chains<V> {
    heads: [Link<V>; CHAINS],
    spare: Link<V>,
    used: usize,
}

impl<V> Chains<V> {
    fn head(&mut self, at: u64) -> &mut Link<V> {
        &mut self.heads[(at >> 12) as usize % CHAINS]
    }

    fn spare(&mut self) -> Link<V> {
        let mut entry = self.spare.take()?;
        self.spare = entry.next.take();
        Some(entry)
    }

    fn put_back(&mut self, mut entry: Box<TableEntry<V>>) {
        entry.next = self.spare.take();
        self.spare = Some(entry);
    }

    fn insert(&mut self, mut entry: Box<TableEntry<V>>) {
        let head = self.head(entry.at);
        entry.next = head.take();
        *head = Some(entry);
        self.used += 1;
    }

    #[cfg(feature = "dma-api")]
    fn find(&mut self, at: u64) -> Option<&mut V> {
        let mut link = self.head(at);
        while let Some(entry) = link {
            if entry.at == at {
                return entry.value.as_mut();
            }
            link = &mut entry.next;
        }
        None
    }

    fn remove(&mut self, at: u64) -> Option<V> {
        let mut link = self.head(at);
        while link.as_ref()?.at != at {
            link = &mut link.as_mut()?.next;
        }
        let mut entry = link.take()?;
        *link = entry.next.take();
        let value = entry.value.take();
        self.put_back(entry);
        self.used -= 1;
        value
    }
}

impl<V> Drop for Chains<V> {
    fn drop(&mut self) {
        // One after the other: a chain of boxes would be dropped by recursion.
        for link in self.heads.iter_mut().chain([&mut self.spare]) {
            let mut left = link.take();
            while let Some(mut entry) = left {
                left = entry.next.take();
            }
        }
    }
}

/// Values by address.
pub(crate) struct AddressTable<P: Cpus, V: Send>(Guarded<P, Chains<V>>);

impl<P: Cpus, V: Send> AddressTable<P, V> {
    /// No values, and entries for `reserve` of them.
    pub fn new(reserve: usize) -> Self {
        let heads = [const { None }; CHAINS];
        let mut chains = Chains { heads, spare: None, used: 0 };
        (0..reserve).for_each(|_| chains.put_back(TableEntry::unused()));
        Self(Guarded::new(chains))
    }

    /// Inserts a value at an address that has none.
    pub fn insert(&self, at: u64, value: V) {
        let spare = self.0.with(Chains::spare);
        let mut entry = spare.unwrap_or_else(TableEntry::unused);
        (entry.at, entry.value) = (at, Some(value));
        self.0.with(|chains| chains.insert(entry));
    }

    /// Removes the value at the address.
    pub fn remove(&self, at: u64) -> Option<V> {
        self.0.with(|chains| chains.remove(at))
    }

    /// Has `work` done with the value at the address, under the lock.
    #[cfg(feature = "dma-api")]
    pub fn with<R>(&self, at: u64, work: impl FnOnce(&mut V) -> R) -> Option<R> {
        self.0.with(|chains| chains.find(at).map(work))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.with(|chains| chains.used)
    }
}
