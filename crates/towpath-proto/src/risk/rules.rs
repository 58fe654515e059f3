//! Rules as data: parsing, merging with the user's, compiling the patterns.

use std::collections::BTreeMap;

use regex::{RegexSet, RegexSetBuilder};
use serde::Deserialize;

use super::detector::Detector;
use super::view::{FieldSet, ItemField};

/// Maximum compiled size of a rule's patterns, in bytes.
const MAX_RULE_BYTES: usize = 4 << 20;

/// Maximum compiled size of all patterns, in bytes.
const MAX_SET_BYTES: usize = 64 << 20;

/// Memory limit of the lazily built automaton, in bytes.
const AUTOMATON_BYTES: usize = 16 << 20;

/// Error in the rules. The user's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RiskError {
    /// The text is not TOML, or has an unknown key. Names the position.
    #[error("risk rules: {0}")]
    Toml(String),
    /// A rule is invalid.
    #[error("risk rule {id:?}: {reason}")]
    Rule {
        /// Id of the rule.
        id: String,
        /// Explanation.
        reason: String,
    },
    /// The patterns of all rules together are too large for fast matching.
    #[error("risk rules: all patterns together are too large: {0}")]
    TooLarge(String),
}

/// Group of rules with a common aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RuleGroup {
    /// Aimed at a language model.
    Instruction,
    /// Aimed at a person's secrets.
    Bait,
}

/// Rule in use.
#[derive(Debug, Clone)]
pub(super) struct RiskRule {
    pub(super) id: String,
    pub(super) weight: f64,
    pub(super) group: Option<RuleGroup>,
    pub(super) fields: FieldSet,
    pub(super) detector: Option<Detector>,
    pub(super) description: String,
    pub(super) patterns: Vec<String>,
}

/// File of rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    rule: Vec<RuleEntry>,
}

/// Rule as written: absent keys keep the value of the rule it changes.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    id: String,
    enabled: Option<bool>,
    weight: Option<f64>,
    group: Option<RuleGroup>,
    fields: Option<Vec<ItemField>>,
    patterns: Option<Vec<String>>,
    detector: Option<String>,
    description: Option<String>,
}

/// Merges the user's rules into the built-in ones, in the order of their ids.
pub(super) fn merge(built_in: &str, user: &str) -> Result<Vec<RiskRule>, RiskError> {
    let mut entries: BTreeMap<String, RuleEntry> = BTreeMap::new();
    for text in [built_in, user] {
        let file: RuleFile = toml::from_str(text).map_err(|e| RiskError::Toml(e.to_string()))?;
        let mut seen = Vec::with_capacity(file.rule.len());
        for entry in file.rule {
            check_id(&entry.id)?;
            // A repeated id within a file is a mistake; between the files it is the way to change a rule.
            if seen.contains(&entry.id) {
                return Err(broken(&entry.id, "is defined twice"));
            }
            seen.push(entry.id.clone());
            entries.entry(entry.id.clone()).or_default().change(entry);
        }
    }
    entries.into_values().filter(|entry| entry.enabled != Some(false)).map(RuleEntry::into_rule).collect()
}

/// Compiles all patterns into a set, and returns the rule index of each pattern.
pub(super) fn compile(rules: &[RiskRule]) -> Result<(RegexSet, Vec<usize>), RiskError> {
    let mut pattern_rules = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        pattern_rules.extend(std::iter::repeat_n(index, rule.patterns.len()));
    }
    let patterns = rules.iter().flat_map(|rule| &rule.patterns);
    // The limit bounds the memory that a user's rules can take.
    let set = builder(patterns).size_limit(MAX_SET_BYTES).build();
    Ok((set.map_err(|e| RiskError::TooLarge(e.to_string()))?, pattern_rules))
}

fn builder<'a>(patterns: impl IntoIterator<Item = &'a String>) -> RegexSetBuilder {
    let mut builder = RegexSetBuilder::new(patterns);
    // Case carries no meaning here, and mixed case is a cheap disguise.
    builder.case_insensitive(true).dfa_size_limit(AUTOMATON_BYTES);
    builder
}

fn broken(id: &str, reason: impl Into<String>) -> RiskError {
    // The id comes from the user's file: keep the error's size bounded.
    RiskError::Rule { id: id.chars().take(80).collect(), reason: reason.into() }
}

/// Checks an id: ids become DiffDelta's reasons, and its schema requires this pattern.
fn check_id(id: &str) -> Result<(), RiskError> {
    let fits = (2..=64).contains(&id.len())
        && id.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'));
    if fits { Ok(()) } else { Err(broken(id, "the id is not 2 to 64 characters of a-z, 0-9, _ and -")) }
}

impl RuleEntry {
    fn change(&mut self, with: Self) {
        self.id = with.id;
        self.enabled = with.enabled.or(self.enabled);
        self.weight = with.weight.or(self.weight);
        self.group = with.group.or(self.group);
        self.fields = with.fields.or(self.fields.take());
        self.patterns = with.patterns.or(self.patterns.take());
        self.detector = with.detector.or(self.detector.take());
        self.description = with.description.or(self.description.take());
    }

