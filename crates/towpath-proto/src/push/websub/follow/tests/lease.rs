//! Leases: when a subscription is renewed.

use super::*;

/// WebSub 5.3.1: "the subscriber MUST re-request the subscription on the hub before hub.lease_seconds seconds has
/// elapsed"; 6.1: beginning with the topic.
#[test]
fn it_is_renewed_before_the_lease_ends() {
    let mut follower = subscribed();
    let pull = requests(&mut follower, 2900);
    answer(&mut follower, 2900, &pull[0], 200, true, &page(None, "m2", &[]));
    let renewal = requests(&mut follower, 3000);
    assert_eq!(renewal.len(), 1);
    assert!(renewal[0].url.ends_with("max=1&timeout=0"), "{}", renewal[0].url);
    answer(&mut follower, 3000, &renewal[0], 200, true, &page(None, "m1", &["a"]));
    let request = requests(&mut follower, 3000);
    assert_eq!(request_of(&request[0]).topic, TOPIC);
    answer(&mut follower, 3000, &request[0], 202, false, "");
    assert_eq!(ask(&mut follower, 3001, QUESTION).status, 200);
    assert!(
        follower.is_subscribed(Now::simulated(time(7000)))
            && !follower.is_subscribed(Now::simulated(time(7001)))
    );
}

/// WebSub 5.1: a lease is "a positive decimal integer". Any other is as good as none, and a short one must not have the hub
/// asked without a pause.
#[test]
fn a_short_lease_is_not_renewed_at_once() {
    for (lease, is_told) in
        [("1", true), ("3", true), ("0", false), ("-1", false), ("-9223372036854775808", false)]
    {
        let mut follower = follower();
        let request = discovered(&mut follower);
        answer(&mut follower, 0, &request, 202, false, "");
        let question = QUESTION.replace("=4000", &format!("={lease}"));
        assert_eq!(ask(&mut follower, 1, &question).status, 200, "{lease}");
        for now in 1..10 {
            let asked = requests(&mut follower, now);
            let renews = |request: &Request| request.method == Method::POST || request.url.contains("max=1&");
            assert!(!asked.iter().any(renews), "{lease}, after {now} s: {asked:?}");
        }
        assert_eq!(follower.is_subscribed(Now::simulated(time(3600))), !is_told, "{lease}");
    }
}
