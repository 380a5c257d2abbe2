//! Free ranges in a balanced tree that knows the largest below each node.
//!
//! An AVL tree keyed by first page, in an arena. Each node keeps, of its subtree, the greatest
//! length and the order of the greatest naturally aligned block, so that a search never turns into
//! a subtree without a fit. Every operation visits a number of nodes bounded by a small multiple of
//! the height, which is below 1.45 log2(n + 2).
//!
//! *Context.* Interrupt, but for [`Lack::allocate`] and [`GapTree::prepare`], which take heap memory
//! and are for atomic code that holds no lock.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::num::NonZeroU32;

/// A free range, in pages, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub first: u64,
    pub last: u64,
}

impl Gap {
    /// Pages, less one: the whole space has 2^64 of them at most.
    fn length(self) -> u64 {
        self.last - self.first
    }

    /// Order of the greatest aligned block inside; a page, of order 0, always is.
    fn order(self) -> u8 {
        // A run of 2^n pages or more has an aligned block of half as many wherever it begins.
        let order = self.length().checked_add(1).map_or(u64::BITS - 1, u64::ilog2);
        let size_less_one = (1u64 << order) - 1;
        let whole = self.first.checked_add(size_less_one).is_some_and(|rounded| {
            let first = rounded & !size_less_one;
            first <= self.last && self.last - first >= size_less_one
        });
        match whole {
            true => order as u8,
            false => order.saturating_sub(1) as u8,
        }
    }
}

/// Nodes that are allocated together.
const CHUNK: usize = 128;

type Link = Option<NonZeroU32>;

#[derive(Clone, Copy, Debug)]
struct Node {
    gap: Gap,
    left: Link,
    right: Link,
    height: u8,
    order: u8,
    /// Greatest of the subtree.
    longest: u64,
    /// Greatest of the subtree.
    greatest_order: u8,
}

/// Property by which a gap fits for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// So many pages, less one.
    Length(u64),
    /// An aligned block of this order.
    Order(u8),
}

/// Room that a tree lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lack {
    /// Chunks of nodes.
    chunks: usize,
    /// Chunks that it has.
    there: usize,
    /// Chunks that its list has room for.
    listed: usize,
}

/// Room for a tree, which was allocated while no lock was held.
#[derive(Debug)]
pub(super) struct Room {
    chunks: Vec<Vec<Node>>,
    /// A larger list of chunks, if the tree needs one.
    list: Vec<Vec<Node>>,
}

impl Lack {
    /// The room.
    ///
    /// # Errors
    /// If the heap has none.
    pub fn allocate(self) -> Result<Room, TryReserveError> {
        let (mut chunks, mut list) = (Vec::new(), Vec::new());
        let wanted = self.there.saturating_add(self.chunks);
        if wanted > self.listed {
            list.try_reserve_exact(wanted.next_power_of_two())?;
        }
        chunks.try_reserve_exact(self.chunks)?;
        for _ in 0..self.chunks {
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(CHUNK)?;
            chunks.push(chunk);
        }
        Ok(Room { chunks, list })
    }
}

#[derive(Debug, Default)]
pub(super) struct GapTree {
    /// Never moved, so that growing takes no more steps than a chunk has nodes.
    chunks: Vec<Vec<Node>>,
    /// Nodes that were in use.
    made: usize,
    /// Out of use, each with the next as its left child.
    spare: Link,
    root: Link,
    count: usize,
    #[cfg(test)]
    pub steps: core::cell::Cell<usize>,
}

impl GapTree {
    pub fn len(&self) -> usize {
        self.count
    }

    /// Memory to add so that no [`GapTree::insert`] up to `gaps` gaps in all allocates; `None` if
    /// there is room.
    pub fn lack(&self, gaps: usize) -> Option<Lack> {
        let missing = gaps.checked_sub(self.chunks.len() * CHUNK)?;
        let lack = Lack {
            chunks: missing.div_ceil(CHUNK),
            there: self.chunks.len(),
            listed: self.chunks.capacity(),
        };
        (lack.chunks > 0).then_some(lack)
    }

