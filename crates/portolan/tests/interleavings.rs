//! Every interleaving of two CPUs that work in the same leaf table, explored with a model checker.
//!
//! Freed pages are watched: a page freed twice, or reached after it was freed, fails the test.
#![allow(missing_docs)]

#[path = "support/tiny_table.rs"]
mod tiny_table;

use loom::sync::{Arc, Mutex};
use portolan::addr::Iova;
use portolan::inval::Gather;
use tiny_table::{
    Found, PAGE, Table, Tiny, Watched, explore, look, map, pay, prune, unmap, unmap_last,
};

#[test]
fn two_cpus_map_and_unmap_in_one_leaf_table() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(8)).unwrap());
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || {
            map(&other, 1);
            let owed = unmap(&other, 1);
            pay(&other, owed);
            map(&other, 1);
        });
        map(&table, 0);
        let owed = unmap(&table, 0);
        pay(&table, owed);
        cpu.join().unwrap();
        assert!(table.translate(Iova::new(PAGE)).is_some(), "a mapping was lost");
        assert!(table.translate(Iova::new(0)).is_none());
        assert_eq!(table.pages(), 2, "a table that was not needed stayed");
        pay(&table, unmap_last(&table, 1));
        assert_eq!(table.pages(), 1);
    });
}

/// Addresses, each of one owner at a time: what an allocator gives out.
struct Addresses(Mutex<[bool; 2]>);

impl Addresses {
    fn take<const N: usize>(&self, pages: [usize; N]) -> bool {
        let mut taken = self.0.lock().unwrap();
        let free = pages.iter().all(|&page| !taken[page]);
        if free {
            pages.iter().for_each(|&page| taken[page] = true);
        }
        free
    }

    fn give_back<const N: usize>(&self, pages: [usize; N]) {
        let mut taken = self.0.lock().unwrap();
        pages.iter().for_each(|&page| taken[page] = false);
    }
}

/// A CPU that has found a table empty takes its addresses before it takes the table out, as a space
/// does.
#[test]
fn a_table_whose_addresses_were_taken_goes_and_no_mapping_with_it() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(8)).unwrap());
        let addresses = Arc::new(Addresses(Mutex::new([false; 2])));
        map(&table, 1);
        pay(&table, unmap(&table, 1));
        let (its_table, its_addresses) = (Arc::clone(&table), Arc::clone(&addresses));
        let cpu = loom::thread::spawn(move || {
            let taken = its_addresses.take([0]);
            if taken {
                map(&its_table, 0);
            }
            taken
        });
        let mut owed = Gather::new();
        let found = table.next_empty_table(Iova::new(0)).is_some();
        if found && addresses.take([0, 1]) {
            assert_eq!(prune(&table, 0, &mut owed), 1);
            pay(&table, owed);
            addresses.give_back([0, 1]);
        }
        let mapped = cpu.join().unwrap();
        look(&table, 0, if mapped { Found::Mapped } else { Found::MappedOrNot });
        let tables = if table.translate(Iova::new(0)).is_some() { 2 } else { 1 };
        assert!(table.pages() >= tables && table.pages() <= 2);
    });
}

/// A CPU that finds a table finds it empty, with any former contents of its page.
#[test]
fn a_table_in_a_page_that_was_used_before_is_empty_for_all() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(2)).unwrap());
        map(&table, 0);
        pay(&table, unmap_last(&table, 0));
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
        pay(&table, unmap_last(&table, 0));
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || map(&other, 1));
        map(&table, 0);
        cpu.join().unwrap();
        assert_eq!(table.pages(), 2);
    });
}
