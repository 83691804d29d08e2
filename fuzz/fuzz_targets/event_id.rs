#![no_main]

use lockgate_fuzz::event_id::{Input, run};

libfuzzer_sys::fuzz_target!(|input: Input<'_>| run(input));
