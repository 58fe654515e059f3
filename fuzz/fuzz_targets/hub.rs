//! Requests to a hub: for any body, an accepted request has a callback that can be verified.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use towpath_proto::follow::Monotonic;
use towpath_proto::push::websub::request::{HubRequest, MAX_SECRET};
use towpath_proto::push::websub::verify::IntentVerification;

fuzz_target!(|body: &[u8]| {
    let form = Some("application/x-www-form-urlencoded");
    let Ok(HubRequest::Subscription(request)) = HubRequest::parse(form, body) else { return };
    assert!(request.secret.as_ref().is_none_or(|secret| secret.len() <= MAX_SECRET));
    let (topic, callback) = (request.topic.clone(), request.callback.clone());
    let mut verification = IntentVerification::new(*request, Duration::from_secs(60), "challenge".into());
    let question = url::Url::parse(&verification.request_url(Monotonic::ORIGIN)).expect("an address");
    let callback = url::Url::parse(&callback).expect("an address");
    // Parameters behind a fragment would never reach the callback.
    assert!(matches!(question.scheme(), "http" | "https") && question.fragment().is_none());
    assert_eq!((question.host(), question.path()), (callback.host(), callback.path()));
    let asked =
        // The hub's parameters are appended, and the callback's own query may hold the same names.
        |name: &str| question.query_pairs().filter(|(n, _)| n == name).last().map(|(_, v)| v.into_owned());
    assert_eq!(asked("hub.topic"), Some(topic));
    assert_eq!(asked("hub.challenge").as_deref(), Some("challenge"));
});
