#![no_main]
//! `cargo +nightly fuzz run --features fuzzer pages`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::pages(input));
