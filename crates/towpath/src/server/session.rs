//! Sessions of readers who signed in to the pages with a token.
//!
//! A session is a random number in a cookie that scripts cannot read and other sites cannot send. The token itself stays
//! here, in memory: a restart signs everybody out. A request that reads gets its session's token as its `Authorization`
//! header, so that every route checks it as it checks a program's. A request that changes something is believed only with
//! the session's form secret.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderValue, Method, Request};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;
use towpath_client::random::unguessable;

use crate::engine::Engine;

/// Name of the cookie.
pub(super) const COOKIE_NAME: &str = "towpath_session";
/// Time after which a session ends.
pub(super) const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Most sessions at a time. The oldest ends first.
// About 300 bytes each. Only holders of a token begin one.
const MAX_SESSIONS: usize = 10_000;

/// Most sessions of one token. A reader must not end those of others by signing in again and again.
const MAX_OF_TOKEN: usize = 100;

/// Sessions of a server.
#[derive(Default)]
pub(super) struct Sessions {
    // By digest: the time of a look-up must tell nothing about the numbers that exist.
    sessions: Mutex<HashMap<[u8; 32], Arc<Session>>>,
}

/// A signed-in reader.
pub(super) struct Session {
    token: Box<str>,
    form_secret: String,
    ends: Instant,
}

impl Session {
    /// Returns the token that the reader signed in with.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Returns the secret that the session's forms carry.
    pub(super) fn form_secret(&self) -> &str {
        &self.form_secret
    }

    /// Returns true for the session's form secret.
    pub(super) fn is_form_secret(&self, given: &str) -> bool {
        // In constant time, as everything that a client could guess byte by byte.
        self.form_secret.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

impl Sessions {
    /// Returns the sessions of an engine.
    pub(super) fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Begins a session, and returns the number for its cookie.
    pub(super) fn begin(&self, token: &str) -> String {
        self.begin_at(token, Instant::now())
    }

    fn begin_at(&self, token: &str, now: Instant) -> String {
        let number = random();
        let session = Session { token: token.into(), form_secret: random(), ends: now + LIFETIME };
        let mut sessions = self.sessions.lock();
        // Here and not by a task: `find` refuses expired ones, and only sign-ins add any.
        sessions.retain(|_, session| session.ends > now);
        let of_token = sessions.values().filter(|session| session.token() == token).count();
        if of_token >= MAX_OF_TOKEN {
            end_oldest(&mut sessions, |session| session.token() == token);
        } else if sessions.len() >= MAX_SESSIONS {
            end_oldest(&mut sessions, |_| true);
        }
        sessions.insert(key(&number), Arc::new(session));
        number
    }

    /// Ends the session of a request.
    pub(super) fn end(&self, headers: &HeaderMap) {
        if let Some(number) = cookie(headers) {
            self.sessions.lock().remove(&key(number));
        }
    }

    /// Returns the session of a request.
    pub(super) fn find(&self, headers: &HeaderMap) -> Option<Arc<Session>> {
        self.find_at(headers, Instant::now())
    }

    fn find_at(&self, headers: &HeaderMap, now: Instant) -> Option<Arc<Session>> {
        let session = self.sessions.lock().get(&key(cookie(headers)?)).cloned();
        session.filter(|session| session.ends > now)
    }
}

/// Ends the oldest of some sessions.
fn end_oldest(sessions: &mut HashMap<[u8; 32], Arc<Session>>, is_one: impl Fn(&Session) -> bool) {
    let some = sessions.iter().filter(|(_, session)| is_one(session));
    let oldest = some.min_by_key(|(_, session)| session.ends).map(|(key, _)| *key);
    oldest.map(|key| sessions.remove(&key));
}

/// Gives a request that reads the token of its session, as if it had sent it.
///
/// Requests that change something do not get it: only the forms of the pages do, which carry the session's form secret.
pub(super) fn authorize<B>(engine: &Engine, request: &mut Request<B>) {
    // A program's own token goes first: a cookie beside it must not widen what the request may read.
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads || !request.headers().contains_key(COOKIE) || request.headers().contains_key(AUTHORIZATION) {
        return;
    }
    if let Some(session) = Sessions::of(engine).find(request.headers()) {
        insert_token(request.headers_mut(), &session);
    }
}

/// Inserts a session's token as the `Authorization` header.
pub(super) fn insert_token(headers: &mut HeaderMap, session: &Session) {
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", session.token())) {
        // So that no `Debug` output of the headers shows the token.
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
}

fn random() -> String {
    // 256 bits: a number of 128 would do, but the cookie is all that stands for the token.
    format!("{:032x}{:032x}", unguessable(), unguessable())
}

fn key(number: &str) -> [u8; 32] {
    Sha256::digest(number.as_bytes()).into()
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    // HTTP/2 may split cookies over several lines (RFC 9113, section 8.2.3).
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: &str) -> HeaderMap {
        let line = format!("theme=dark; {COOKIE_NAME}={number}; x=y");
        HeaderMap::from_iter([(COOKIE, line.parse().unwrap())])
    }

    #[test]
    fn a_session_lasts_until_it_ends() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let number = sessions.begin_at("t0ken", now);
        assert_ne!(number, sessions.begin_at("t0ken", now));
        let session = sessions.find_at(&sent(&number), now).unwrap();
        assert_eq!(session.token(), "t0ken");
        assert!(session.is_form_secret(session.form_secret()) && !session.is_form_secret(""));
        assert!(sessions.find_at(&sent(&number), now + LIFETIME).is_none());
        assert!(sessions.find_at(&sent("0"), now).is_none());
        sessions.end(&sent(&number));
        assert!(sessions.find_at(&sent(&number), now).is_none());
    }

    #[test]
    fn a_token_ends_its_own_sessions_only() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let other = sessions.begin_at("other", now);
        let first = sessions.begin_at("t", now);
        for second in 1..=MAX_OF_TOKEN as u64 {
            sessions.begin_at("t", now + Duration::from_secs(second));
        }
        assert!(sessions.find_at(&sent(&first), now).is_none(), "the oldest of the token");
        assert!(sessions.find_at(&sent(&other), now).is_some());
        assert_eq!(sessions.sessions.lock().len(), 1 + MAX_OF_TOKEN);
    }

    #[test]
    fn sessions_have_a_limit() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let first = sessions.begin_at("t", now);
        for second in 1..=MAX_SESSIONS as u64 {
            sessions.sessions.lock().insert(
                key(&second.to_string()),
                Arc::new(Session {
                    token: "t".into(),
                    form_secret: String::new(),
                    ends: now + LIFETIME + Duration::from_secs(second),
                }),
            );
        }
        sessions.begin_at("t", now);
        assert!(sessions.find_at(&sent(&first), now).is_none(), "the oldest");
        assert!(sessions.sessions.lock().len() <= MAX_SESSIONS + 1);
    }
}
