//! libFuzzer over [`duramen_fuzz::head`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| duramen_fuzz::head(data));
