//! The contract of a table, for every format.
#![allow(missing_docs)]

#[macro_use]
mod formats;

use portolan_verify::contract::{Check, hold};
use portolan_verify::format::FormatName;

macro_rules! formats {
    ($($module:ident: $name:literal),* $(,)?) => {
        $(mod $module {
            use super::*;
            checks! { $name;
                translate: Translate,
                access: Access,
                largest_pages: LargestPages,
                contiguous: Contiguous,
                cut: Cut,
                hole: Hole,
                refuse_map: RefuseMap,
                refuse_unmap: RefuseUnmap,
                starve: Starve,
                dirty: Dirty,
                quiet: Quiet,
                owed: Owed,
            }
        })*

        #[test]
        fn no_format_is_left_out() {
            let names: Vec<FormatName> = [$($name),*].map(|name| name.parse().unwrap()).to_vec();
            assert_eq!(names, FormatName::ALL);
        }
    };
}

macro_rules! checks {
    ($name:literal; $($test:ident: $check:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            hold($name.parse::<FormatName>().unwrap(), Check::$check);
        })*
    };
}

with_formats!(formats);
