//! The corpus of the fuzzer of requests, replayed.

#[path = "../../../../proof/fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../../proof/fuzz/bodies/guests.rs"]
mod guests;

#[test]
fn what_a_guest_sends_a_device_that_guesses_found_does_no_harm() {
    corpus::each("requests", guests::requests);
}
