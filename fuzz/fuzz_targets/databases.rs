#![no_main]
//! `cargo +nightly fuzz run --features fuzzer databases`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::databases(input));
