//! Pages for what cannot be shown: what it is, and where to go.

use http::{Method, StatusCode};
use maud::html;

use super::layout::{Page, Section};
use super::text::{clip, foreign};
use super::visit::Visit;
use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::server::problem::Problem;

/// Makes the page of a failure, with the status and headers of its problem document.
pub(in crate::server) fn error_page(visit: &Visit, error: RouteError) -> Answer {
    let (kind, detail) = (error.kind, sentence(&error.detail));
    let problem = Problem::from(error).response();
    let body = html! {
        div class="title" { h1 { (title(kind)) } }
        p { (detail) }
        div class="row" {
            a class="button main" href={ (visit.root) "/" } { "All feeds" }
            @if let Some((path, title)) = feed_of(visit) { a class="button" href=(path) { (foreign(&clip(&title, 60))) } }
            @if visit.session.is_none() && is_about_rights(kind) {
                a class="button" href=(sign_in(visit)) { "Sign in" }
            }
        }
        p class="soft small" { "Status " (problem.status.as_u16()) "." }
    };
    let page = Page::new(title(kind), Section::None, body);
    let mut answer = super::shown::html_answer(problem.status, page.render(visit).into_string());
    for (name, value) in &problem.headers {
        if !answer.headers.contains_key(name) {
            answer.headers.insert(name, value.clone());
        }
    }
    // A browser would answer the challenge of a 401 with a dialog of its own.
    if answer.status == StatusCode::UNAUTHORIZED {
        answer.headers.remove(http::header::WWW_AUTHENTICATE);
    }
    answer
}

/// Returns the address of the sign-in page that leads back here.
pub(super) fn sign_in(visit: &Visit) -> String {
    let here = visit.request.uri().path_and_query().map_or("/", |here| here.as_str());
    // The address of a feed's form has no page: the feed has.
    let here = match visit.request.method() {
        &Method::GET | &Method::HEAD => here,
        _ => feed_path(here).unwrap_or("/"),
    };
    let next = percent_encoding::utf8_percent_encode(here, percent_encoding::NON_ALPHANUMERIC);
    match here.len() {
        0..1024 => format!("{}/sign-in?next={next}", visit.root),
        _ => format!("{}/sign-in", visit.root),
    }
}

/// Returns the beginning of a path that leads to a feed's page.
fn feed_path(path: &str) -> Option<&str> {
    let name = path.find("/feeds/")? + "/feeds/".len();
    let end = path[name..].find(['/', '?']).map_or(path.len(), |end| name + end);
    Some(&path[..end]).filter(|_| end > name)
}

/// Returns the page and the title of the feed below which an address is, if the reader may read it.
fn feed_of(visit: &Visit) -> Option<(String, String)> {
    let path = visit.request.uri().path();
    let of = feed_path(path).filter(|of| of.len() < path.len() || visit.query.get("at").is_some())?;
    let feed = visit.feed(of.rsplit('/').next()?).ok()?;
    Some((visit.feed_path(&feed), feed.config.title().to_owned()))
}

fn is_about_rights(kind: RouteErrorKind) -> bool {
    use RouteErrorKind::{Forbidden, Gone, NotFound, Unauthorized};
    matches!(kind, NotFound | Gone | Unauthorized | Forbidden)
}

fn title(kind: RouteErrorKind) -> &'static str {
    match kind {
        RouteErrorKind::NotFound | RouteErrorKind::NeverExisted | RouteErrorKind::Empty => "Not found",
        RouteErrorKind::Gone => "Gone",
        RouteErrorKind::Unauthorized | RouteErrorKind::Forbidden => "Not for you",
        RouteErrorKind::TooManyRequests { .. } => "Too many requests",
        RouteErrorKind::Method(_) => "Not done this way",
        RouteErrorKind::TooLarge | RouteErrorKind::HeadTooLarge => "Too large",
        RouteErrorKind::Store | RouteErrorKind::Unavailable { .. } | RouteErrorKind::Busy => {
            "Not available now"
        }
        RouteErrorKind::Internal => "A fault of the server",
        _ => "That did not work",
    }
}

/// Makes a sentence of an error's words.
fn sentence(detail: &str) -> String {
    let mut characters = detail.chars();
    let first = characters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let end = if detail.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", characters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_below_a_feed_leads_to_it() {
        for (path, feed) in [
            ("/feeds/aa/poll", Some("/feeds/aa")),
            ("/x/feeds/aa/items/b?c", Some("/x/feeds/aa")),
            ("/feeds/aa?q=1", Some("/feeds/aa")),
            ("/feeds/", None),
            ("/sinks/aa", None),
        ] {
            assert_eq!(feed_path(path), feed, "{path}");
        }
    }

    #[test]
    fn errors_become_sentences() {
        assert_eq!(sentence("there is no feed"), "There is no feed.");
        assert_eq!((sentence("Done!"), sentence("")), ("Done!".into(), ".".into()));
    }
}
