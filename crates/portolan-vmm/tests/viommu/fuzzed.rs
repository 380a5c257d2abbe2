//! The corpora of the fuzzers of requests and of saved states, replayed.

#[path = "../../../../proof/fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../../proof/fuzz/bodies/guests.rs"]
mod guests;

#[test]
fn what_a_guest_sends_a_device_that_guesses_found_does_no_harm() {
    corpus::each("requests", guests::requests);
}

#[test]
fn a_saved_state_that_a_fuzzer_found_is_taken_whole_or_not_at_all() {
    corpus::each("states", guests::states);
}
