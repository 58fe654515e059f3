use super::*;

const FORM: &str = "application/x-www-form-urlencoded";
const CALLBACK: &str = "hub.callback=http%3A%2F%2Fmysite.example.com%2Fpush-handler";
const TOPIC: &str = "hub.topic=http%3A%2F%2Fexample.com%2Farticles%2F1%2Fcomments%2F%3Forder%3Dcreated";

fn parse(parameters: &[&str]) -> Result<SubscriptionRequest, RequestError> {
    match HubRequest::parse(Some(FORM), parameters.join("&").as_bytes())? {
        HubRequest::Subscription(request) => Ok(*request),
        HubRequest::Publish(_) => panic!("not a subscription"),
    }
}

fn with(parameter: &str) -> Result<SubscriptionRequest, RequestError> {
    parse(&["hub.mode=subscribe", CALLBACK, TOPIC, parameter])
}

fn with_callback(callback: &str) -> Result<SubscriptionRequest, RequestError> {
    parse(&["hub.mode=subscribe", TOPIC, &format!("hub.callback={callback}")])
}

/// Smart Feeds, HTTP Push: the example request.
#[test]
fn the_example_of_the_text() {
    let request = with("hub.verify=async").unwrap();
    assert_eq!(request.dialect, Dialect::PubSubHubbub);
    assert_eq!(request.verify, VerifyMode::Async);
    assert_eq!(request.mode, Mode::Subscribe);
    assert_eq!(request.callback, "http://mysite.example.com/push-handler");
    assert_eq!(request.topic, "http://example.com/articles/1/comments/?order=created");
}

/// WebSub 3.1: "MUST accept a subscription request with the parameters hub.callback, hub.mode and hub.topic",
/// and "with a hub.secret parameter".
#[test]
fn websub_needs_three_parameters() {
    let request = with("hub.secret=s%20%26").unwrap();
    assert_eq!((request.dialect, request.verify), (Dialect::WebSub, VerifyMode::Async));
    assert_eq!(request.secret.as_deref(), Some("s &"));
    assert_eq!(request.lease_seconds, None);
    assert_eq!(parse(&[CALLBACK, TOPIC]), Err(RequestError::Missing("hub.mode")));
    assert_eq!(parse(&["hub.mode=subscribe", TOPIC]), Err(RequestError::Missing("hub.callback")));
    assert_eq!(parse(&["hub.mode=subscribe", CALLBACK]), Err(RequestError::Missing("hub.topic")));
    let mode = parse(&["hub.mode=begin", CALLBACK, TOPIC]);
    assert_eq!(mode, Err(RequestError::Mode("begin".into())));
}

/// WebSub 5.1, 0.3 section 6.1: "Hubs MUST ignore additional request parameters they do not understand"
/// (websub.rocks, hub test 102).
#[test]
fn unknown_parameters_are_ignored() {
    assert!(parse(&["hub.mode=subscribe", CALLBACK, TOPIC, "foo=bar", "hub.foo=hub.bar", "foo=2"]).is_ok());
}

/// WebSub 5.1: "MUST have a Content-Type header of application/x-www-form-urlencoded".
#[test]
fn only_forms_are_read() {
    let body = ["hub.mode=subscribe", CALLBACK, TOPIC].join("&");
    for good in [FORM, "Application/X-WWW-Form-Urlencoded; charset=UTF-8"] {
        assert!(HubRequest::parse(Some(good), body.as_bytes()).is_ok(), "{good}");
    }
    for bad in [None, Some("application/json"), Some("multipart/form-data; boundary=x")] {
        let refused = HubRequest::parse(bad, body.as_bytes());
        assert!(matches!(refused, Err(RequestError::ContentType(_))), "{bad:?}");
    }
    let large = vec![b'a'; MAX_BODY + 1];
    assert_eq!(HubRequest::parse(Some(FORM), &large), Err(RequestError::TooLarge));
}

/// 0.3 section 6.1: "Hubs MUST ignore verify mode keywords that they do not understand"; the order of the known
/// ones is the subscriber's preference.
#[test]
fn ways_of_verification() {
    let verify = |parameters: &str| with(parameters).map(|request| request.verify);
    assert_eq!(verify("hub.verify=sync"), Ok(VerifyMode::Sync));
    assert_eq!(verify("hub.verify=async&hub.verify=sync"), Ok(VerifyMode::Async));
    assert_eq!(verify("hub.verify=pigeon&hub.verify=sync&hub.verify=async"), Ok(VerifyMode::Sync));
    assert_eq!(verify("hub.verify=sync,async"), Ok(VerifyMode::Sync));
    assert_eq!(verify("hub.verify=pigeon"), Err(RequestError::Verify));
    assert_eq!(with("hub.verify=").unwrap().dialect, Dialect::WebSub);
}

