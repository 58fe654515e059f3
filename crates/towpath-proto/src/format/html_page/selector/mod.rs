//! CSS selectors (Selectors Level 4, without what asks for a browser's state).
//!
//! A selector is matched from left to right, one compound at a time, over all elements of a range. So the time is
//! linear in the number of elements, however the selector is written: no branch is tried again.

mod compound;
mod parse;

use std::ops::Range;

use super::tree::Tree;
use compound::Compound;

/// A list of selectors: an element matches if one of them does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selector {
    alternatives: Vec<Vec<(Combinator, Compound)>>,
}

/// Relation of a compound to the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combinator {
    /// White space: any ancestor.
    Descendant,
    /// `>`: the parent.
    Child,
    /// `+`: the element directly before.
    Next,
    /// `~`: any element before, of the same parent.
    Later,
}

impl Selector {
    /// Parses a list of selectors; an error says what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        parse::selector(text).map(|alternatives| Self { alternatives })
    }

    /// Returns the elements of `range` that match, in document order. Elements outside of it count as absent.
    pub(super) fn all(&self, tree: &Tree, range: Range<usize>) -> Vec<usize> {
        let mut found = vec![false; range.len()];
        for steps in &self.alternatives {
            let matched = matches(steps, tree, &range);
            found.iter_mut().zip(matched).for_each(|(found, matched)| *found |= matched);
        }
        range.clone().filter(|node| found[node - range.start]).collect()
    }
}

/// Returns which nodes of the range match a chain of compounds.
fn matches(steps: &[(Combinator, Compound)], tree: &Tree, range: &Range<usize>) -> Vec<bool> {
    // Before the first compound, everything is below something that matches.
    let mut matched = vec![true; range.len()];
    for (step, (combinator, compound)) in steps.iter().enumerate() {
        let reached = if step == 0 { matched } else { reach(*combinator, &matched, tree, range) };
        let one = |node: usize| reached[node - range.start] && compound.matches(tree, node);
        matched = range.clone().map(one).collect();
    }
    matched
}

/// Returns which nodes stand in a relation to one that matched.
fn reach(combinator: Combinator, matched: &[bool], tree: &Tree, range: &Range<usize>) -> Vec<bool> {
    let mut reached = vec![false; range.len()];
    for node in range.clone() {
        // Parents and earlier siblings stand before a node, so their results are known.
        let at = |other: Option<usize>| other.filter(|other| range.contains(other)).map(|n| n - range.start);
        let (parent, before) = (at(tree.parent(node)), at(tree.element_before(node)));
        reached[node - range.start] = match combinator {
            Combinator::Descendant => parent.is_some_and(|parent| matched[parent] || reached[parent]),
            Combinator::Child => parent.is_some_and(|parent| matched[parent]),
            Combinator::Next => before.is_some_and(|before| matched[before]),
            Combinator::Later => before.is_some_and(|before| matched[before] || reached[before]),
        };
    }
    reached
}
