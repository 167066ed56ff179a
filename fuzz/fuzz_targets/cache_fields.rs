#![no_main]
//! `cargo +nightly fuzz run --features fuzzer cache_fields`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::cache_fields(input));
