//! `Upload-Metadata`: keys, and values in Base 64 (tus 1.0.0, extension creation).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::document::route_error::RouteError;

/// Longest header, in bytes: it is stored with each write.
const MAX_BYTES: usize = 8 << 10;

/// Description of an upload by its creator.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    /// Id of the item.
    pub(super) id: String,
    pub(super) filename: Option<String>,
    /// Media type.
    pub(super) filetype: Option<String>,
    /// Title of the item.
    pub(super) title: Option<String>,
}

impl Metadata {
    /// Parses the header. Other keys are the client's own.
    pub(super) fn parse(text: &str) -> Result<Self, RouteError> {
        if text.len() > MAX_BYTES {
            return Err(RouteError::bad_request(format!("Upload-Metadata has more than {MAX_BYTES} bytes")));
        }
        let (mut id, mut read) = (None, Self::default());
        let mut seen = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once(' ').unwrap_or((pair, ""));
            let shown: String = key.chars().take(40).collect();
            let bad = |reason| RouteError::bad_request(format!("Upload-Metadata: {shown:?} {reason}"));
            if seen.contains(&key) {
                return Err(bad("is there twice"));
            }
            seen.push(key);
            let slot = match key {
                "id" => &mut id,
                "filename" => &mut read.filename,
                "filetype" => &mut read.filetype,
                "title" => &mut read.title,
                _ => continue,
            };
            let bytes = STANDARD.decode(value.trim()).map_err(|_| bad("is not in Base 64"))?;
            let value = String::from_utf8(bytes).map_err(|_| bad("is not UTF-8"))?;
            *slot = Some(value).filter(|value| !value.is_empty());
        }
        read.id = id.ok_or_else(|| {
            RouteError::bad_request("Upload-Metadata must have id, the id of the item, in Base 64")
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read() {
        let read =
            Metadata::parse("id YQ==,filename Yi5tcDQ=, filetype dmlkZW8vbXA0,title w6k=,own,other ???")
                .unwrap();
        let expected = Metadata {
            id: "a".into(),
            filename: Some("b.mp4".into()),
            filetype: Some("video/mp4".into()),
            title: Some("é".into()),
        };
        assert_eq!(read, expected);
        let long = format!("id YQ==,x {}", "x".repeat(MAX_BYTES));
        for bad in ["", "id", "id ?", "id YQ==,id YQ==", "filename YQ==", "id YQ==,title /w==", long.as_str()]
        {
            assert!(Metadata::parse(bad).is_err(), "{bad}");
        }
    }
}
