//! The rule-based risk scorer.
