//! Compound selectors: tests of a single element.

use super::super::tree::Tree;

/// Tests of an element, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Compound {
    /// Name of the element; any without one.
    pub(super) name: Option<String>,
    pub(super) tests: Vec<Test>,
}

/// Test of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    Class(String),
    Attribute {
        name: String,
        operator: Operator,
        value: String,
        ignore_case: bool,
    },
    /// `:nth-child(an+b)`, or with `from_end` `:nth-last-child(an+b)`.
    Nth {
        a: i64,
        b: i64,
        from_end: bool,
    },
    /// `:empty`: neither elements nor text.
    Empty,
    /// `:is(…)`, or with `negated` `:not(…)`.
    Is {
        compounds: Vec<Compound>,
        negated: bool,
    },
}

/// Comparison of an attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    /// `[a]`
    Present,
    /// `[a=b]`
    Equal,
    /// `[a~=b]`: one of the words.
    Word,
    /// `[a|=b]`: the value, or its beginning up to a hyphen.
    Hyphen,
    /// `[a^=b]`
    Prefix,
    /// `[a$=b]`
    Suffix,
    /// `[a*=b]`
    Contains,
}

impl Compound {
    /// Returns `true` if `node` is an element that passes all tests.
    pub(super) fn matches(&self, tree: &Tree, node: usize) -> bool {
        let Some(name) = tree.name(node) else { return false };
        self.name.as_deref().is_none_or(|wanted| wanted == name)
            && self.tests.iter().all(|test| test.holds(tree, node))
    }
}

impl Test {
    fn holds(&self, tree: &Tree, node: usize) -> bool {
        match self {
            Self::Class(class) => tree
                .attribute(node, "class")
                .is_some_and(|list| list.split_ascii_whitespace().any(|c| c == class)),
            Self::Attribute { name, operator, value, ignore_case } => {
                let found = tree.attribute(node, name);
                found.is_some_and(|found| match ignore_case {
                    true => operator.holds(&found.to_ascii_lowercase(), &value.to_ascii_lowercase()),
                    false => operator.holds(found, value),
                })
            }
            Self::Nth { a, b, from_end } => {
                let place = tree.place(node, *from_end);
                // The place is a*n + b for some n from 0.
                let rest = place - b;
                if *a == 0 { rest == 0 } else { rest % a == 0 && rest / a >= 0 }
            }
            Self::Empty => tree.is_empty(node),
            Self::Is { compounds, negated } => {
                compounds.iter().any(|compound| compound.matches(tree, node)) != *negated
            }
        }
    }
}

impl Operator {
    fn holds(self, found: &str, value: &str) -> bool {
        match self {
            Self::Present => true,
            Self::Equal => found == value,
            // An empty value matches nothing (Selectors Level 4, section 6.2).
            Self::Word => found.split_ascii_whitespace().any(|word| word == value),
            Self::Hyphen => {
                found.strip_prefix(value).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            }
            Self::Prefix => !value.is_empty() && found.starts_with(value),
            Self::Suffix => !value.is_empty() && found.ends_with(value),
            Self::Contains => !value.is_empty() && found.contains(value),
        }
    }
}
