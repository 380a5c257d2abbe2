//! Files that the rule reports, and files that it leaves alone.

use super::*;

/// Findings in files of `portolan`, as path and text, by their paths below `src`.
fn found(files: &[(&str, &str)]) -> Vec<(String, String)> {
    let file = |(path, text): &(&str, &str)| {
        let path = format!("crates/portolan/src/{path}");
        (path, (*text).to_owned())
    };
    let files: Vec<_> = files.iter().map(file).collect();
    let findings = check(&files).into_iter();
    findings.map(|f| (f.path, f.what)).collect()
}

/// Tells if there is no finding in one file.
fn passes(text: &str) -> bool {
    found(&[("walk.rs", text)]).is_empty()
}

/// The lines of one file at which functions are reported, and the functions.
fn reported(text: &str) -> Vec<(usize, String)> {
    let read = |(path, what): (String, String)| {
        assert_eq!(path, "crates/portolan/src/walk.rs");
        let (line, what) = what.strip_prefix("line ")?.split_once(": ")?;
        let name = what.strip_suffix(" has no line *Context.*")?;
        Some((line.parse().ok()?, name.to_owned()))
    };
    let found = found(&[("walk.rs", text)]).into_iter();
    found.map(|f| read(f.clone()).expect(&f.1)).collect()
}

const LINE: &str = "*Context.* Interrupt.";

#[test]
fn a_function_that_says_nothing_is_reported_with_its_line() {
    let found = found(&[("iova/walk.rs", "//! H\n\n/// Walks.\npub fn walk() {}\n")]);
    let what = "line 4: walk has no line *Context.*";
    let path = "crates/portolan/src/iova/walk.rs";
    assert_eq!(found, [(path.to_owned(), what.to_owned())]);
}

#[test]
fn each_function_has_a_line_of_its_own() {
    let text = format!("//! H\n/// {LINE}\npub fn one() {{}}\npub fn other() {{}}\n");
    assert_eq!(reported(&text), [(4, "other".to_owned())]);
}

#[test]
fn all_ways_to_write_a_public_function() {
    let starts = [
        "pub fn",
        "pub const fn",
        "pub unsafe fn",
        "pub const unsafe fn",
        "pub async fn",
        "pub extern \"C\" fn",
        "#[inline]\npub fn",
        "#[doc(alias = \"a]b\")] pub fn",
        "#[cfg_attr(\n    a,\n    b\n)]\npub fn",
        "#[a([b], {c})]\npub fn",
    ];
    for start in starts {
        let name = |text: &str| -> Vec<String> {
            let reported = reported(text).into_iter();
            reported.map(|(_, name)| name).collect()
        };
        let text = format!("//! H\n{start} f(a: [u8; 4]) -> impl Iterator<Item = u8> {{\n}}\n");
        assert_eq!(name(&text), ["f"], "{start}");
        let text = format!("//! H\n/// A.\n///\n/// {LINE}\n{start} f(\n    a: u8,\n) {{}}\n");
        assert!(passes(&text), "{start}");
    }
}

#[test]
fn names_that_are_keywords_as_well() {
    let text = "//! H\npub fn r#type() {}\npub fn f() {}\n";
    assert_eq!(reported(text).len(), 2);
}

#[test]
fn what_is_not_public_as_written_need_not_say_it() {
    assert!(passes("//! H\nfn a() {}\n"));
    assert!(passes("//! H\npub(crate) fn a() {}\npub(super) const fn b() {}\n"));
    assert!(passes("//! H\ntrait T {\n    fn a(&self);\n}\n"));
    assert!(passes("//! H\nimpl pub_crate::T for S {\n    fn a(&self) {}\n}\n"));
    assert!(passes("//! H\npub struct S {\n    pub a: fn(u8) -> u8,\n}\n"));
    assert!(passes("//! H\n// pub fn a() {}\nconst A: &str = \"pub fn b() {\";\n"));
}

#[test]
fn methods_of_a_public_trait_with_a_body_and_without() {
    let body = "    fn a(&self);\n    const C: u8 = 1;\n    fn b(&self) {\n        c()\n    }\n";
    for public in ["pub trait", "pub unsafe trait"] {
        let silent = format!("//! H\n{public} T: Send\nwhere\n    Self: Sized,\n{{\n{body}}}\n");
        let both = [(6, "a".to_owned()), (8, "b".to_owned())];
        assert_eq!(reported(&silent), both, "{public}");
        assert!(passes(&format!("//! H\n/// {LINE}\n{public} T {{\n{body}}}\n")));
    }
}

