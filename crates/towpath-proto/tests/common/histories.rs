//! Numbers of random histories in tests: a few in the suite, as many as `TOWPATH_HISTORIES` says in `cargo xtask
//! histories`.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of them")]
#![allow(clippy::expect_used, reason = "a test that is asked wrongly fails")]

use std::ops::Range;

use proptest::test_runner::Config;

/// Returns the configuration of a property test with so many cases.
pub fn cases(in_suite: u32) -> Config {
    Config::with_cases(asked().unwrap_or(in_suite))
}

/// Returns the seeds of a test that draws each history from one.
pub fn seeds(in_suite: u32) -> Range<u64> {
    0..u64::from(asked().unwrap_or(in_suite))
}

fn asked() -> Option<u32> {
    let asked = std::env::var("TOWPATH_HISTORIES").ok()?;
    Some(asked.parse().expect("TOWPATH_HISTORIES is a number"))
}
