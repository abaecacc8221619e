//! libFuzzer over [`duramen_fuzz::log`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| duramen_fuzz::log(data));
