//! Declaration and document type before the root element (XML 1.0, section 2.8).

use super::xml::{Read, StrictXml};
use super::xml_name::{is_name_char, is_space};

impl StrictXml<'_> {
    /// Tests and skips the XML declaration, if there is one.
    pub(super) fn declaration(&mut self) -> Read<()> {
        if !self.rest().starts_with("<?xml") || self.rest()[5..].starts_with(is_name_char) {
            return Ok(());
        }
        let declaration = self.until("<?xml", "?>", "the XML declaration")?;
        let mut position = 0;
        let mut rest = declaration;
        let names = ["version", "encoding", "standalone"];
        while !rest.trim_start().is_empty() {
            let Some((name, after)) = rest.split_once('=') else {
                return self.fault("an XML declaration of another form");
            };
            let spaced = name.starts_with(is_space);
            let after = after.trim_start();
            let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
            let value = quote.and_then(|quote| after[1..].split_once(quote));
            let place = names.iter().position(|known| *known == name.trim());
            let (Some(place), Some((value, next)), true) = (place, value, spaced) else {
                return self.fault("an XML declaration of another form");
            };
            let fits = match place {
                0 => value.starts_with("1."),
                1 => value.starts_with(|c: char| c.is_ascii_alphabetic()),
                _ => matches!(value, "yes" | "no"),
            };
            if !fits || place < position || (position == 0 && place != 0) {
                return self.fault(format!("{} {value:?} in the XML declaration", names[place]));
            }
            (position, rest) = (place + 1, next);
        }
        if position == 0 { self.fault("an XML declaration without a version") } else { Ok(()) }
    }

    /// Skips the document type with its internal subset.
    pub(super) fn doctype(&mut self) -> Read<()> {
        let mut depth = 0_u32;
        let mut quote = None;
        for (index, byte) in self.rest().bytes().enumerate() {
            match (quote, byte) {
                (Some(open), byte) if open == byte => quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => quote = Some(byte),
                (None, b'<' | b'[') => depth += 1,
                (None, b']') => depth = depth.saturating_sub(1),
                (None, b'>') if depth <= 1 => {
                    self.at += index + 1;
                    self.has_doctype = true;
                    return Ok(());
                }
                (None, b'>') => depth -= 1,
                _ => {}
            }
        }
        self.fault("a DOCTYPE that does not end")
    }
}
