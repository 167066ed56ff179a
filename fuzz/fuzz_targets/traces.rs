#![no_main]
//! `cargo +nightly fuzz run --features fuzzer traces`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::traces(input));
