//! Every interleaving of two CPUs that work in the same leaf table, explored with a model checker.
//!
//! Freed pages are watched: a page freed twice, or reached after it was freed, fails the test.
#![allow(missing_docs)]

#[path = "support/tiny_table.rs"]
mod tiny_table;

use loom::sync::Arc;
use portolan::addr::Iova;
use tiny_table::{Found, PAGE, Table, Tiny, Watched, explore, look, map, pay, unmap};

#[test]
fn two_cpus_map_and_unmap_in_one_leaf_table() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(8)).unwrap());
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || {
            map(&other, 1);
            let owed = unmap(&other, 1);
            pay(&other, owed);
        });
        map(&table, 0);
        let owed = unmap(&table, 0);
        pay(&table, owed);
        cpu.join().unwrap();
        assert_eq!(table.pages(), 1, "an emptied table stayed behind");
    });
}

#[test]
fn a_map_takes_back_the_table_that_another_cpu_empties() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(8)).unwrap());
        map(&table, 0);
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || map(&other, 1));
        let owed = unmap(&table, 0);
        pay(&table, owed);
        cpu.join().unwrap();
        assert!(table.translate(Iova::new(PAGE)).is_some(), "a mapping was lost");
        assert!(table.translate(Iova::new(0)).is_none());
        assert_eq!(table.pages(), 2);
    });
}

#[test]
fn a_table_emptied_twice_is_freed_by_the_later_debt_only() {
    explore(3, || {
        let table = Table::new(Tiny, Watched::new(8)).unwrap();
        map(&table, 0);
        let first = unmap(&table, 0);
        map(&table, 1);
        let second = unmap(&table, 1);
        pay(&table, first);
        assert_eq!(table.pages(), 2, "freed while the later debt was open");
        pay(&table, second);
        assert_eq!(table.pages(), 1);
    });
}

/// A CPU that finds a table finds it empty, with any former contents of its page.
#[test]
fn a_table_in_a_page_that_was_used_before_is_empty_for_all() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(2)).unwrap());
        map(&table, 0);
        pay(&table, unmap(&table, 0));
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || {
            look(&other, 0, Found::MappedOrNot);
            look(&other, 1, Found::MappedOrNot);
        });
        map(&table, 1);
        cpu.join().unwrap();
    });
}

/// The same of a CPU whose own table came too late.
#[test]
fn a_table_that_another_cpu_has_put_there_first_is_empty() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(3)).unwrap());
        map(&table, 0);
        pay(&table, unmap(&table, 0));
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || map(&other, 1));
        map(&table, 0);
        cpu.join().unwrap();
        assert_eq!(table.pages(), 2);
    });
}
