#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockgate_fuzz::cimd::run(data));
