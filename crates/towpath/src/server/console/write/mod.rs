//! Forms: signing in and out, publishing, deleting, and requests about sources.
//!
//! A form is believed if a page of this server sent it, and with its session's form secret. Then its request gets the
//! session's token, and the checks are those of a program that sends this token.

pub(super) mod form_data;
mod form_view;
mod item_form;
pub(super) mod publish;
mod sign_in;
mod source;

use http::Request;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderName};
use hyper::body::Incoming;
use url::Url;

use super::shown::{Shown, see_other};
use super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::request_body;
use crate::protocols::replication::serve as replication;
use crate::server::session::insert_token;
use form_data::FormData;

pub(super) use sign_in::sign_in_page;

/// Largest form of a signed-in reader, in bytes.
const MAX_FORM: usize = 16 << 20;
/// Largest form of a stranger.
const MAX_SIGN_IN: usize = 16 << 10;

/// Does what a form asks for.
pub(super) async fn act(
    visit: &mut Visit,
    path: &[String],
    request: Request<Incoming>,
) -> Result<Shown, RouteError> {
    check_origin(visit.request.headers(), &visit.engine.base_url)?;
    let segments: Vec<&str> = path.iter().map(String::as_str).collect();
    let limit = if visit.session.is_some() { MAX_FORM } else { MAX_SIGN_IN };
    let body = request_body::read(&visit.engine, request, limit).await?;
    let form = FormData::parse(&body);
    if let ["sign-in"] = segments.as_slice() {
        return sign_in::sign_in(visit, &form);
    }
    authorize(visit, &form)?;
    match segments.as_slice() {
        ["sign-out"] => Ok(sign_in::sign_out(visit).into()),
        ["sinks", name] => super::sinks::order(visit, name, &form).await,
        ["check"] => super::check::run(visit, &form).await,
        ["feeds", feed, action] => {
            // A hidden feed must look like an absent one here as well.
            let feed = visit.feed(feed)?;
            match *action {
                "publish" => publish::publish(visit, &feed, &form).await,
                "delete" => publish::delete(visit, &feed, &form).await,
                "snapshot" => {
                    replication::make(&visit.engine, visit.peer, feed.id().as_str(), &visit.request).await?;
                    Ok(see_other(&format!("{}/follow?done=snapshot", visit.feed_path(&feed))).into())
                }
                action => source::request(visit, &feed, action).await,
            }
        }
        _ => Err(RouteError::not_found("there is no such form")),
    }
}

/// Gives a request the token of its session, if its form is the session's own.
fn authorize(visit: &mut Visit, form: &FormData) -> Result<(), RouteError> {
    let expired = || {
        RouteError::forbidden(
            "Your session is over, or the form is not of this session. Sign in and try again",
        )
    };
    let session = visit.session.clone().ok_or_else(expired)?;
    if !session.is_form_secret(form.text("form_secret")) {
        return Err(expired());
    }
    insert_token(visit.request.headers_mut(), &session);
    Ok(())
}

/// Checks that a page of this server sent a form. Every current browser says who did.
fn check_origin(headers: &HeaderMap, base_url: &str) -> Result<(), RouteError> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_own_page = match text(HeaderName::from_static("sec-fetch-site")) {
        // Only a browser can write this header. It compared the addresses, which a proxy changes on the way.
        Some("same-origin") => true,
        None | Some("none") => text(ORIGIN).is_none_or(|origin| {
            let host = origin.split_once("://").map_or("", |(_, host)| host);
            Some(host) == text(HOST) || is_origin_of(base_url, origin)
        }),
        Some(_) => false,
    };
    if !is_own_page {
        return Err(RouteError::forbidden(
            "Another site's page sent this form. Open the form here and send it again",
        ));
    }
    Ok(())
}

/// Returns true if pages below a base URL have this origin. A proxy may pass on another `Host`.
fn is_origin_of(base_url: &str, origin: &str) -> bool {
    let base = Url::parse(base_url).map(|url| url.origin());
    base.is_ok_and(|base| base.is_tuple() && base.ascii_serialization() == origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(lines: &[(&'static str, &str)]) -> bool {
        let headers =
            lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        check_origin(&headers.collect(), "https://feeds.example.com:8443/tp").is_ok()
    }

    #[test]
    fn forms_of_other_sites_are_refused() {
        let host = ("host", "feeds.example");
        assert!(passes(&[host]) && passes(&[host, ("origin", "https://feeds.example")]));
        assert!(passes(&[host, ("origin", "https://feeds.example"), ("sec-fetch-site", "same-origin")]));
        for origin in ["https://evil.example", "null", "https://feeds.example.evil.example", "x"] {
            assert!(!passes(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(!passes(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!passes(&[host, ("sec-fetch-site", "same-site")]));
    }

    /// nginx passes on the host without its port, or its own address.
    #[test]
    fn forms_pass_a_proxy_that_changes_the_host() {
        let origin = ("origin", "https://feeds.example.com:8443");
        for host in ["feeds.example.com", "127.0.0.1:21630"] {
            let host = ("host", host);
            assert!(passes(&[host, origin]) && passes(&[host, origin, ("sec-fetch-site", "same-origin")]));
            // The reader came by another name of the server.
            assert!(passes(&[host, ("origin", "https://other.example"), ("sec-fetch-site", "same-origin")]));
            for foreign in
                ["http://feeds.example.com:8443", "https://feeds.example.com", "https://evil.example"]
            {
                assert!(passes(&[host]) && !passes(&[("host", "127.0.0.1:21630"), ("origin", foreign)]));
            }
            assert!(!passes(&[host, origin, ("sec-fetch-site", "cross-site")]));
        }
    }
}
