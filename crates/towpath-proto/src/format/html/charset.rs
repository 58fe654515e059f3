//! Character set that a page declares for itself.

use std::ops::ControlFlow;

use html5gum::emitters::callback::CallbackEvent;

use super::tokens::read;

/// Returns the label of the first `meta` element that declares a character set (HTML standard, section 13.2.3.2):
/// `charset`, or the `content` of `http-equiv="content-type"`.
pub(crate) fn meta_charset(start: &str) -> Option<String> {
    let (mut is_meta, mut attribute, mut meta) = (false, Vec::new(), Meta::default());
    let mut found = None;
    read(start, |event| {
        match event {
            CallbackEvent::OpenStartTag { name } => (is_meta, meta) = (name == b"meta", Meta::default()),
            CallbackEvent::AttributeName { name } if is_meta => attribute = name.to_vec(),
            CallbackEvent::AttributeValue { value } if is_meta => {
                meta.set(&attribute, String::from_utf8_lossy(value).trim().to_owned());
            }
            CallbackEvent::CloseStartTag { .. } if is_meta => {
                found = std::mem::take(&mut meta).label();
                if found.is_some() {
                    return ControlFlow::Break(());
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    found
}

#[derive(Default)]
struct Meta {
    charset: Option<String>,
    is_content_type: bool,
    content: Option<String>,
}

impl Meta {
    fn set(&mut self, attribute: &[u8], value: String) {
        match attribute {
            b"charset" => self.charset = Some(value),
            b"http-equiv" => self.is_content_type = value.eq_ignore_ascii_case("content-type"),
            b"content" => self.content = Some(value),
            _ => {}
        }
    }

    fn label(self) -> Option<String> {
        let of_content = || {
            let content = self.content.filter(|_| self.is_content_type)?;
            let at = content.to_ascii_lowercase().find("charset")?;
            let label = content[at + "charset".len()..].trim_start().strip_prefix('=')?.trim_start();
            let label = label.trim_matches(['"', '\'']);
            let end = label.find(|c: char| c == ';' || c.is_ascii_whitespace()).unwrap_or(label.len());
            Some(label[..end].to_owned())
        };
        self.charset.or_else(of_content).filter(|label| !label.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        for (start, label) in [
            ("<!doctype html><html><head><meta charset=\"koi8-r\">", Some("koi8-r")),
            ("<html><META CHARSET=Shift_JIS >", Some("Shift_JIS")),
            (
                "<html><meta name=a content='charset=x'><meta http-equiv=\"Content-Type\" content=\"text/html; charset = windows-1251 ; x\">",
                Some("windows-1251"),
            ),
            ("<html><!-- <meta charset=koi8-r> --><title><meta charset=koi8-r></title>", None),
            ("<html><meta charset=''><meta content='text/html; charset=koi8-r'>", None),
            ("<html><meta charset=\"koi", None),
        ] {
            assert_eq!(meta_charset(start).as_deref(), label, "{start}");
        }
    }
}