/// 0.3 section 6.1: the token is opaque, and echoed; WebSub does not know it.
#[test]
fn a_token_is_kept_where_it_has_a_meaning() {
    let old = with("hub.verify=sync&hub.verify_token=a%3Db").unwrap();
    assert_eq!(old.verify_token.as_deref(), Some("a=b"));
    assert_eq!(with("hub.verify_token=a").unwrap().verify_token, None);
}

/// WebSub 5.1, 0.3 section 6.1: a secret "MUST be less than 200 bytes in length".
#[test]
fn secrets_are_bounded() {
    let secret = |bytes: usize| with(&format!("hub.secret={}", "x".repeat(bytes)));
    assert_eq!(secret(199).unwrap().secret.map(|secret| secret.len()), Some(199));
    let refused = |bytes| Err(RequestError::TooLong { parameter: "hub.secret", bytes });
    assert_eq!(secret(200), refused(200));
    assert_eq!(with(&format!("hub.secret={}", "%C3%A9".repeat(100))), refused(200));
    assert_eq!(with("hub.secret=").unwrap().secret, None);
}

/// WebSub 5.1: "given as a positive decimal integer"; 5.3.1: "MUST NOT issue perpetual lease durations".
#[test]
fn leases_are_numbers_and_end() {
    let lease = |text: &str| with(&format!("hub.lease_seconds={text}")).map(|request| request.lease_seconds);
    for bad in ["-1", "1.5", "ten", "0", "%2B1", "1e3"] {
        assert!(matches!(lease(bad), Err(RequestError::Lease(_))), "{bad}");
    }
    assert_eq!(lease("3600"), Ok(Some(3600)));
    assert_eq!(lease(""), Ok(None));
    assert_eq!(lease("99999999999999999999999999"), Ok(Some(u64::MAX)));
    let leases = Leases::default();
    assert_eq!(leases.grant(Some(1_000_000_000_000)), leases.max);
    assert_eq!(leases.grant(Some(u64::MAX)), leases.max);
    assert_eq!(leases.grant(Some(1)), leases.min);
    assert_eq!(leases.grant(Some(3600)), Duration::from_secs(3600));
    assert_eq!(leases.grant(None), leases.default);
    assert_eq!(with("hub.verify=sync&hub.lease_seconds=0").unwrap().lease_seconds, None);
}

/// WebSub 5.1: a lease "MAY be present for unsubscription requests and MUST be ignored by the hub in that case".
#[test]
fn to_unsubscribe_takes_no_lease() {
    let request = parse(&["hub.mode=unsubscribe", CALLBACK, TOPIC, "hub.lease_seconds=-1"]).unwrap();
    assert_eq!((request.mode, request.lease_seconds), (Mode::Unsubscribe, None));
}

/// 0.3 section 6.1.1: addresses MUST NOT contain a fragment, and are http or https.
#[test]
fn callbacks_are_addresses_of_the_web() {
    for bad in [
        "push-handler",
        "/push",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "mailto:a@example.com",
        "http://user@example.com/",
        "http://user:word@example.com/",
        "http://:word@example.com/",
        "http://example.com/%23part",
        "http://",
        "http://example.com:99999/",
        "http://example.com:0/",
        "http://exa mple.com/",
        "http://example.com/%0d%0aHost:x",
        "http://example.com/%09",
    ] {
        let refused = with_callback(bad);
        assert!(matches!(refused, Err(RequestError::Url { parameter: "hub.callback", .. })), "{bad}");
    }
    let long = format!("http://example.com/{}", "a".repeat(MAX_URL));
    assert!(with_callback(&long).is_err());
    for good in ["https://example.com", "http://example.com:8080/a?b=c%26d=e", "http://[2606:4700::1111]/"] {
        assert!(with_callback(good).is_ok(), "{good}");
    }
    assert!(parse(&["hub.mode=subscribe", CALLBACK, "hub.topic=gopher://x/"]).is_err());
}

/// 0.3 section 7.1: `hub.url` may be repeated.
#[test]
fn a_publisher_may_tell() {
    let publish = |body: &str| HubRequest::parse(Some(FORM), body.as_bytes());
    let topics = ["http://a/", "http://b/"].map(str::to_owned).to_vec();
    assert_eq!(
        publish("hub.mode=publish&hub.url=http%3A%2F%2Fa%2F&hub.url=http://b/"),
        Ok(HubRequest::Publish(topics))
    );
    assert_eq!(publish("hub.mode=publish"), Err(RequestError::Missing("hub.url")));
}

proptest::proptest! {
    #[test]
    fn any_form_is_read_or_refused(body in "(hub\\.(mode|topic|callback|secret|lease_seconds|verify)=[ -~]{0,20}&?){0,8}") {
        let _ = HubRequest::parse(Some(FORM), body.as_bytes());
    }
}
