//! Versions of an item, newest first.

use maud::{Markup, html};
use towpath_proto::Op;
use towpath_proto::change::{Change, Seq};

use super::super::clock::ago;
use super::super::feed_head::FeedHead;
use super::super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::item_versions::{ItemVersion, ItemVersions, versions};

/// Versions of a page.
const ROWS: usize = 50;

/// Versions of an item.
pub(super) struct Versions(ItemVersions);

impl Versions {
    /// Returns the latest version only.
    pub(super) fn only(latest: &Change) -> Self {
        Self(ItemVersions { versions: vec![ItemVersion::from(latest)], older: None })
    }

    /// Walks from the latest version, or from the one that the address names.
    pub(super) async fn read(visit: &Visit, head: &FeedHead, latest: &Change) -> Result<Self, RouteError> {
        let from = visit.query.number("versions")?.unwrap_or(latest.seq);
        let store = visit.engine.store.as_ref();
        Ok(Self(versions(store, head.feed.log(), &latest.item.id, from, ROWS).await?))
    }

    /// Makes the list: each version leads to itself, and to what it changed.
    pub(super) fn view(&self, visit: &Visit, shown: Seq) -> Markup {
        html! {
            div class="sheet" {
                ol class="versions" reversed { @for version in &self.0.versions { li {
                    @let seq = version.seq.to_string();
                    @let href = visit.query.with(&[("version", seq.as_str()), ("with", ""), ("at", "")]);
                    a href=(href) aria-current=[(version.seq == shown).then_some("true")] { "change " (version.seq) }
                    span class="soft small" { (name(version)) " " (ago(version.modified, visit.now)) }
                    @if let (Some(previous), true) = (self.0.before(version), version.op != Op::Delete) {
                        @let before = previous.to_string();
                        a class="end small" href=(visit.query.with(&[("version", seq.as_str()), ("with", before.as_str()), ("at", "")])) { "compare" }
                    }
                } } }
            }
            (self.comparison(shown))
            @if let Some(older) = self.0.older {
                p { a href=(visit.query.with(&[("versions", &older.to_string())])) { "Older versions" } }
            }
        }
    }
}

impl Versions {
    /// Makes the form that compares any two of the listed versions.
    fn comparison(&self, shown: Seq) -> Markup {
        let list: Vec<&ItemVersion> =
            self.0.versions.iter().filter(|version| version.op != Op::Delete).collect();
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

fn name(version: &ItemVersion) -> &'static str {
    match (version.op, version.previous) {
        (Op::Delete, _) => "removed",
        (_, None) => "first",
        (Op::Patch, _) => "patched",
        (Op::Put, _) => "put",
    }
}
