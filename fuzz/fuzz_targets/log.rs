#![no_main]
//! `cargo +nightly fuzz run --features fuzzer log`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::log(input));
