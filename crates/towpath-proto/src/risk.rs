//! The rule-based risk scorer.

/// TEMPORARY until the scorer lands.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Risk {
    /// 0 to 1.
    pub score: f64,
    /// Why.
    pub reasons: Vec<String>,
}
