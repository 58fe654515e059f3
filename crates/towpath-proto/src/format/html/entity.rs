//! Named character references.

use std::borrow::Cow;
use std::ops::ControlFlow;

use html5gum::emitters::callback::CallbackEvent;
use quick_xml::escape::resolve_html5_entity;

use super::tokens::read;

/// Returns the text of HTML's entity of this name.
///
/// quick-xml's table is exact for Latin letters and punctuation, and fast. It lost the last digit of 430 others: Greek,
/// Cyrillic, `Scaron`, `oelig`. For those the HTML tokenizer is asked.
pub(crate) fn entity(name: &str) -> Option<Cow<'static, str>> {
    let text = resolve_html5_entity(name)?;
    let is_exact = match text.chars().next() {
        Some('\u{A0}'..='\u{FF}') => name != "OverBar",
        Some('\u{2000}'..='\u{20FF}' | '\u{2190}'..='\u{27FF}') => true,
        _ => false,
    };
    if is_exact {
        return Some(Cow::Borrowed(text));
    }
    let mut found = String::new();
    read(&format!("&{name};"), |event| {
        if let CallbackEvent::String { value } = event {
            found.push_str(&String::from_utf8_lossy(value));
        }
        ControlFlow::Continue(())
    });
    Some(Cow::Owned(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_are_those_of_html() {
        for (name, text) in [
            ("nbsp", "\u{a0}"),
            ("eacute", "é"),
            ("mdash", "—"),
            ("euro", "€"),
            ("rarr", "→"),
            ("trade", "™"),
            ("alpha", "α"),
            ("Omega", "Ω"),
            ("Scaron", "Š"),
            ("oelig", "œ"),
            ("ccaron", "č"),
            ("shchcy", "щ"),
            ("tilde", "˜"),
            ("Afr", "𝔄"),
            ("OverBar", "‾"),
            ("amp", "&"),
        ] {
            assert_eq!(entity(name).as_deref(), Some(text), "{name}");
        }
        assert_eq!(entity("nosuch"), None);
    }
}
