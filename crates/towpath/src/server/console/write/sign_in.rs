//! Signing in with a token, and signing out.

use http::header::SET_COOKIE;
use http::{HeaderValue, StatusCode};
use maud::html;

use super::super::layout::{Page, Section};
use super::super::shown::{Shown, see_other};
use super::super::visit::Visit;
use super::form_data::FormData;
use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::server::session::{COOKIE_NAME, LIFETIME, Sessions};

/// Shows the form.
pub(in crate::server::console) fn sign_in_page(visit: &Visit) -> Shown {
    match visit.session {
        Some(_) => see_other(&target(visit, visit.query.get("next").unwrap_or_default())).into(),
        None => Shown::Page(page(visit, visit.query.get("next").unwrap_or_default(), GivenToken::None)),
    }
}

/// Begins a session for a valid token.
pub(super) fn sign_in(visit: &Visit, form: &FormData) -> Result<Shown, RouteError> {
    let (token, next) = (form.text("token").trim(), form.text("next"));
    // Any known token, a reader's too: sessions serve to read as well as to publish.
    if visit.engine.tokens.load().name_of(token).is_none() {
        tracing::info!(client = %visit.peer.ip(), "refused to sign in: the token is not known");
        return Ok(Shown::With(StatusCode::UNAUTHORIZED, page(visit, next, GivenToken::Refused)));
    }
    let number = Sessions::of(&visit.engine).begin(token);
    let mut answer = see_other(&target(visit, next));
    set_cookie(visit, &mut answer, &number, LIFETIME.as_secs());
    Ok(answer.into())
}

/// Ends the session.
pub(super) fn sign_out(visit: &Visit) -> Answer {
    Sessions::of(&visit.engine).end(visit.request.headers());
    let mut answer = see_other(&format!("{}/", visit.root));
    set_cookie(visit, &mut answer, "", 0);
    answer
}

/// Sets the cookie: unreadable to scripts, never sent by other sites' pages, and only encrypted where the server is.
fn set_cookie(visit: &Visit, answer: &mut Answer, number: &str, seconds: u64) {
    let secure = if visit.engine.base_url.starts_with("https://") { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE_NAME}={number}; Path={}/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}",
        visit.root
    );
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        answer.headers.insert(SET_COOKIE, value);
    }
}

/// Returns the address to go on to: one of this server's, or its home.
fn target(visit: &Visit, next: &str) -> String {
    if is_own(next) { next.to_owned() } else { format!("{}/", visit.root) }
}

/// Returns true for a path of this server. `//host` and `/\host` would lead to another one.
fn is_own(next: &str) -> bool {
    next.starts_with('/')
        && !next[1..].starts_with(['/', '\\'])
        && next.len() < 2000
        && next.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Token that was given to the form before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenToken {
    None,
    Refused,
}

fn page(visit: &Visit, next: &str, given: GivenToken) -> Page {
    let is_refused = given == GivenToken::Refused;
    let has_tokens = !visit.engine.tokens.load().is_empty();
    let body = html! {
        div class="title" { h1 { "Sign in" } }
        @if is_refused { div class="note failing" role="alert" { p { strong { "This token is not known here." } " Tokens are in the configuration, as " code { "[server] tokens" } ", " code { "[[token]]" } " or a feed's " code { "readers" } "." } } }
        @if has_tokens {
            p { "With a token you see the private feeds that it may read, and publish where it may." }
            form class="form" method="post" action={ (visit.root) "/sign-in" } {
                input type="hidden" name="next" value=(next);
                div class="field" {
                    label for="token" { "Token" }
                    input id="token" type="password" name="token" autocomplete="current-password" required maxlength="4096" aria-invalid=[is_refused.then_some("true")];
                }
                div { button class="main" type="submit" { "Sign in" } }
            }
            p class="soft small" { "The session lasts 12 hours, or until the server starts again. The token stays on the server." }
        } @else {
            p { "This server has no tokens, so there is nothing to sign in with." }
            p { "To publish in the browser or to have private feeds, make one with " code { "towpath token new" } " and set " code { "[server] tokens" } "." }
        }
    };
    Page::new("Sign in", Section::SignIn, body)
}

#[cfg(test)]
mod tests {
    use super::is_own;

    #[test]
    fn only_own_addresses_follow() {
        for own in ["/", "/feeds/aa?q=x&at=2026-01-01T00:00:00Z"] {
            assert!(is_own(own), "{own}");
        }
        for other in
            ["", "//evil.example", "/\\evil.example", "https://evil.example/", "javascript:x", "/a\nb", "/ä"]
        {
            assert!(!is_own(other), "{other}");
        }
    }
}
