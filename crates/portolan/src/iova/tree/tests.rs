//! The tree's own promises: balance, sums, and room.

use super::*;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

impl GapTree {
    /// Height, greatest length and greatest order below `at`, each looked up anew.
    fn sums(&self, at: Link) -> (u8, u64, u8) {
        let Some(link) = at else {
            return (0, 0, 0);
        };
        let node = *self.node(link);
        let (left, right) = (self.sums(node.left), self.sums(node.right));
        assert!(left.0.abs_diff(right.0) <= 1, "{node:?}");
        let height = 1 + left.0.max(right.0);
        let longest = node.gap.length().max(left.1).max(right.1);
        let order = node.gap.order().max(left.2).max(right.2);
        let noted = (node.height, node.longest, node.greatest_order);
        assert_eq!(noted, (height, longest, order), "{node:?}");
        (height, longest, order)
    }
}

fn gap(first: u64, last: u64) -> Gap {
    Gap { first, last }
}

/// The order of the greatest aligned block, by looking for one of each.
fn order_by_search(gap: Gap) -> u8 {
    let fits = |order: &u8| {
        let size = 1u128 << order;
        u128::from(gap.first).next_multiple_of(size) + size - 1 <= u128::from(gap.last)
    };
    (0..64).rev().find(fits).unwrap()
}

#[test]
fn the_order_is_found_without_a_search() {
    let ends = (0..64u64).chain((u64::MAX - 63)..=u64::MAX);
    let ends: Vec<u64> =
        ends.chain((6..64).flat_map(|lg2| (0..5).map(move |by| (1 << lg2) - 2 + by))).collect();
    for &first in &ends {
        for &last in ends.iter().filter(|&&last| last >= first) {
            let gap = gap(first, last);
            assert_eq!(gap.order(), order_by_search(gap), "{gap:?}");
        }
    }
}

#[test]
fn the_order_is_that_of_the_greatest_aligned_block() {
    for (first, last, order) in [
        (0, 0, 0),
        (0, 1, 1),
        (1, 2, 0),
        (1, 3, 1),
        (3, 8, 2),
        (4, 6, 1),
        (5, 6, 0),
        (1, 14, 2),
        (1, 15, 3),
        (0, u64::MAX - 1, 63),
        (1, u64::MAX, 63),
        (2, u64::MAX - 1, 62),
        (u64::MAX - 1, u64::MAX, 1),
        (u64::MAX, u64::MAX, 0),
    ] {
        assert_eq!(gap(first, last).order(), order, "{first} {last}");
    }
}

#[test]
fn changes_leave_it_balanced_and_its_sums_right() {
    let mut state = 0x07ee_5eed_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut tree = GapTree::default();
    let mut gaps = BTreeMap::new();
    for step in 0..4_000 {
        let first = random(200) * 16;
        // Grows, shrinks, and grows again.
        if random(100) < if step / 500 % 2 == 0 { 70 } else { 30 } {
            if let Entry::Vacant(place) = gaps.entry(first) {
                let gap = *place.insert(gap(first, first + random(15)));
                tree.prepare(tree.len() + 1).unwrap();
                tree.insert(gap);
            }
        } else {
            assert_eq!(tree.remove(first), gaps.remove(&first));
        }
        tree.sums(tree.root);
        assert_eq!(tree.len(), gaps.len());
        let page = random(200 * 16);
        let below = gaps.range(..=page).next_back().map(|(_, gap)| *gap);
        let above = gaps.range(page + 1..).next().map(|(_, gap)| *gap);
        assert_eq!((tree.at_or_below(page), tree.above(page)), (below, above));
        let first = gaps.range(page..).next().map_or(0, |(first, _)| *first);
        let next = gaps.range(first + 1..).next().map(|(_, gap)| *gap);
        assert_eq!(tree.above(first), next);
    }
}

#[test]
fn room_is_lacking_from_the_first_gap_that_does_not_fit() {
    let mut tree = GapTree::default();
    assert!(tree.lack(0).is_none() && tree.lack(1).is_some());
    tree.prepare(CHUNK).unwrap();
    assert!(tree.lack(CHUNK).is_none());
    let lack = tree.lack(CHUNK + 1).unwrap();
    assert_eq!((lack.chunks, lack.there), (1, 1));
}

#[test]
fn a_longer_list_is_made_where_the_chunks_do_not_fit() {
    for (there, chunks, listed, list) in [(0, 1, 0, 1), (3, 1, 4, 0), (4, 1, 4, 8), (1, 4, 4, 8)] {
        let lack = Lack { chunks, there, listed };
        let room = lack.allocate().unwrap();
        assert_eq!(room.list.capacity(), list, "{lack:?}");
        assert_eq!(room.chunks.len(), chunks);
    }
}

#[test]
fn what_does_not_fit_comes_back() {
    let lack = Lack { chunks: 1, there: 0, listed: 0 };
    let mut tree = GapTree::default();
    assert!(tree.adopt(lack.allocate().unwrap()).chunks.is_empty());
    // Another CPU brings the same.
    let over = tree.adopt(lack.allocate().unwrap());
    assert_eq!((over.chunks.len(), tree.chunks.len()), (1, 1));
    assert!(tree.lack(CHUNK).is_none() && tree.lack(CHUNK + 1).is_some());
}
