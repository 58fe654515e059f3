//! Rules of WebSub for a topic and its hub, as a table.

crate::report::rules! {
    ADVERTISED: "WebSub 4" Must "the topic names at least one hub";
    ONE_SELF: "WebSub 4" Should "the topic has exactly one Link header with rel=self";
    NO_CALLBACK: "WebSub 5.1.2" Must "a request without hub.callback is answered 4xx or 5xx";
    ACCEPTED: "WebSub 5.1.2" Must "a request to subscribe is answered 202";
    ASKS: "WebSub 5.3" Must "the hub verifies the request at the callback";
    ASKS_TOPIC: "WebSub 5.3" Must "the question has the request's hub.topic";
    ASKS_CHALLENGE: "WebSub 5.3" Must "the question has a hub.challenge";
    ASKS_LEASE: "WebSub 5.3" Must "the question to subscribe has a finite hub.lease_seconds";
    KEEPS_QUERY: "WebSub 5.1.1" Must "the callback's own query comes first in the question";
    SIGNED: "WebSub 7.1" Must "what is delivered is signed with the secret";
    TYPED: "WebSub 7" Must "what is delivered is of the topic's type";
    LINKED: "WebSub 7" Must "what is delivered has Link headers with rel=hub and rel=self";
    FILLED: "WebSub 7" Must "what is delivered has a body";
    UNSUBSCRIBES: "WebSub 3.1" Must "a request to unsubscribe is answered 202 and verified";
}
