#![no_main]
//! `cargo +nightly fuzz run --features fuzzer operations`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::operations(input));
