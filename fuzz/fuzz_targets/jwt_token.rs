#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenkeel_fuzz::targets::run("jwt_token", data));
