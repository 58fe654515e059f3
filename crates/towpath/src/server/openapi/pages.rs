//! Pages and forms for browsers.

use super::operation::{Media, Operation, Response, Right};
use super::operations::PAGE;

const SHOWN: Response = (200, "The page", PAGE);
const UNCHANGED: Response = (304, "As the client has it (If-None-Match)", &[]);
const DONE: Response = (303, "Done: go to the page that shows it", &[]);
const FORM: &[Media] = &[("application/x-www-form-urlencoded", "Form")];
const FILE: &[Media] = &[("text/css", "Text"), ("text/javascript", "Text"), ("image/svg+xml", "Text")];

const fn tab(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::get(path, id, summary).answers(&[SHOWN, UNCHANGED]).problems(&[404, 410])
}

const fn form(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::post(path, id, summary).needs(Right::Session).takes(FORM).answers(&[SHOWN, DONE])
}

/// Pages and their forms.
pub(super) static PAGES: &[Operation] = &[
    tab("/live", "showLive", "Page: changes of all feeds as they come"),
    tab("/check", "showCheck", "Page: check of another server's feed"),
    form("/check", "submitCheck", "Form: check another server's feed"),
    tab("/sign-in", "showSignIn", "Page: sign in with a token"),
    Operation::post("/sign-in", "signIn", "Form: sign in with a token").takes(FORM).answers(&[
        (200, "The page", PAGE),
        (303, "Signed in: go to the page that was left", &[]),
        (401, "Nothing is read or published with this token", PAGE),
    ]),
    form("/sign-out", "signOut", "Form: sign out"),
    tab("/feeds/{feed}/changes", "showChanges", "Page: changes of a feed"),
    tab("/feeds/{feed}/history", "showHistory", "Page: changes of a feed by day and hour"),
    tab("/feeds/{feed}/source", "showSource", "Page: source of a feed"),
    tab("/feeds/{feed}/follow", "showFollow", "Page: ways to follow a feed"),
    tab("/feeds/{feed}/subscribers", "showSubscribers", "Page: subscribers of a feed"),
    tab("/feeds/{feed}/live", "showFeedLive", "Page: changes of a feed as they come"),
    tab("/feeds/{feed}/publish", "showPublish", "Page: form that publishes an item"),
    form("/feeds/{feed}/publish", "submitItem", "Form: publish an item"),
    form("/feeds/{feed}/delete", "submitDelete", "Form: delete an item"),
    form("/feeds/{feed}/snapshot", "submitSnapshot", "Form: make a snapshot"),
    form("/feeds/{feed}/poll", "submitPoll", "Form: poll the source now"),
    form("/feeds/{feed}/pause", "submitPause", "Form: pause the source"),
    form("/feeds/{feed}/resume", "submitResume", "Form: resume the source"),
    Operation::get("/assets/{asset}", "getAsset", "Style, script or icon of the pages")
        .answers(&[(200, "The file", FILE), UNCHANGED])
        .problems(&[404]),
    Operation::get("/favicon.ico", "getIcon", "Icon of the pages")
        .answers(&[(200, "The icon", &[("image/svg+xml", "Text")]), UNCHANGED]),
];
