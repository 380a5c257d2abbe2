//! What safe code must not be able to do with a unit: let devices reach all memory, drive what is not its
//! own, or believe tables that nobody promised. Programs that do not compile, each with what the compiler says
//! of it.
#![allow(missing_docs)]

#[test]
fn safe_code_does_not_open_a_unit_s_doors() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
