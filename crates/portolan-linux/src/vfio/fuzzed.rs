//! The corpus of the fuzzer of the kernel's answers, replayed.

#[path = "../../../../proof/fuzz/bodies/corpus.rs"]
mod corpus;

#[test]
fn an_answer_that_a_fuzzer_found_is_read_or_refused() {
    corpus::each("answers", super::answers::answers);
}
