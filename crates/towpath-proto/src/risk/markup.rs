//! Active and hidden parts of HTML in an item.

use super::detector::{Detector, Signals};
use super::links;
use crate::format::html::{self, HtmlContent};
use crate::item::Item;

/// Texts of an HTML fragment.
pub(super) struct HtmlTexts {
    /// Visible text.
    pub(super) visible: String,
    /// Hidden text: hidden elements and comments.
    pub(super) hidden: String,
}

/// Inspects the HTML in `text`, if there is any.
pub(super) fn inspect(text: &str, item: &Item, signals: &mut Signals) -> Option<HtmlTexts> {
    memchr::memchr2(b'<', b'&', text.as_bytes())?;
    let content = html::content(text);
    signals.set_if(Detector::ScriptElement, content.scripts > 0);
    signals.set_if(Detector::EventHandler, content.handlers > 0);
    signals.set_if(Detector::EmbeddedFrame, content.frames > 0);
    signals.set_if(Detector::MetaRefresh, content.refresh);
    signals.set_if(Detector::PasswordField, content.password_fields > 0);
    signals.set_if(Detector::HiddenText, content.hidden.chars().nth(20).is_some());
    for link in &content.links {
        links::inspect_link(link, item.url.as_deref(), signals);
    }
    for url in &content.urls {
        signals.set_if(Detector::ActiveUrl, links::is_active_source(url));
    }
    links::inspect_plain(&content.text, signals);
    let HtmlContent { text: visible, mut hidden, comments, .. } = content;
    hidden.push('\n');
    hidden.push_str(&comments);
    Some(HtmlTexts { visible, hidden })
}
