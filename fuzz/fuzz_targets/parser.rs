//! Any bytes as a command, parsed without an engine.
#![no_main]

use ibvswitch_fuzz::machine::guest::parser::{Request, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|request: Request| run(&request));
