//! Frame of every page: head, navigation, footer.

use maud::{DOCTYPE, Markup, html};

use super::assets::{ICON, SCRIPT, STYLE};
use super::visit::Visit;

/// Part of the server that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Feeds,
    Live,
    Check,
    Sinks,
    SignIn,
    None,
}

/// A page without its frame.
pub(super) struct Page {
    pub(super) title: String,
    pub(super) section: Section,
    /// Further elements of the head.
    pub(super) head: Markup,
    pub(super) body: Markup,
}

impl Page {
    pub(super) fn new(title: impl Into<String>, section: Section, body: Markup) -> Self {
        Self { title: title.into(), section, head: html! {}, body }
    }

    pub(super) fn with_head(self, head: Markup) -> Self {
        Self { head, ..self }
    }

    /// Puts the page into its frame.
    pub(super) fn render(&self, visit: &Visit) -> Markup {
        let root = &visit.root;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) @if self.title != "towpath" { " · towpath" } }
                    link rel="icon" type="image/svg+xml" href=(ICON.path(root));
                    link rel="stylesheet" href=(STYLE.path(root));
                    script defer src=(SCRIPT.path(root)) {}
                    (self.head)
                }
                body {
                    a class="skip" href="#content" { "To the content" }
                    header class="bar" { div {
                        a class="brand" href={ (root) "/" } { img src=(ICON.path(root)) alt="" width="26" height="26"; "towpath" }
                        (self.navigation(visit))
                    } }
                    main id="content" { (self.body) }
                    footer { div {
                        span { "towpath " (env!("CARGO_PKG_VERSION")) }
                        a href={ (root) "/.well-known/diffdelta.json" } { "For programs" }
                        a href={ (root) "/openapi.json" } { "OpenAPI" }
                        a href={ (root) "/healthz.json" } { "Health" }
                        a href={ (root) "/metrics" } { "Metrics" }
                        span { "Times are in your zone where scripts run, else in UTC." }
                    } }
                }
            }
        }
    }

    fn navigation(&self, visit: &Visit) -> Markup {
        let root = &visit.root;
        let link = |section: Section, path: &str, name: &str| {
            let current = (self.section == section).then_some("page");
            html! { li { a href={ (root) (path) } aria-current=[current] { (name) } } }
        };
        html! {
            nav aria-label="Server" { ul {
                (link(Section::Feeds, "/", "Feeds"))
                (link(Section::Live, "/live", "Live"))
                @if !visit.engine.sinks.all().is_empty() && visit.sees_sinks() { (link(Section::Sinks, "/sinks", "Sinks")) }
                (link(Section::Check, "/check", "Check"))
                @if let Some(session) = &visit.session {
                    li { form method="post" action={ (root) "/sign-out" } {
                        (secret(session.form_secret()))
                        button type="submit" title=[visit.reader()] { "Sign out" }
                    } }
                } @else {
                    (link(Section::SignIn, "/sign-in", "Sign in"))
                }
            } }
        }
    }
}

/// Makes the hidden field that proves that a form is this session's.
pub(super) fn secret(form_secret: &str) -> Markup {
    html! { input type="hidden" name="form_secret" value=(form_secret); }
}

/// Makes links to the pages before and after one of a list.
pub(super) fn pager(shown: &str, before: Option<(String, &str)>, after: Option<(String, &str)>) -> Markup {
    html! {
        nav class="pager" aria-label="Pages" {
            span { (shown) }
            ul {
                @if let Some((href, name)) = before { li { a class="button" rel="prev" href=(href) { (name) } } }
                @if let Some((href, name)) = after { li { a class="button" rel="next" href=(href) { (name) } } }
            }
        }
    }
}
