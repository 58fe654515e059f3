//! Limit of repeated log lines: the only one, so that no caller counts by itself.
//!
//! A client can cause some warnings as often as it likes, and a thousand sources can fail at once. The first lines of a
//! minute are logged. The next line after it says how many were left out.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::time::{Duration, Instant};

use tracing::Level;

/// Time after which a line is logged again.
const WINDOW: Duration = Duration::from_secs(60);
/// Equal lines of one window.
const EQUAL_LINES: u32 = 5;
/// Warnings and errors of one kind in a window, whatever their fields are.
const WARNINGS: u32 = 100;
/// Other lines of one kind in a window.
const NOTES: u32 = 1000;
/// Most kinds and lines that are counted at once.
const MAX_KEYS: usize = 8192;

/// Counts of the lines of the last minute.
#[derive(Debug, Default)]
pub(super) struct LogThrottle {
    windows: HashMap<u64, Window>,
    hasher: RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    begin: Instant,
    logged: u32,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns the number of lines that were left out before this one; `None` if this one is to be left out.
    ///
    /// `kind` names the place in the program, and `fields` what the line says beyond it.
    pub(super) fn admit(
        &mut self,
        level: Level,
        kind: &impl Hash,
        fields: &impl Hash,
        now: Instant,
    ) -> Option<u64> {
        // For those who debug, everything.
        if level > Level::INFO {
            return Some(0);
        }
        self.make_room(now);
        let of_kind = if level <= Level::WARN { WARNINGS } else { NOTES };
        let kind = self.hasher.hash_one(("kind", kind));
        let equal = self.hasher.hash_one((kind, fields));
        let left_out = self.count(equal, EQUAL_LINES, now)?;
        Some(left_out + self.count(kind, of_kind, now)?)
    }

    fn count(&mut self, key: u64, limit: u32, now: Instant) -> Option<u64> {
        let new = Window { begin: now, logged: 0, suppressed: 0 };
        let window = self.windows.entry(key).or_insert(new);
        let mut left_out = 0;
        if now.duration_since(window.begin) >= WINDOW {
            left_out = window.suppressed;
            *window = new;
        }
        if window.logged >= limit {
            window.suppressed += 1;
            return None;
        }
        window.logged += 1;
        Some(left_out)
    }

    /// Forgets past windows. Fields can have any number of values, and memory stays bounded.
    fn make_room(&mut self, now: Instant) {
        if self.windows.len() < MAX_KEYS {
            return;
        }
        self.windows.retain(|_, window| now.duration_since(window.begin) < WINDOW);
        if self.windows.len() >= MAX_KEYS {
            self.windows.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(100);

    #[test]
    fn equal_lines_are_logged_five_times_a_minute() {
        let (mut throttle, start) = (LogThrottle::default(), Instant::now());
        let mut admit = |n: u32| throttle.admit(Level::WARN, &"accept", &"too many files", start + n * PAUSE);
        let admitted: Vec<_> = (0..1200).filter_map(&mut admit).collect();
        assert_eq!(admitted, [0, 0, 0, 0, 0, 595, 0, 0, 0, 0]);
    }

    #[test]
    fn a_kind_of_warning_is_limited_whatever_it_says() {
        let (mut throttle, start) = (LogThrottle::default(), Instant::now());
        let mut admitted = |level, kind: &str, at| {
            (0..2000).filter(|n| throttle.admit(level, &kind, n, at).is_some()).count()
        };
        assert_eq!(admitted(Level::WARN, "poll", start), 100);
        assert_eq!(admitted(Level::WARN, "mirror", start), 100, "another kind");
        assert_eq!(admitted(Level::INFO, "polled", start), 1000);
        assert_eq!(admitted(Level::DEBUG, "sent", start), 2000);
        assert_eq!(throttle.admit(Level::WARN, &"poll", &1, start + WINDOW), Some(1900));
    }

    #[test]
    fn memory_is_bounded() {
        let (mut throttle, now) = (LogThrottle::default(), Instant::now());
        for n in 0..3 * MAX_KEYS {
            throttle.admit(Level::ERROR, &n, &n, now);
        }
        assert!(throttle.windows.len() <= MAX_KEYS + 2);
    }
}
