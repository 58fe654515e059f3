//! Risk scorer: the likelihood that an item harms its reader, a person or a program (DiffDelta's `risk`).
//!
//! The score is deterministic: rules only, no learning, no lookups. Equal item and rules give an equal score.
//! A rule fires or does not. From the weights `w` of the fired rules the score is `1 − Π(1 − w)`, rounded to
//! two digits. An item is flagged from [`FLAGGED`] on.
//!
//! The built-in rules are data (`data/risk-rules.toml`): patterns for the linear-time `regex` crate, and
//! detectors in code for everything that patterns cannot match. A text over [`MAX_TEXT`] bytes is scored by
//! its first and last halves of that size.

mod characters;
mod detector;
mod encoded;
mod explain;
mod links;
mod markup;
mod rules;
mod view;

use std::sync::LazyLock;

use regex::RegexSet;

use crate::item::Item;

pub use explain::RiskFinding;
pub use rules::RiskError;
pub use view::MAX_TEXT;

use detector::{Detector, Signals};
use rules::{RiskRule, RuleGroup};
use view::{FieldSet, ItemField, ItemText};

/// Minimum score of a flagged item (DiffDelta, section 9).
pub const FLAGGED: f64 = 0.4;

/// Maximum number of reasons in a score.
pub const MAX_REASONS: usize = 10;

/// Built-in rules.
const BUILT_IN: &str = include_str!("../../data/risk-rules.toml");

/// Score of an item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Risk {
    /// From 0 (nothing found) to 1, rounded to two digits.
    pub score: f64,
    /// Ids of the fired rules, sorted; if more than [`MAX_REASONS`], the ones with the largest weights.
    pub reasons: Vec<String>,
}

impl Risk {
    /// Returns `true` if the item is flagged.
    pub fn is_flagged(&self) -> bool {
        self.score >= FLAGGED
    }
}

/// Scorer with a set of rules. Created once, usable from any thread.
#[derive(Debug, Clone)]
pub struct Scorer {
    rules: Vec<RiskRule>,
    /// Patterns of all rules.
    set: RegexSet,
    /// Index of the rule for each pattern.
    pattern_rules: Vec<usize>,
    /// Fields that any pattern applies to.
    fields: FieldSet,
}

impl Default for Scorer {
    /// Returns a scorer with the built-in rules, which are compiled once per process.
    fn default() -> Self {
        // Compiled once per process: compiling is far more expensive than scoring an item.
        static DEFAULT: LazyLock<Scorer> = LazyLock::new(|| {
            #[expect(clippy::expect_used, reason = "the built-in rules are part of the program, and tested")]
            let scorer = Scorer::with_rules("").expect("the built-in rules are valid");
            scorer
        });
        DEFAULT.clone()
    }
}

impl Scorer {
    /// Merges `toml` into the built-in rules. A new id adds a rule, a known id changes the given keys, and
    /// `enabled = false` removes a rule.
    pub fn with_rules(toml: &str) -> Result<Self, RiskError> {
        let rules = rules::merge(BUILT_IN, toml)?;
        let (set, pattern_rules) = rules::compile(&rules)?;
        let fields = rules.iter().fold(FieldSet::NONE, |all, rule| all.and(rule.fields));
        Ok(Self { rules, set, pattern_rules, fields })
    }

    /// Scores an item.
    pub fn score(&self, item: &Item) -> Risk {
        let mut found = Findings { fired: vec![false; self.rules.len()], signals: Signals::default() };
        let mut encoded = String::new();
        for source in view::sources(item) {
            self.judge(&source, item, &mut found, &mut encoded);
        }
        if !encoded.is_empty() {
            // Decoded text is a field of its own, so that rules can tell it from visible text.
            self.search(ItemField::Encoded, &encoded, &mut found);
        }
        detector::inspect_binary(item, &mut found.signals);
        self.conclude(found)
    }

    /// Scores a text of the item; decoded text in it is appended to `encoded`.
    fn judge(&self, source: &ItemText<'_>, item: &Item, found: &mut Findings, encoded: &mut String) {
        let text = source.text.as_ref();
        let mut hidden = characters::inspect(text, &mut found.signals);
        self.search(source.field, &view::normal(text), found);
        if source.field == ItemField::Url {
            links::inspect_target(text, &mut found.signals);
            // Markup and Base64 do not occur in a URL.
            return;
        }
        encoded::inspect(text, &mut found.signals, encoded);
        if let Some(seen) = markup::inspect(text, item, &mut found.signals) {
            // Searched again without tags: a tag inside a word would hide it from the patterns.
            self.search(source.field, &view::normal(&seen.visible), found);
            hidden.push_str(&seen.hidden);
        } else {
            links::inspect_plain(text, &mut found.signals);
        }
        if !hidden.is_empty() {
            self.search(ItemField::Hidden, &view::normal(&hidden), found);
        }
    }

    /// Fires the rules whose patterns match in `text`.
    fn search(&self, field: ItemField, text: &str, found: &mut Findings) {
        // Most texts match nothing, and that test is cheaper than finding the matching patterns.
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
                // Instructions that a person cannot see are meant for a program.
                Some(RuleGroup::Instruction) if matches!(field, ItemField::Hidden | ItemField::Encoded) => {
                    found.signals.set(Detector::HiddenInstructions);
                }
                Some(RuleGroup::Bait) => found.signals.bait = true,
                Some(RuleGroup::Instruction) | None => {}
            }
        }
    }

    fn conclude(&self, mut found: Findings) -> Risk {
        // Bait counts only with a link: without one there is nothing to follow.
        if found.signals.bait && found.signals.link {
            found.signals.set(Detector::BaitLink);
        }
        let fired = self.rules.iter().zip(&found.fired).filter(|(rule, fired)| {
            **fired || rule.detector.is_some_and(|detector| found.signals.has(detector))
        });
        let mut fired: Vec<&RiskRule> =
            // A weight of zero turns a rule into an observation without effect.
            fired.map(|(rule, _)| rule).filter(|rule| rule.weight > 0.0).collect();
        let harmless: f64 = fired.iter().map(|rule| 1.0 - rule.weight).product();
        // Heaviest first. The rules are in the order of their ids, which the stable sort keeps for ties.
        fired.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        fired.truncate(MAX_REASONS);
        let mut reasons: Vec<String> = fired.into_iter().map(|rule| rule.id.clone()).collect();
        reasons.sort_unstable();
        Risk { score: ((1.0 - harmless) * 100.0).round() / 100.0, reasons }
    }
}

/// Findings in an item so far.
struct Findings {
    /// Per rule, `true` if any of its patterns matched.
    fired: Vec<bool>,
    signals: Signals,
}
