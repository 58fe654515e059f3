//! The rules as data: reading them, changing them by the user's, compiling their patterns.

use std::collections::BTreeMap;

use regex::{RegexSet, RegexSetBuilder};
use serde::Deserialize;

use super::detector::Detector;
use super::view::{Field, Fields};

/// The largest compiled form of one rule's patterns, in bytes.
const MAX_RULE_BYTES: usize = 4 << 20;

/// The largest compiled form of all patterns, in bytes.
const MAX_SET_BYTES: usize = 64 << 20;

/// The memory that matching may use for its lazily built automaton, in bytes.
const AUTOMATON_BYTES: usize = 16 << 20;

/// Why rules cannot be used. The user's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RiskError {
    /// The text is not TOML, or has a key that rules do not have. Says where.
    #[error("risk rules: {0}")]
    Toml(String),
    /// One rule is wrong.
    #[error("risk rule {id:?}: {reason}")]
    Rule {
        /// The rule's id.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The patterns of all rules together are too large to match fast.
    #[error("risk rules: all patterns together are too large: {0}")]
    TooLarge(String),
}

/// What rules can be spoken of together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Group {
    /// Aimed at a language model.
    Instruction,
    /// Aimed at what a person keeps secret.
    Bait,
}

/// A rule in use.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) id: String,
    pub(super) weight: f64,
    pub(super) group: Option<Group>,
    pub(super) fields: Fields,
    pub(super) detector: Option<Detector>,
    patterns: Vec<String>,
}

/// The file of rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    rule: Vec<RuleEntry>,
}

/// A rule as written: what is absent keeps the value of the rule that it changes.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    id: String,
    enabled: Option<bool>,
    weight: Option<f64>,
    group: Option<Group>,
    fields: Option<Vec<Field>>,
    patterns: Option<Vec<String>>,
    detector: Option<String>,
    description: Option<String>,
}

/// The rules of `built_in` changed by those of `user`, in the order of their ids.
pub(super) fn merge(built_in: &str, user: &str) -> Result<Vec<Rule>, RiskError> {
    let mut entries: BTreeMap<String, RuleEntry> = BTreeMap::new();
    for text in [built_in, user] {
        let file: RuleFile = toml::from_str(text).map_err(|e| RiskError::Toml(e.to_string()))?;
        let mut seen = Vec::with_capacity(file.rule.len());
        for entry in file.rule {
            check_id(&entry.id)?;
            if seen.contains(&entry.id) {
                return Err(broken(&entry.id, "stands there twice"));
            }
            seen.push(entry.id.clone());
            entries.entry(entry.id.clone()).or_default().change(entry);
        }
    }
    entries.into_values().filter(|entry| entry.enabled != Some(false)).map(RuleEntry::into_rule).collect()
}

/// Compiles all patterns into one set; the second value holds for each pattern the index of its rule.
pub(super) fn compile(rules: &[Rule]) -> Result<(RegexSet, Vec<usize>), RiskError> {
    let mut pattern_rules = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        pattern_rules.extend(std::iter::repeat_n(index, rule.patterns.len()));
    }
    let patterns = rules.iter().flat_map(|rule| &rule.patterns);
    let set = builder(patterns).size_limit(MAX_SET_BYTES).build();
    Ok((set.map_err(|e| RiskError::TooLarge(e.to_string()))?, pattern_rules))
}

fn builder<'a>(patterns: impl IntoIterator<Item = &'a String>) -> RegexSetBuilder {
    let mut builder = RegexSetBuilder::new(patterns);
    builder.case_insensitive(true).dfa_size_limit(AUTOMATON_BYTES);
    builder
}

fn broken(id: &str, reason: impl Into<String>) -> RiskError {
    RiskError::Rule { id: id.chars().take(80).collect(), reason: reason.into() }
}

/// Ids become DiffDelta's reasons, which have this pattern in its schema.
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

    fn into_rule(self) -> Result<Rule, RiskError> {
        let id = self.id;
        let weight = self.weight.ok_or_else(|| broken(&id, "has no weight"))?;
        if !(0.0..=1.0).contains(&weight) {
            return Err(broken(&id, format!("the weight {weight} is not between 0 and 1")));
        }
        if self.description.is_none_or(|text| text.trim().is_empty()) {
            return Err(broken(&id, "has no description"));
        }
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
            (Some(_), _) => Fields::NONE,
            (None, Some(fields)) if fields.is_empty() => {
                return Err(broken(&id, "has an empty list of fields"));
            }
            (None, Some(fields)) => fields.into_iter().collect(),
            (None, None) => Fields::TEXT,
        };
        Ok(Rule { id, weight, group: self.group, fields, detector, patterns })
    }
}

fn named_detector(id: &str, name: &str) -> Result<Detector, RiskError> {
    Detector::named(name).ok_or_else(|| {
        let known: Vec<&str> = Detector::ALL.iter().map(|(_, name)| *name).collect();
        broken(id, format!("there is no detector {name:?}; there are {}", known.join(", ")))
    })
}

/// Each pattern by itself, so that the error names its rule.
fn check_patterns(id: &str, patterns: &[String]) -> Result<(), RiskError> {
    for pattern in patterns {
        let one = std::iter::once(pattern);
        let set = builder(one).size_limit(MAX_RULE_BYTES).build().map_err(|e| broken(id, e.to_string()))?;
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
            ("[[rule]]\nid = \"ab\"\n[[rule]]\nid = \"ab\"".into(), "\"ab\": stands there twice"),
            ("nonsense".into(), "risk rules: TOML parse error at line 1"),
        ] {
            let found = reason(&toml);
            assert!(found.contains(expected), "{toml}\n→ {found}\nnot: {expected}");
        }
    }
}
