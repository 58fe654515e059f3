//! Trace of a run: what happened when, hashed, and printed on demand.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Arguments;

use crate::system;

/// Trace and counters of a run.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    lines: u64,
    prints: bool,
    counts: BTreeMap<&'static str, u64>,
}

thread_local! {
    static TRACE: RefCell<Trace> = RefCell::new(Trace { hash: 0xcbf2_9ce4_8422_2325, ..Trace::default() });
}

/// Prints every line from now on.
pub fn print_lines() {
    TRACE.with_borrow_mut(|trace| trace.prints = true);
}

/// Adds a line.
pub fn line(text: Arguments<'_>) {
    let at = system::elapsed();
    let text = format!("{:>10}.{:06} {text}", at.as_secs(), at.subsec_micros());
    TRACE.with_borrow_mut(|trace| {
        trace.lines += 1;
        // FNV-1a: any change of a byte or of the order changes it.
        for byte in text.bytes().chain([b'\n']) {
            trace.hash = (trace.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if trace.prints {
            println!("{text}");
        }
    });
}

/// Prints a line that is not part of the trace, because it may differ from run to run.
pub fn remark(text: Arguments<'_>) {
    let at = system::elapsed();
    TRACE.with_borrow(|trace| {
        if trace.prints {
            println!("{:>10}.{:06} ({text})", at.as_secs(), at.subsec_micros());
        }
    });
}

/// Counts an event of a kind.
pub fn count(kind: &'static str) {
    TRACE.with_borrow_mut(|trace| *trace.counts.entry(kind).or_default() += 1);
}

/// Returns the hash and the number of lines, and the counts.
pub fn finish() -> (u64, u64, BTreeMap<&'static str, u64>) {
    TRACE.with_borrow(|trace| (trace.hash, trace.lines, trace.counts.clone()))
}

/// Adds a line to the trace.
#[macro_export]
macro_rules! trace {
    ($($text:tt)*) => { $crate::trace::line(format_args!($($text)*)) };
}
