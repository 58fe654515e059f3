//! Form bodies posted to a hub, and the query arguments of its callbacks (WebSub 5.1:
//! `application/x-www-form-urlencoded`, UTF-8).

use percent_encoding::percent_decode_str;

/// Maximum number of parameters in a form.
pub const MAX_PARAMETERS: usize = 64;

/// Error of parsing a form. The sender's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// A decoded name or value is not UTF-8.
    #[error("parameter {index} is not UTF-8")]
    Encoding {
        /// Index of the parameter, from 0.
        index: usize,
    },
    /// The form has more than [`MAX_PARAMETERS`] parameters.
    #[error("more than {MAX_PARAMETERS} parameters")]
    TooMany,
    /// A parameter that must be unique is repeated.
    #[error("{0} is given twice")]
    Twice(&'static str),
}

/// Decoded parameters of a form, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubForm(Vec<(String, String)>);

impl HubForm {
    /// Parses the body of a request, or a query string without its question mark.
    pub fn parse(body: &[u8]) -> Result<Self, FormError> {
        let text = std::str::from_utf8(body).map_err(|_| FormError::Encoding { index: 0 })?;
        let mut parameters = Vec::new();
        for (index, pair) in text.trim().split('&').filter(|pair| !pair.is_empty()).enumerate() {
            // Bounds the work for a hostile body.
            if index == MAX_PARAMETERS {
                return Err(FormError::TooMany);
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text| decode(text).ok_or(FormError::Encoding { index });
            parameters.push((decode(name)?, decode(value)?));
        }
        Ok(Self(parameters))
    }

    /// Returns the value of a parameter that may occur once. An empty value counts as absent.
    pub fn one(&self, name: &'static str) -> Result<Option<&str>, FormError> {
        let mut values = self.all(name);
        let first = values.next();
        // A second value would let two parsers, such as a proxy and this hub, disagree about the callback.
        if values.next().is_some() {
            return Err(FormError::Twice(name));
        }
        Ok(first.filter(|value| !value.is_empty()))
    }

    /// Returns all values of a parameter, in the form's order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the last value of a parameter. Hubs append their arguments to a callback's own query (WebSub
    /// 5.1.1), so the last one is the hub's.
    pub fn last<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).last()
    }
}

fn decode(text: &str) -> Option<String> {
    // Form encoding writes a space as a plus sign, which percent-decoding leaves alone.
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let form = HubForm::parse(b"a=1+2%203&b=%C3%A9&&c&a.b=x%26y").unwrap();
        assert_eq!(form.one("a"), Ok(Some("1 2 3")));
        assert_eq!(form.one("b"), Ok(Some("é")));
        assert_eq!(form.one("c"), Ok(None));
        assert_eq!(form.one("a.b"), Ok(Some("x&y")));
        assert_eq!(form.one("d"), Ok(None));
    }

    #[test]
    fn what_is_no_form_says_where() {
        assert_eq!(HubForm::parse(b"a=1&b=%ff"), Err(FormError::Encoding { index: 1 }));
        assert_eq!(HubForm::parse(b"\xff"), Err(FormError::Encoding { index: 0 }));
        assert_eq!(HubForm::parse("a=1&".repeat(65).as_bytes()), Err(FormError::TooMany));
        let form = HubForm::parse(b"a=1&a=2").unwrap();
        assert_eq!(form.one("a"), Err(FormError::Twice("a")));
        assert_eq!(form.last("a"), Some("2"));
    }

    proptest::proptest! {
        #[test]
        fn any_body_is_read_or_refused(body: Vec<u8>) {
            let _ = HubForm::parse(&body);
        }
    }
}
