//! Calls `cofferdam_fuzz::http` with the inputs of libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz::http(data));
