#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| lockgate_fuzz::headers::run(text));
