//! Versions of an item, newest first.

use jiff::Timestamp;
use maud::{Markup, html};
use towpath_proto::Op;
use towpath_proto::change::{Change, Seq};

use super::super::clock::ago;
use super::super::feed_head::FeedHead;
use super::super::visit::Visit;
use crate::document::route_error::RouteError;

/// Versions of a page.
const ROWS: usize = 50;

/// A version in the list.
pub(super) struct Version {
    pub(super) seq: Seq,
    pub(super) op: Op,
    pub(super) modified: Timestamp,
    pub(super) previous: Option<Seq>,
}

/// Versions of an item.
pub(super) struct Versions {
    pub(super) list: Vec<Version>,
    /// Position of the next older version that the list does not have.
    pub(super) older: Option<Seq>,
}

impl Versions {
    /// Returns the latest version only.
    pub(super) fn only(latest: &Change) -> Self {
        Self { list: vec![line(latest)], older: None }
    }

    /// Walks from the latest version, or from the one that the address names.
    pub(super) async fn read(visit: &Visit, head: &FeedHead, latest: &Change) -> Result<Self, RouteError> {
        let mut next = visit.query.number("versions")?.or(Some(latest.seq));
        let mut list = Vec::new();
        while let Some(seq) = next.filter(|_| list.len() < ROWS) {
            let change = visit.engine.store.change(head.feed.log(), seq).await?;
            let Some(change) = change.filter(|change| change.item.id == latest.item.id) else { break };
            next = change.previous;
            list.push(line(&change));
        }
        Ok(Self { list, older: next })
    }

    /// Makes the list: each version leads to itself, and to what it changed.
    pub(super) fn view(&self, visit: &Visit, shown: Seq) -> Markup {
        html! {
            div class="sheet" {
                ol class="versions" reversed { @for version in &self.list { li {
                    @let seq = version.seq.to_string();
                    @let href = visit.query.with(&[("version", seq.as_str()), ("with", ""), ("at", "")]);
                    a href=(href) aria-current=[(version.seq == shown).then_some("true")] { "change " (version.seq) }
                    span class="soft small" { (name(version)) " " (ago(version.modified, visit.now)) }
                    @if let (Some(previous), true) = (version.previous, version.op != Op::Delete) {
                        @let before = previous.to_string();
                        a class="end small" href=(visit.query.with(&[("version", seq.as_str()), ("with", before.as_str()), ("at", "")])) { "compare" }
                    }
                } } }
            }
            (self.comparison(shown))
            @if let Some(older) = self.older {
                p { a href=(visit.query.with(&[("versions", &older.to_string())])) { "Older versions" } }
            }
        }
    }
}

impl Versions {
    /// Makes the form that compares any two of the listed versions.
    fn comparison(&self, shown: Seq) -> Markup {
        let list: Vec<&Version> = self.list.iter().filter(|version| version.op != Op::Delete).collect();
        // Two versions have a link already.
        if list.len() < 3 {
            return html! {};
        }
        let select = |id: &'static str, label: &str, chosen: Option<Seq>| {
            html! {
                div class="field" { label for=(id) { (label) } select id=(id) name=(id) {
                    @for version in &list { option value=(version.seq) selected[chosen == Some(version.seq)] { "change " (version.seq) } }
                } }
            }
        };
        html! {
            form class="row" method="get" {
                (select("with", "From", list.last().map(|version| version.seq)))
                (select("version", "to", Some(shown)))
                button type="submit" { "Compare" }
            }
        }
    }
}

fn line(change: &Change) -> Version {
    Version { seq: change.seq, op: change.op, modified: change.modified, previous: change.previous }
}

fn name(version: &Version) -> &'static str {
    match (version.op, version.previous) {
        (Op::Delete, _) => "removed",
        (_, None) => "first",
        (Op::Patch, _) => "patched",
        (Op::Put, _) => "put",
    }
}
