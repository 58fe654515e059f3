//! The risk scorer: how likely an item is to harm who reads it, a person or a program (DiffDelta's `risk`).
//!
//! Rules decide, nothing is learned and nothing is looked up: the same item and the same rules give the same
//! score, everywhere and always. A rule fires or does not; of the weights `w` of those that fired, the score
//! is `1 − Π(1 − w)`, rounded to two places. At [`FLAGGED`] and above an item counts as flagged.
//!
//! The built-in rules are data (`data/risk-rules.toml`): patterns for the linear-time `regex` crate, and
//! detectors in code for what a pattern cannot see. A text over [`MAX_TEXT`] bytes is judged by its first and
//! last halves of that.

mod characters;
mod detector;
mod encoded;
mod links;
mod markup;
mod rules;
mod view;

use std::sync::LazyLock;

use regex::RegexSet;

use crate::item::Item;

pub use rules::RiskError;
pub use view::MAX_TEXT;

use detector::{Detector, Signals};
use rules::{Group, Rule};
use view::{Field, Fields, Source};

/// The score from which an item is flagged (DiffDelta, section 9).
pub const FLAGGED: f64 = 0.4;

/// The most reasons that a score names.
pub const MAX_REASONS: usize = 10;

/// The built-in rules.
const BUILT_IN: &str = include_str!("../data/risk-rules.toml");

/// What the scorer thinks of an item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Risk {
    /// From 0 (nothing found) to 1, rounded to two places.
    pub score: f64,
    /// The ids of the rules that fired, sorted; of more than [`MAX_REASONS`] the weightiest.
    pub reasons: Vec<String>,
}

impl Risk {
    /// Whether the item belongs among the flagged ones.
    pub fn is_flagged(&self) -> bool {
        self.score >= FLAGGED
    }
}

/// Scores items by a set of rules. Made once, used from any thread.
#[derive(Debug, Clone)]
pub struct Scorer {
    rules: Vec<Rule>,
    /// All patterns of all rules.
    set: RegexSet,
    /// For each pattern the index of its rule.
    pattern_rules: Vec<usize>,
    /// The fields that any pattern looks at.
    fields: Fields,
}

impl Default for Scorer {
    /// The built-in rules. They are read once for the whole program.
    fn default() -> Self {
        static DEFAULT: LazyLock<Scorer> = LazyLock::new(|| {
            #[expect(clippy::expect_used, reason = "the built-in rules are part of the program, and tested")]
            let scorer = Scorer::with_rules("").expect("the built-in rules are valid");
            scorer
        });
        DEFAULT.clone()
    }
}

impl Scorer {
    /// The built-in rules, changed by `toml`: a rule with a new id is added; one with a known id changes the
    /// keys that it names; `enabled = false` takes a rule out.
    pub fn with_rules(toml: &str) -> Result<Self, RiskError> {
        let rules = rules::merge(BUILT_IN, toml)?;
        let (set, pattern_rules) = rules::compile(&rules)?;
        let fields = rules.iter().fold(Fields::NONE, |all, rule| all.and(rule.fields));
        Ok(Self { rules, set, pattern_rules, fields })
    }

    /// How risky `item` is.
    pub fn score(&self, item: &Item) -> Risk {
        let mut found = Findings { fired: vec![false; self.rules.len()], signals: Signals::default() };
        let mut encoded = String::new();
        for source in view::sources(item) {
            self.judge(&source, item, &mut found, &mut encoded);
        }
        if !encoded.is_empty() {
            self.search(Field::Encoded, &encoded, &mut found);
        }
        detector::look_at_item(item, &mut found.signals);
        self.conclude(found)
    }

    /// Judges one text of the item; what it hides in an encoding is added to `encoded`.
    fn judge(&self, source: &Source<'_>, item: &Item, found: &mut Findings, encoded: &mut String) {
        let text = source.text.as_ref();
        let mut hidden = characters::inspect(text, &mut found.signals);
        self.search(source.field, &view::normal(text), found);
        if source.field == Field::Url {
            links::inspect_target(text, &mut found.signals);
            return;
        }
        encoded::inspect(text, &mut found.signals, encoded);
        if let Some(seen) = markup::inspect(text, item, &mut found.signals) {
            self.search(source.field, &view::normal(&seen.visible), found);
            hidden.push_str(&seen.hidden);
        } else {
            links::inspect_plain(text, &mut found.signals);
        }
        if !hidden.is_empty() {
            self.search(Field::Hidden, &view::normal(&hidden), found);
        }
    }

    /// Fires the rules whose patterns match in `text`.
    fn search(&self, field: Field, text: &str, found: &mut Findings) {
        // Most texts match nothing, and telling that is cheaper than telling what matches.
        if !self.fields.has(field) || text.is_empty() || !self.set.is_match(text) {
            return;
        }
        for pattern in self.set.matches(text) {
            let rule = self.pattern_rules[pattern];
            if !self.rules[rule].fields.has(field) {
                continue;
            }
            found.fired[rule] = true;
            match self.rules[rule].group {
                Some(Group::Instruction) if matches!(field, Field::Hidden | Field::Encoded) => {
                    found.signals.set(Detector::HiddenInstructions);
                }
                Some(Group::Bait) => found.signals.bait = true,
                Some(Group::Instruction) | None => {}
            }
        }
    }

    fn conclude(&self, mut found: Findings) -> Risk {
        if found.signals.bait && found.signals.link {
            found.signals.set(Detector::BaitLink);
        }
        let fired = self.rules.iter().zip(&found.fired).filter(|(rule, fired)| {
            **fired || rule.detector.is_some_and(|detector| found.signals.has(detector))
        });
        let mut fired: Vec<&Rule> = fired.map(|(rule, _)| rule).filter(|rule| rule.weight > 0.0).collect();
        let harmless: f64 = fired.iter().map(|rule| 1.0 - rule.weight).product();
        // The heaviest first; the rules stand in the order of their ids, and sorting keeps that for ties.
        fired.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        fired.truncate(MAX_REASONS);
        let mut reasons: Vec<String> = fired.into_iter().map(|rule| rule.id.clone()).collect();
        reasons.sort_unstable();
        Risk { score: ((1.0 - harmless) * 100.0).round() / 100.0, reasons }
    }
}

/// What was found in an item so far.
struct Findings {
    /// For each rule whether one of its patterns matched.
    fired: Vec<bool>,
    signals: Signals,
}
