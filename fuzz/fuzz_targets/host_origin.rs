#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lockgate_fuzz::host_origin::run(data));
