//! libFuzzer over [`duramen_fuzz::log_in_store`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| duramen_fuzz::log_in_store(data));
