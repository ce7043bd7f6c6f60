//! Calls `cofferdam_fuzz::node` with the inputs of libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz::node(data));
