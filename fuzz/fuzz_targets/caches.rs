#![no_main]
//! `cargo +nightly fuzz run --features fuzzer caches`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::caches(input));