#[test]
fn an_impl_block_says_it_for_its_own_functions_alone() {
    let block = "impl<T: Fn() -> u8> S<T> {\n    pub fn a(&self) {}\n}\n";
    let text = format!("//! H\nstruct S<T>(T);\n/// {LINE}\n{block}");
    assert!(passes(&text));
    let text = format!("{text}impl S<u8> {{\n    pub fn b(&self) {{}}\n}}\n");
    assert_eq!(reported(&text), [(8, "b".to_owned())]);
}

#[test]
fn a_type_says_it_for_all_its_impl_blocks() {
    let blocks = "impl<T> S<T> {\n    pub fn a(&self) {}\n}\nimpl S<u8> {\n    pub fn b() {}\n}\n";
    for declared in ["struct S<T>(T);", "pub enum S<T> {\n    A(T),\n}", "union S<T> { a: T }"] {
        assert!(passes(&format!("//! H\n/// {LINE}\n#[derive(A)]\n{declared}\n{blocks}")));
        assert_eq!(reported(&format!("//! H\n{declared}\n{blocks}")).len(), 2);
    }
    // Another type's line does not count, nor does a missing one, nor that of a type for tests.
    let line = format!("/// {LINE}\n");
    let other = format!("//! H\nstruct S;\n{line}struct Other;\n{blocks}");
    assert_eq!(reported(&other).len(), 2);
    for other in ["struct Other;", "#[cfg(test)]\nmod tests {\n    struct S;\n}"] {
        assert!(passes(&format!("//! H\n{line}struct S;\n{other}\n{blocks}")));
    }
}

#[test]
fn functions_that_a_macro_makes() {
    let made = |line: &str| {
        let made = format!("{line}        pub struct $name(u8);\n        impl $name {{\n");
        let made = format!("    ($name:ident) => {{\n{made}            pub fn $get() {{}}\n");
        format!("//! H\nmacro_rules! id {{\n{made}        }}\n    }};\n}}\n")
    };
    assert!(passes(&made(&format!("        /// {LINE}\n"))));
    assert_eq!(reported(&made("")), [(6, "$get".to_owned())]);
}

#[test]
fn all_ways_to_write_an_impl_block() {
    for header in [
        "impl Simple",
        "impl<T: Fn() -> u8> Simple<T>",
        "impl Simple<[u8; 4]>",
        "impl super::walk::Simple",
        "impl<T> Simple<T>\nwhere\n    T: a::Construct ,\n",
    ] {
        let block = format!("{header} {{\n    pub fn a() {{}}\n}}\n");
        let declared = format!("/// {LINE}\nstruct Simple<T>(T);\n");
        assert!(passes(&format!("//! H\n{declared}{block}")), "{header}");
    }
}

#[test]
fn what_is_said_of_one_item_is_not_said_of_another_nor_of_what_is_in_it() {
    let b = |line| vec![(line, "b".to_owned())];
    let text = format!("//! H\nimpl S {{\n    /// {LINE}\n    pub fn a() {{\n");
    let text = format!("{text}        pub fn b() {{}}\n    }}\n}}\n");
    assert_eq!(reported(&text), b(5));
    let text = format!("//! H\n/// {LINE}\nmacro_rules! m {{\n    () => {{\n");
    assert_eq!(reported(&format!("{text}pub fn b() {{}}\n}};\n}}\n")), b(5));
    let text = format!("//! H\nmake!(impl S {{\n    /// {LINE}\n    const A: u8 = 1;\n");
    assert_eq!(reported(&format!("{text}    pub fn b() {{}}\n}});\n")), b(5));
    let text = format!("//! H\nstruct S {{\n    /// {LINE}\n    a: u8,\n}}\npub fn b() {{}}\n");
    assert_eq!(reported(&text), b(6));
}

#[test]
fn the_type_is_the_one_that_is_declared_nearest() {
    let said = format!("//! H\n/// {LINE}\nstruct S;\n");
    let silent = "//! H\nstruct S;\n";
    let block = "//! H\nimpl super::S {\n    pub fn a() {}\n}\n";
    let of = |near: &str, far: &str| {
        let files = [("near/mod.rs", near), ("near/walk.rs", block), ("far.rs", far)];
        found(&files).len()
    };
    assert_eq!((of(&said, silent), of(silent, &said)), (0, 1));
    // The line of the module above is preferred to that of another module.
    let beside = [("near/mod.rs", &*said), ("near/other.rs", silent), ("near/walk.rs", block)];
    assert!(found(&beside).is_empty());
    // Further away, if there is none near; if two are equally near, both.
    assert_eq!((of("//! H\n", &said), of("//! H\n", "//! H\n")), (0, 1));
    let farther = [("a.rs", &*said), ("b.rs", silent), ("near/walk.rs", block)];
    assert_eq!(found(&farther).len(), 1);
}

