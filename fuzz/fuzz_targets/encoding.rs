//! libFuzzer over [`duramen_fuzz::encoding`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| duramen_fuzz::encoding(data));
