//! Prints firmware's description of a machine's IOMMUs.
//!
//! `cargo run -p portolan-tables --example acpi [FILE…]` prints the tables DMAR, IVRS, IORT and VIOT of the
//! files, or of the Linux machine that it runs on (as root).
#![allow(missing_docs)]

use std::error::Error;
use std::fmt::Debug;

use portolan_tables::dmar::Dmar;
use portolan_tables::iort::Iort;
use portolan_tables::ivrs::Ivrs;
use portolan_tables::viot::Viot;

/// Directory in which Linux shows its firmware's tables.
const HERE: &str = "/sys/firmware/acpi/tables";

/// Prints each part of a table; a damaged part ends it with its reason.
fn show<T: Debug, E: Error + 'static>(
    parts: impl Iterator<Item = Result<T, E>>,
) -> Result<(), Box<dyn Error>> {
    for part in parts {
        println!("  {:?}", part?);
    }
    Ok(())
}

fn print(bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    match bytes.get(..4) {
        Some(b"DMAR") => show(Dmar::parse(bytes)?.structures()),
        Some(b"IVRS") => show(Ivrs::parse(bytes)?.blocks()),
        Some(b"IORT") => show(Iort::parse(bytes)?.nodes()),
        Some(b"VIOT") => show(Viot::parse(bytes)?.nodes()),
        _ => Err("no table of IOMMUs".into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let here = ["DMAR", "IVRS", "IORT", "VIOT"].map(|name| format!("{HERE}/{name}"));
    let paths = if named.is_empty() { here.to_vec() } else { named.clone() };
    for path in paths {
        match std::fs::read(&path) {
            Ok(bytes) => {
                println!("{path}:");
                print(&bytes)?;
            }
            Err(error) if named.is_empty() => println!("{path}: {error}"),
            Err(error) => return Err(format!("{path}: {error}").into()),
        }
    }
    Ok(())
}
