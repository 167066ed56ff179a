#![no_main]
//! `cargo +nightly fuzz run --features fuzzer trace_fields`

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_fuzz::trace_fields(input));
