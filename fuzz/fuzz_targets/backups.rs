#![no_main]
//! `cargo +nightly fuzz run --features fuzzer backups`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::backups(input));
