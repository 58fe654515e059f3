//! What HTML in an item does besides showing text.

use super::detector::{Detector, Signals};
use super::links;
use crate::format::html::{self, Survey};
use crate::item::Item;

/// The texts of a piece of HTML.
pub(super) struct Seen {
    /// What a reader sees.
    pub(super) visible: String,
    /// What a reader does not: hidden elements and comments.
    pub(super) hidden: String,
}

/// Looks at the HTML in `text`, if there is any.
pub(super) fn inspect(text: &str, item: &Item, signals: &mut Signals) -> Option<Seen> {
    memchr::memchr2(b'<', b'&', text.as_bytes())?;
    let survey = html::survey(text);
    signals.set_if(Detector::ScriptElement, survey.scripts > 0);
    signals.set_if(Detector::EventHandler, survey.handlers > 0);
    signals.set_if(Detector::EmbeddedFrame, survey.frames > 0);
    signals.set_if(Detector::MetaRefresh, survey.refresh);
    signals.set_if(Detector::PasswordField, survey.password_fields > 0);
    signals.set_if(Detector::HiddenText, survey.hidden.chars().nth(20).is_some());
    for link in &survey.links {
        links::inspect_link(link, item.url.as_deref(), signals);
    }
    for url in &survey.urls {
        signals.set_if(Detector::ActiveUrl, links::is_active(url, false));
    }
    links::inspect_plain(&survey.text, signals);
    let Survey { text: visible, mut hidden, comments, .. } = survey;
    hidden.push('\n');
    hidden.push_str(&comments);
    Some(Seen { visible, hidden })
}