    /// Takes room in, without allocating. Returns the rest, to be freed outside of locks.
    pub fn adopt(&mut self, mut room: Room) -> Room {
        if room.list.capacity() > self.chunks.capacity() {
            room.list.append(&mut self.chunks);
            core::mem::swap(&mut room.list, &mut self.chunks);
        }
        while self.chunks.len() < self.chunks.capacity() {
            let Some(chunk) = room.chunks.pop() else {
                break;
            };
            self.chunks.push(chunk);
        }
        room
    }

    /// Makes room for `gaps` gaps in all, for callers that hold no lock.
    ///
    /// # Errors
    /// If the heap has none.
    pub fn prepare(&mut self, gaps: usize) -> Result<(), TryReserveError> {
        while let Some(lack) = self.lack(gaps) {
            drop(self.adopt(lack.allocate()?));
        }
        Ok(())
    }

    fn node(&self, link: NonZeroU32) -> &Node {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
        let at = link.get() as usize - 1;
        &self.chunks[at / CHUNK][at % CHUNK]
    }

    fn node_mut(&mut self, link: NonZeroU32) -> &mut Node {
        let at = link.get() as usize - 1;
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }

    /// The gap with the greatest first page that is not above `page`.
    pub fn at_or_below(&self, page: u64) -> Option<Gap> {
        let (mut at, mut found) = (self.root, None);
        while let Some(link) = at {
            let node = self.node(link);
            if node.gap.first <= page {
                found = Some(node.gap);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        found
    }

    /// The gap with the smallest first page that is above `page`.
    pub fn above(&self, page: u64) -> Option<Gap> {
        let (mut at, mut found) = (self.root, None);
        while let Some(link) = at {
            let node = self.node(link);
            if node.gap.first > page {
                found = Some(node.gap);
                at = node.left;
            } else {
                at = node.right;
            }
        }
        found
    }

    /// The highest gap below `below` that fits for certain.
    pub fn highest(&self, fit: Fit, below: u64) -> Option<Gap> {
        self.search(self.root, fit, below)
    }

    fn search(&self, at: Link, fit: Fit, below: u64) -> Option<Gap> {
        let node = self.node(at?);
        let subtree = match fit {
            Fit::Length(length) => node.longest >= length,
            Fit::Order(order) => node.greatest_order >= order,
        };
        if !subtree {
            return None;
        }
        if node.gap.last >= below {
            // All to the right lies higher still.
            return self.search(node.left, fit, below);
        }
        let fits = match fit {
            Fit::Length(length) => node.gap.length() >= length,
            Fit::Order(order) => node.order >= order,
        };
        // The left side lies below `below` whole, so a fit that it is said to have is a fit.
        self.search(node.right, fit, below)
            .or(fits.then_some(node.gap))
            .or_else(|| self.search(node.left, fit, below))
    }

    /// Adds a gap that touches and overlaps none. There has to be room for it.
    pub fn insert(&mut self, gap: Gap) {
        let node = Node {
            gap,
            left: None,
            right: None,
            height: 1,
            order: gap.order(),
            longest: gap.length(),
            greatest_order: gap.order(),
        };
        let link = if let Some(link) = self.spare {
            self.spare = self.node(link).left;
            *self.node_mut(link) = node;
            link
        } else {
            self.chunks[self.made / CHUNK].push(node);
            self.made += 1;
            // As many nodes as there are pages between mappings; 2^32 of them do not fit in memory.
            NonZeroU32::new(self.made as u32).unwrap_or(NonZeroU32::MIN)
        };
        self.count += 1;
        self.root = Some(self.put(self.root, link, gap.first));
    }

    fn put(&mut self, at: Link, new: NonZeroU32, first: u64) -> NonZeroU32 {
        let Some(here) = at else {
            return new;
        };
        let node = *self.node(here);
        if first < node.gap.first {
            let left = self.put(node.left, new, first);
            self.node_mut(here).left = Some(left);
        } else {
            let right = self.put(node.right, new, first);
            self.node_mut(here).right = Some(right);
        }
        self.balanced(here)
    }

    /// Takes out the gap that begins at `first`, if there is one.
    pub fn remove(&mut self, first: u64) -> Option<Gap> {
        let (root, taken) = self.take(self.root, first);
        self.root = root;
        let link = taken?;
        self.count -= 1;
        let spare = self.spare;
        self.node_mut(link).left = spare;
        self.spare = Some(link);
        Some(self.node(link).gap)
    }

    fn take(&mut self, at: Link, first: u64) -> (Link, Link) {
        let Some(here) = at else {
            return (None, None);
        };
        let node = *self.node(here);
        if first == node.gap.first {
            let rest = match (node.left, node.right) {
                (None, other) | (other, None) => other,
                (left, Some(right)) => {
                    let (rest, lowest) = self.take_lowest(right);
                    let next = self.node_mut(lowest);
                    (next.left, next.right) = (left, rest);
                    Some(self.balanced(lowest))
                }
            };
            return (rest, Some(here));
        }
        let taken = if first < node.gap.first {
            let (left, taken) = self.take(node.left, first);
            self.node_mut(here).left = left;
            taken
        } else {
            let (right, taken) = self.take(node.right, first);
            self.node_mut(here).right = right;
            taken
        };
        (Some(self.balanced(here)), taken)
    }

    fn take_lowest(&mut self, here: NonZeroU32) -> (Link, NonZeroU32) {
        let node = *self.node(here);
        let Some(left) = node.left else {
            return (node.right, here);
        };
        let (rest, lowest) = self.take_lowest(left);
        self.node_mut(here).left = rest;
        (Some(self.balanced(here)), lowest)
    }

    fn height(&self, at: Link) -> u8 {
        at.map_or(0, |link| self.node(link).height)
    }

    fn refresh(&mut self, here: NonZeroU32) {
        let node = *self.node(here);
        let (mut height, mut longest, mut order) = (0, node.gap.length(), node.order);
        for side in [node.left, node.right].into_iter().flatten() {
            let side = self.node(side);
            height = height.max(side.height);
            longest = longest.max(side.longest);
            order = order.max(side.greatest_order);
        }
        let node = self.node_mut(here);
        node.height = height + 1;
        (node.longest, node.greatest_order) = (longest, order);
    }

    /// Restores balance and sums at a node whose subtrees are sound.
    fn balanced(&mut self, here: NonZeroU32) -> NonZeroU32 {
        let node = *self.node(here);
        let (left, right) = (self.height(node.left), self.height(node.right));
        match (node.left, node.right) {
            (Some(child), _) if left > right + 1 => {
                let child_node = *self.node(child);
                if self.height(child_node.right) > self.height(child_node.left) {
                    let turned = self.turn_left(child);
                    self.node_mut(here).left = Some(turned);
                }
                self.turn_right(here)
            }
            (_, Some(child)) if right > left + 1 => {
                let child_node = *self.node(child);
                if self.height(child_node.left) > self.height(child_node.right) {
                    let turned = self.turn_right(child);
                    self.node_mut(here).right = Some(turned);
                }
                self.turn_left(here)
            }
            _ => {
                self.refresh(here);
                here
            }
        }
    }

    fn turn_right(&mut self, here: NonZeroU32) -> NonZeroU32 {
        let Some(top) = self.node(here).left else {
            return here;
        };
        let inner = self.node(top).right;
        self.node_mut(here).left = inner;
        self.node_mut(top).right = Some(here);
        self.refresh(here);
        self.refresh(top);
        top
    }

    fn turn_left(&mut self, here: NonZeroU32) -> NonZeroU32 {
        let Some(top) = self.node(here).right else {
            return here;
        };
        let inner = self.node(top).left;
        self.node_mut(here).right = inner;
        self.node_mut(top).left = Some(here);
        self.refresh(here);
        self.refresh(top);
        top
    }
}

#[cfg(test)]
mod tests;