    fn into_rule(self) -> Result<RiskRule, RiskError> {
        let id = self.id;
        let weight = self.weight.ok_or_else(|| broken(&id, "has no weight"))?;
        // The comparison also rejects NaN, which would make every score NaN.
        if !(0.0..=1.0).contains(&weight) {
            return Err(broken(&id, format!("the weight {weight} is not between 0 and 1")));
        }
        // A rule without a description cannot be reviewed.
        let description = self.description.filter(|text| !text.trim().is_empty());
        let description = description.ok_or_else(|| broken(&id, "has no description"))?;
        let patterns = self.patterns.unwrap_or_default();
        let detector = self.detector.map(|name| named_detector(&id, &name)).transpose()?;
        match (&detector, patterns.is_empty()) {
            (None, true) => return Err(broken(&id, "has neither patterns nor a detector")),
            (Some(_), false) => return Err(broken(&id, "has both patterns and a detector")),
            (Some(_), true) if self.fields.is_some() => {
                return Err(broken(&id, "has fields, which a detector chooses itself"));
            }
            _ => check_patterns(&id, &patterns)?,
        }
        let fields = match (&detector, self.fields) {
            (Some(_), _) => FieldSet::NONE,
            (None, Some(fields)) if fields.is_empty() => {
                return Err(broken(&id, "has an empty list of fields"));
            }
            (None, Some(fields)) => fields.into_iter().collect(),
            (None, None) => FieldSet::TEXT,
        };
        Ok(RiskRule { id, weight, group: self.group, fields, detector, description, patterns })
    }
}

fn named_detector(id: &str, name: &str) -> Result<Detector, RiskError> {
    Detector::named(name).ok_or_else(|| {
        let known: Vec<&str> = Detector::ALL.iter().map(|(_, name)| *name).collect();
        broken(id, format!("there is no detector {name:?}; there are {}", known.join(", ")))
    })
}

/// Compiles each pattern separately, so that the error names its rule.
fn check_patterns(id: &str, patterns: &[String]) -> Result<(), RiskError> {
    for pattern in patterns {
        let one = std::iter::once(pattern);
        let set = builder(one).size_limit(MAX_RULE_BYTES).build().map_err(|e| broken(id, e.to_string()))?;
        // Such a pattern would fire on every item.
        if set.is_match("") {
            return Err(broken(id, format!("the pattern {pattern:?} matches the empty text")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{BUILT_IN, Scorer};
    use super::*;

    fn reason(toml: &str) -> String {
        Scorer::with_rules(toml).unwrap_err().to_string()
    }

    #[test]
    fn every_detector_has_a_built_in_rule() {
        let rules = merge(BUILT_IN, "").unwrap();
        for (detector, name) in Detector::ALL {
            assert!(rules.iter().any(|rule| rule.detector == Some(*detector)), "{name}");
        }
    }

    #[test]
    fn errors_name_the_rule_and_what_is_wrong() {
        let rule = |rest: &str| format!("[[rule]]\nid = \"mine\"\n{rest}");
        let usual = "weight = 0.5\ndescription = \"d\"\n";
        for (toml, expected) in [
            (rule("weight = 0.5"), "\"mine\": has no description"),
            (rule("description = 'd'\npatterns = ['x']"), "\"mine\": has no weight"),
            (rule("weight = 1.5\ndescription = 'd'\npatterns = ['x']"), "1.5 is not between 0 and 1"),
            (rule("weight = nan\ndescription = 'd'\npatterns = ['x']"), "is not between 0 and 1"),
            (rule(usual), "neither patterns nor a detector"),
            (rule(&format!("{usual}patterns = ['(']")), "\"mine\": regex parse error"),
            (rule(&format!("{usual}patterns = ['x*']")), "matches the empty text"),
            (
                rule(&format!("{usual}patterns = ['\\w{{1000}}\\w{{1000}}']")),
                "\"mine\": Compiled regex exceeds",
            ),
            (rule(&format!("{usual}patterns = ['(?=x)']")), "look-around"),
            (rule(&format!("{usual}detector = 'nose'")), "no detector \"nose\"; there are tag-characters"),
            (
                rule(&format!("{usual}detector = 'hidden-text'\npatterns = ['x']")),
                "both patterns and a detector",
            ),
            (rule(&format!("{usual}patterns = ['x']\nfields = []")), "empty list of fields"),
            (rule(&format!("{usual}patterns = ['x']\nfields = ['nose']")), "unknown variant `nose`"),
            (rule(&format!("{usual}patterns = ['x']\npattern = 'y'")), "unknown field `pattern`"),
            ("[[rule]]\nid = \"Not good\"".into(), "\"Not good\": the id is not 2 to 64"),
            ("[[rule]]\nid = \"ab\"\n[[rule]]\nid = \"ab\"".into(), "\"ab\": is defined twice"),
            ("nonsense".into(), "risk rules: TOML parse error at line 1"),
        ] {
            let found = reason(&toml);
            assert!(found.contains(expected), "{toml}\n→ {found}\nnot: {expected}");
        }
    }
}