#[test]
fn a_header_says_it_for_the_file_and_the_modules_below() {
    let header = format!("//! H\n//!\n//! {LINE}\n");
    let silent = "//! H\npub fn a() {}\n";
    assert!(passes(&format!("{header}pub fn a() {{}}\n")));
    for above in ["dma/mod.rs", "dma.rs"] {
        let of = |path| found(&[(above, &*header), (path, silent)]).len();
        assert_eq!((of("dma/a.rs"), of("dma/a/b.rs"), of("iova/a.rs")), (0, 0, 1));
    }
    // The front page explains the line for the whole crate, and says it for nothing but itself.
    assert_eq!(found(&[("lib.rs", &header), ("dma.rs", silent)]).len(), 1);
    assert_eq!(found(&[("dma/b.rs", &header), ("dma/a.rs", silent)]).len(), 1);
}

#[test]
fn a_module_in_the_file_says_it_for_what_is_in_it() {
    let function = "    pub fn a() {}\n}\npub fn b() {}\n";
    let b = |line| vec![(line, "b".to_owned())];
    assert_eq!(reported(&format!("//! H\n/// {LINE}\nmod m {{\n{function}")), b(6));
    assert_eq!(reported(&format!("//! H\nmod m {{\n    //! {LINE}\n{function}")), b(6));
}

#[test]
fn tests_need_not_say_it() {
    let function = "pub fn a() {}\n";
    assert!(passes(&format!("//! H\n#[cfg(test)]\n{function}")));
    assert!(passes(&format!("//! H\n#[cfg(test)]\nmod tests {{\n    {function}}}\n")));
    assert!(passes(&format!("//! H\n#![cfg(test)]\n{function}")));
    let within = format!("impl S {{\n{function}}}\n");
    assert!(passes(&format!("//! H\n#[cfg(test)]\nmod tests {{\n{within}}}\n")));
    let after = format!("//! H\n#[cfg(test)]\nmod tests;\n{function}");
    assert_eq!(reported(&after), [(4, "a".to_owned())]);
    let silent = format!("//! H\n{function}");
    let declares = "//! H\n#[cfg(test)]\nmod rig;\n";
    let of = |path| found(&[("dma/mod.rs", declares), (path, &silent)]).len();
    assert_eq!((of("dma/rig.rs"), of("dma/rig/more.rs"), of("dma/walk.rs")), (0, 0, 1));
    assert_eq!(of("rig.rs"), 1);
    let of = |path| found(&[("lib.rs", declares), (path, &silent)]).len();
    assert_eq!((of("rig.rs"), of("dma/rig.rs")), (0, 1));
}

#[test]
fn the_line_names_a_context() {
    let of = |line: &str| {
        let text = format!("//! H\n/// *Context.* {line}\npub fn a() {{}}\n");
        let found = found(&[("walk.rs", &text)]).pop();
        found.map(|(path, what)| format!("{path}: {what}"))
    };
    let what = "line 2: names none of interrupt, atomic, task";
    let path = "crates/portolan/src/walk.rs";
    let header = found(&[("walk.rs", "//! H\n//! *Context.* Any.\n")]);
    assert_eq!(header, [(path.to_owned(), what.to_owned())]);
    let finding = format!("{path}: {what}");
    for line in ["Interrupt.", "Atomic: waits.", "Made and dropped: task.", "As\n/// tasks do."] {
        assert_eq!(of(line), None, "{line}");
    }
    for line in ["As [`walk`].", "", "Any.\n///\n/// A task.", "Any.\n/// *Context.* Task."] {
        assert_eq!(of(line), Some(finding.clone()), "{line}");
    }
}

#[test]
fn other_crates_and_files_need_not_say_it() {
    let file = |path: &str| vec![(path.to_owned(), "//! H\npub fn a() {}\n".to_owned())];
    let count = |path| check(&file(path)).len();
    assert_eq!(count("crates/portolan-hw/src/vtd/a.rs"), 1);
    for path in ["crates/portolan/tests/a.rs", "proof/chips/src/a.rs", "xtask/src/a.rs"] {
        assert_eq!(count(path), 0, "{path}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_reported() {
    for text in ["//! H\nfn a() {\n", "//! H\n}\nfn a() {}\n"] {
        let what = "braces do not balance as this rule reads them";
        assert_eq!(found(&[("walk.rs", text)])[0].1, what);
    }
}
