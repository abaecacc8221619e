//! libFuzzer over [`duramen_fuzz::operations`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| duramen_fuzz::operations(data));
