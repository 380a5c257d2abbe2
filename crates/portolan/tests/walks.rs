//! Every interleaving, and every order that C11 allows, of a CPU that merely looks and others that take
//! the tables out meanwhile.
//!
//! `RUSTFLAGS="--cfg portolan_loom" cargo test -p portolan --test walks` runs it, as does `cargo xtask test`.
#![cfg(portolan_loom)]
#![allow(missing_docs)]

#[path = "support/tiny_table.rs"]
mod tiny_table;

use loom::sync::Arc;
use portolan::addr::Iova;
use tiny_table::{Found, Table, Tiny, Watched, explore, look, map, pay, unmap_last};

#[test]
fn a_walk_reads_in_no_page_that_was_given_back() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(4)).unwrap());
        map(&table, 0);
        let other = Arc::clone(&table);
        let looker = loom::thread::spawn(move || look(&other, 0, Found::MappedOrNot));
        pay(&table, unmap_last(&table, 0));
        looker.join().unwrap();
        assert_eq!(table.pages(), 1, "a parked page stayed");
    });
}

#[test]
fn two_walks_and_a_page_that_is_parked() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(4)).unwrap());
        map(&table, 0);
        let lookers = [(); 2].map(|()| {
            let other = Arc::clone(&table);
            loom::thread::spawn(move || look(&other, 0, Found::MappedOrNot))
        });
        pay(&table, unmap_last(&table, 0));
        for looker in lookers {
            looker.join().unwrap();
        }
        assert_eq!(table.pages(), 1, "a parked page stayed");
    });
}

/// The second walk may be counted where the first is, or where it is not.
#[test]
fn walks_that_follow_each_other_and_two_pages_that_are_parked() {
    explore(2, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(6)).unwrap());
        map(&table, 0);
        let other = Arc::clone(&table);
        let looker = loom::thread::spawn(move || {
            look(&other, 0, Found::MappedOrNot);
            look(&other, 0, Found::MappedOrNot);
        });
        pay(&table, unmap_last(&table, 0));
        map(&table, 2);
        pay(&table, unmap_last(&table, 2));
        looker.join().unwrap();
        assert_eq!(table.pages(), 1, "a parked page stayed");
    });
}

/// A look for empty tables is a walk like others.
#[test]
fn a_look_for_empty_tables_reads_in_no_page_that_was_given_back() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(4)).unwrap());
        map(&table, 0);
        let other = Arc::clone(&table);
        let looker = loom::thread::spawn(move || {
            let found = other.next_empty_table(Iova::new(0));
            assert!(found.is_none_or(|range| range.start() == Iova::new(0)), "{found:?}");
        });
        pay(&table, unmap_last(&table, 0));
        looker.join().unwrap();
        assert_eq!(table.pages(), 1, "a parked page stayed");
    });
}
