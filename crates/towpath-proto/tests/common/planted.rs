//! Planted faults of one text: each is to be named by its rule, and each rule is to be named for a fault.

use std::collections::BTreeSet;

pub struct PlantedFaults {
    text: &'static str,
    count: usize,
    missed: Vec<String>,
    named: BTreeSet<String>,
}

impl PlantedFaults {
    pub fn new(text: &'static str) -> Self {
        Self { text, count: 0, missed: Vec::new(), named: BTreeSet::new() }
    }

    /// Takes the rules that failed with one planted fault; `rule` is the text of the rule to be named, or a part of it.
    pub fn judge<'a>(&mut self, rule: &str, fault: &str, failed: impl IntoIterator<Item = &'a str>) {
        let failed: Vec<&str> = failed.into_iter().collect();
        self.count += 1;
        match failed.iter().find(|text| text.contains(rule)) {
            Some(text) => drop(self.named.insert((*text).to_owned())),
            None => self.missed.push(format!("{fault} is not {rule:?}, but {failed:?}")),
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Asserts that all faults were named, and every rule was named once.
    pub fn assert_complete<'a>(self, rules: impl IntoIterator<Item = &'a str>) {
        let rules: BTreeSet<&str> = rules.into_iter().collect();
        let named = self.count - self.missed.len();
        println!("{}: {named} of {} planted faults named, {} rules", self.text, self.count, rules.len());
        assert!(self.missed.is_empty(), "{}: {}", self.text, self.missed.join("\n"));
        let unplanted: Vec<&&str> = rules.iter().filter(|rule| !self.named.contains(**rule)).collect();
        assert!(unplanted.is_empty(), "{}: no fault is planted for {unplanted:#?}", self.text);
    }
}
