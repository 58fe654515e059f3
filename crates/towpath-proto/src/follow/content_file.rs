//! Content that a publisher keeps as a file beside its feed: an item without content, whose first attachment has a digest.

use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::Value;
use url::Url;

use super::exchange::{Event, Followed, Follower};
use super::filter::{FilteredFollower, FollowFilter};
use super::mode::FollowMode;
use crate::attachment::{ATTACHMENTS, Attachment};
use crate::change::Op;
use crate::item::Item;

/// File with the content of an item, as its publisher describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentFile {
    /// Absolute URL, `http` or `https`.
    pub url: String,
    /// Size in bytes.
    pub size: Option<u64>,
    /// SHA-256 of the bytes, in lower-case hex.
    pub sha256: String,
}

impl ContentFile {
    /// Returns the file of a put without content.
    pub fn of(followed: &Followed) -> Option<Self> {
        if followed.op != Op::Put || followed.item.content.is_some() {
            return None;
        }
        let Attachment { url, size, sha256, .. } = first_attachment(&followed.item)?;
        // Whoever reads attachments has tested that the digest is one: it becomes the name of a file.
        let url = Url::parse(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        Some(Self { url: url.into(), size, sha256: sha256? })
    }
}

fn first_attachment(item: &Item) -> Option<Attachment> {
    Attachment::deserialize(item.extra.get(ATTACHMENTS)?.get(0)?).ok()
}

/// A change whose content is a file, to be downloaded before the change is delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct FileChange {
    /// The change, with the publisher's URL of the file.
    pub change: Followed,
    /// The file.
    pub file: ContentFile,
    /// Destination of the file.
    pub folder: ContentFolder,
}

impl FileChange {
    /// Returns the address of the file in its folder.
    pub fn url_in_folder(&self) -> String {
        format!("{}{}", self.folder.base, self.file.sha256)
    }

    /// Returns the file as the publisher describes it, with its name and media type.
    pub fn described(&self) -> Attachment {
        first_attachment(&self.change.item).unwrap_or_default()
    }

    /// Returns the change, whose first attachment is now the downloaded file at `url`.
    pub fn downloaded(self, url: String, size: u64) -> Followed {
        let described = self.described();
        let Self { mut change, file, .. } = self;
        // The stored file takes the publisher's place in the list: consumers find content at the same place
        // either way.
        if let Some(first) = change.item.extra.get_mut(ATTACHMENTS).and_then(|list| list.get_mut(0)) {
            *first = stored_file(url, &file.sha256, size, described);
        }
        change
    }
}

/// Folder for contents that are files, and how they are downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentFolder {
    /// URL of the folder, with a slash at its end.
    pub base: Arc<str>,
    /// Largest file to download, in bytes.
    pub max_file: u64,
    /// With [`FollowMode::CatchUp`] a download gives up after a few failures in a row.
    pub mode: FollowMode,
}

impl ContentFolder {
    /// Wraps a follower, whose changes with a file then come as [`Event::File`].
    pub fn of(self, follower: Box<dyn Follower>) -> Box<dyn Follower> {
        Box::new(FilteredFollower::new(self, follower))
    }

    /// Turns a change with a file into [`Event::File`]. Other events stay.
    pub fn detach(&self, event: Event) -> Event {
        let Event::Change(change) = event else { return event };
        match ContentFile::of(&change) {
            Some(file) => Event::File(Box::new(FileChange { change: *change, file, folder: self.clone() })),
            None => Event::Change(change),
        }
    }
}

/// Puts a file with the item's content in front of its attachments.
pub(crate) fn add_file(item: &mut Item, base: &str, sha256: &str, media_type: String, size: u64) {
    let described = Attachment { media_type: Some(media_type), ..Attachment::default() };
    let list = item.extra.entry(ATTACHMENTS).or_insert_with(|| Value::Array(Vec::new()));
    // A publisher may have something else under this name. It stays, and the file goes without a description.
    if let Value::Array(list) = list {
        list.insert(0, stored_file(format!("{base}{sha256}"), sha256, size, described));
    }
}

/// Returns the attachment of a file that was stored, by which programs that read lines find it.
fn stored_file(url: String, sha256: &str, size: u64, described: Attachment) -> Value {
    let file = Attachment { url, size: Some(size), sha256: Some(sha256.to_owned()), ..described };
    // Text and a number: writing them cannot fail.
    serde_json::to_value(file).unwrap_or_default()
}

impl FollowFilter for ContentFolder {
    fn filter(&mut self, event: Event) -> Option<Event> {
        Some(self.detach(event))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Content;

    const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn followed(attachments: Value) -> Followed {
        let mut item = Item::new("film");
        item.extra.insert(ATTACHMENTS.into(), attachments);
        Followed {
            feed: "films".into(),
            op: Op::Put,
            item,
            patch: None,
            modified: None,
            position: "1".into(),
            entry_id: None,
        }
    }

    fn folder() -> ContentFolder {
        ContentFolder { base: "file:///large/".into(), max_file: 10, mode: FollowMode::Continuous }
    }

    #[test]
    fn a_put_without_content_and_with_a_digest_has_a_file() {
        let file = json!({"url": "https://a.example/f/film.mp4", "size": 7, "sha256": DIGEST});
        let found = ContentFile::of(&followed(json!([file]))).unwrap();
        assert_eq!((found.url.as_str(), found.size), ("https://a.example/f/film.mp4", Some(7)));
        assert_eq!(found.sha256, DIGEST);
        for (key, value) in [
            ("sha256", json!(null)),
            ("sha256", json!("../../etc/passwd")),
            ("sha256", json!("é".repeat(32))),
            ("x", json!(1)),
            ("url", json!("file:///etc/passwd")),
            ("url", json!("/f/film.mp4")),
            ("url", json!(1)),
        ] {
            let mut other = file.clone();
            other[key] = value;
            assert_eq!(ContentFile::of(&followed(json!([other, file]))), None, "{other}");
        }
        assert_eq!(ContentFile::of(&followed(json!([]))), None);
        assert_eq!(ContentFile::of(&followed(json!({"0": file}))), None);
        let mut with_content = followed(json!([file]));
        with_content.item.content = Some(Content::new("text/plain", ""));
        assert_eq!(ContentFile::of(&with_content), None);
        let deleted = Followed { op: Op::Delete, ..followed(json!([file])) };
        assert_eq!(ContentFile::of(&deleted), None);
    }

    #[test]
    fn the_downloaded_file_takes_the_place_of_the_address() {
        let other = json!({"url": "https://a.example/cover.png", "media_type": "image/png"});
        let file =
            json!({"url": "https://a.example/film", "media_type": "video/mp4", "size": 7, "sha256": DIGEST});
        let Event::File(change) = folder().detach(Event::Change(Box::new(followed(json!([file, other])))))
        else {
            panic!("not a file");
        };
        let url = change.url_in_folder();
        let line: Value = serde_json::from_slice(&change.downloaded(url, 7).line_json()).unwrap();
        let local = format!("file:///large/{DIGEST}");
        assert_eq!(
            line["item"],
            json!({"attachments": [{"url": local, "media_type": "video/mp4", "size": 7, "sha256": DIGEST}, other]})
        );
    }

    #[test]
    fn other_events_stay() {
        let plain = Event::Change(Box::new(followed(json!([{"url": "https://a.example/film"}]))));
        for event in [plain, Event::Checkpoint(json!(1)), Event::Warning("w".into())] {
            assert_eq!(folder().detach(event.clone()), event);
        }
    }
}
