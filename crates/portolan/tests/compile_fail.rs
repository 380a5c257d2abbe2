//! Operations on a buffer that a driver must not be able to do while a device may reach it, in safe
//! code: programs that do not compile, each with the compiler's message.
#![allow(missing_docs)]

#[test]
fn safe_code_does_not_get_at_a_buffer_that_a_device_may_reach() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
