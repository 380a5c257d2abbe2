//! Operations on a unit that safe code must not be able to do: to let devices reach all memory, to
//! drive registers that are not its own, or to believe tables without a promise. Programs that do
//! not compile, each with the compiler's message.
#![allow(missing_docs)]

#[test]
fn safe_code_does_not_open_a_unit_s_doors() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
