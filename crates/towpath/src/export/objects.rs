//! A tree on object storage: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.
//!
//! Keys are the paths without their first slash, below the prefix. Content types and cache rules are kept with the
//! objects; what they have no place for is kept as metadata: `link` (all `Link` headers as one) and `supid`
//! (`X-SUP-ID`).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, BackoffConfig, Error, ObjectStore, ObjectStoreExt as _, ObjectStoreScheme,
    PutMode, PutMultipartOptions, PutOptions, RetryConfig, WriteMultipart,
};
use towpath_client::{explain, install_provider};
use towpath_proto::follow::TOWPATH_FEED;
use url::Url;

use crate::document::cors::CorsPolicy;
use crate::export::target::{Pieces, Target, TargetError};
use crate::export::tree_document::TreeDocument;

/// Advice for an address that is none of a place.
const KINDS_OF_PLACES: &str = "a place is a folder, or begins with s3://, gs:// or az://";

/// A bucket or a container, and a prefix of keys in it.
pub struct Objects {
    store: Box<dyn ObjectStore>,
    prefix: Path,
    place: String,
}

/// Limits of retries, in number and time: they bridge an outage of seconds.
fn patience() -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: Duration::from_millis(200), ..BackoffConfig::default() };
    // Longer outages are for the export's own backoff, which logs them.
    RetryConfig { backoff, max_retries: 5, retry_timeout: Duration::from_secs(60) }
}

/// Returns the kind of storage that an address names, and the prefix of keys in it.
///
/// # Errors
///
/// [`TargetError::Place`] for an address of no kind that a place can have.
pub(crate) fn storage_kind(url: &Url) -> Result<(ObjectStoreScheme, Path), TargetError> {
    let wrong = |reason: String| TargetError::Place { place: url.to_string(), reason };
    let (scheme, prefix) =
        ObjectStoreScheme::parse(url).map_err(|e| wrong(format!("{e}; {KINDS_OF_PLACES}")))?;
    match scheme {
        ObjectStoreScheme::AmazonS3
        | ObjectStoreScheme::GoogleCloudStorage
        | ObjectStoreScheme::MicrosoftAzure => Ok((scheme, prefix)),
        // A local folder is opened elsewhere, with renames and syncs, and a store in memory ends with the process.
        _ => Err(wrong(KINDS_OF_PLACES.into())),
    }
}

/// Opens the storage of an `s3:`, `gs:` or `az:` address, with credentials from the environment. Returns the prefix of
/// its keys as well.
///
/// # Errors
///
/// An unknown kind of address, or invalid credentials.
pub(crate) fn open_storage(url: &Url) -> Result<(Box<dyn ObjectStore>, Path), TargetError> {
    install_provider();
    let wrong = |reason: String| TargetError::Place { place: url.to_string(), reason };
    let (scheme, prefix) = storage_kind(url)?;
    let text = url.as_str();
    let store: Result<Box<dyn ObjectStore>, Error> = match scheme {
        ObjectStoreScheme::AmazonS3 => AmazonS3Builder::from_env()
            .with_url(text)
            .with_retry(patience())
            .build()
            .map(|store| Box::new(store) as Box<dyn ObjectStore>),
        ObjectStoreScheme::GoogleCloudStorage => GoogleCloudStorageBuilder::from_env()
            .with_url(text)
            .with_retry(patience())
            .build()
            .map(|store| Box::new(store) as Box<dyn ObjectStore>),
        // The third kind that a place can have.
        _ => MicrosoftAzureBuilder::from_env()
            .with_url(text)
            .with_retry(patience())
            .build()
            .map(|store| Box::new(store) as Box<dyn ObjectStore>),
    };
    Ok((store.map_err(|e| wrong(storage_reason(&e)))?, prefix))
}

impl Objects {
    /// Parsed address of a target; everything else comes from the environment.
    pub(super) fn open(url: &Url) -> Result<Self, TargetError> {
        let (store, prefix) = open_storage(url)?;
        Ok(Self::on(store, prefix, url.as_str()))
    }

    /// A tree in a store that is open.
    pub fn on(store: Box<dyn ObjectStore>, prefix: Path, place: &str) -> Self {
        Self { store, prefix, place: place.trim_end_matches('/').to_owned() }
    }

    fn key(&self, path: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(path).parts()))
    }

    fn error(&self, path: &str, error: &Error) -> TargetError {
        TargetError::Storage { address: format!("{}{path}", self.place), reason: storage_reason(error) }
    }
}

/// Parts of a large document that are sent at the same time, of 5 MiB each.
const PARTS: usize = 4;

#[async_trait]
impl Target for Objects {
    async fn read(&self, path: &str) -> Result<Option<Bytes>, TargetError> {
        let got = match self.store.get(&self.key(path)).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(self.error(path, &e)),
        };
        got.bytes().await.map(Some).map_err(|e| self.error(path, &e))
    }

    async fn put(&self, document: &TreeDocument) -> Result<u64, TargetError> {
        let options = PutOptions { attributes: attributes(document), ..PutOptions::default() };
        let put = self.store.put_opts(&self.key(&document.path), document.body.clone().into(), options).await;
        put.map_err(|e| self.error(&document.path, &e))?;
        Ok(document.body.len() as u64)
    }

    async fn put_pieces(&self, document: &TreeDocument, mut pieces: Pieces) -> Result<u64, TargetError> {
        let failed = |e: Error| self.error(&document.path, &e);
        let options =
            PutMultipartOptions { attributes: attributes(document), ..PutMultipartOptions::default() };
        let upload =
            self.store.put_multipart_opts(&self.key(&document.path), options).await.map_err(failed)?;
        let (mut writing, mut bytes) = (WriteMultipart::new(upload), 0);
        while let Some(piece) = pieces.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(e) => {
                    // Parts of an upload that is neither completed nor aborted stay, invisible, and are paid for.
                    writing.abort().await.map_err(failed)?;
                    return Err(TargetError::body(document, &e));
                }
            };
            bytes += piece.len() as u64;
            // A file may be larger than memory: no more than these parts wait to be sent.
            if let Err(e) = writing.wait_for_capacity(PARTS).await {
                // What failed is told, not that the storage does not take this either.
                let _ = writing.abort().await;
                return Err(failed(e));
            }
            writing.put(piece);
        }
        writing.finish().await.map_err(failed)?;
        Ok(bytes)
    }

    async fn create(&self, document: &TreeDocument) -> Result<bool, TargetError> {
        let mode = PutMode::Create;
        let options = PutOptions { attributes: attributes(document), mode, ..PutOptions::default() };
        let key = self.key(&document.path);
        match self.store.put_opts(&key, document.body.clone().into(), options).await {
            Ok(_) => Ok(true),
            // Backends report a lost condition in either way.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // Storage without conditional writes: two writers at once may both believe that they came first.
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
                self.put(document).await.map(|_| true)
            }
            Err(e) => Err(self.error(&document.path, &e)),
        }
    }

    /// Object storage has no incomplete writes to remove.
    async fn take_over(&self) -> Result<(), TargetError> {
        Ok(())
    }

    async fn remove(&self, path: &str) -> Result<(), TargetError> {
        match self.store.delete(&self.key(path)).await {
            // A killed export may have removed it already.
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.error(path, &e)),
        }
    }

    /// Acknowledged objects are durable.
    async fn sync(&self) -> Result<(), TargetError> {
        Ok(())
    }

    fn configuration(&self, _base_url: &str, _cors: &CorsPolicy) -> Vec<TreeDocument> {
        Vec::new()
    }
}

fn attributes(document: &TreeDocument) -> Attributes {
    let mut attributes = Attributes::new();
    let links = document.links();
    let kept = [
        (Attribute::ContentType, document.header(CONTENT_TYPE.as_str())),
        (Attribute::CacheControl, document.header(CACHE_CONTROL.as_str())),
        // Object storage has no `Link` header: a proxy in front can make it of the metadata.
        (Attribute::Metadata("link".into()), links.as_deref()),
        (Attribute::Metadata("supid".into()), document.header("x-sup-id")),
        (Attribute::Metadata("feed".into()), document.header(TOWPATH_FEED)),
    ];
    for (name, value) in kept {
        if let Some(value) = value {
            attributes.insert(name, value.to_owned().into());
        }
    }
    attributes
}

/// Formats the cause of an error and a remedy, in one line.
pub(crate) fn storage_reason(error: &Error) -> String {
    let cause = explain::reason(error);
    let help = match error {
        Error::NotFound { .. } => "there is no such bucket",
        Error::PermissionDenied { .. } => "the credentials do not allow this",
        Error::Unauthenticated { .. } => "the credentials are wrong, or there are none",
        _ => return cause,
    };
    format!("{help}: {cause}")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn documents_have_their_headers_and_prefix() {
        let store = std::sync::Arc::new(InMemory::new());
        let objects = Objects::on(Box::new(store.clone()), Path::from("my/tree"), "s3://bucket/my/tree/");
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("multipart/mixed; boundary=\"x\""));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.append("link", HeaderValue::from_static("<a>; rel=self"));
        headers.append("link", HeaderValue::from_static("<b>; rel=prev"));
        headers.insert("x-sup-id", HeaderValue::from_static("https://a.example/sup.json#1"));
        headers.insert(TOWPATH_FEED, HeaderValue::from_static("kev"));
        let path = "/feeds/kev/replication".to_owned();
        let document = TreeDocument { path: path.clone(), body: Bytes::from_static(b"12345"), headers };
        assert!(objects.create(&document).await.unwrap() && !objects.create(&document).await.unwrap());
        assert_eq!(objects.put(&document).await.unwrap(), 5);
        let got = store.get(&Path::from("my/tree/feeds/kev/replication")).await.unwrap();
        let attribute = |name| got.attributes.get(&name).map(|value| value.as_ref().to_owned());
        assert_eq!(attribute(Attribute::CacheControl).as_deref(), Some("no-cache"));
        assert_eq!(attribute(Attribute::ContentType).as_deref(), Some("multipart/mixed; boundary=\"x\""));
        let links = attribute(Attribute::Metadata("link".into()));
        assert_eq!(links.as_deref(), Some("<a>; rel=self, <b>; rel=prev"));
        assert_eq!(attribute(Attribute::Metadata("feed".into())).as_deref(), Some("kev"));
        assert_eq!(objects.read(&path).await.unwrap().as_deref(), Some(&b"12345"[..]));
        objects.remove(&path).await.unwrap();
        objects.remove(&path).await.unwrap();
        assert_eq!(objects.read(&path).await.unwrap(), None);
    }

    #[test]
    fn an_address_that_is_no_storage_is_refused() {
        for bad in ["ftp://a/b", "s3://", "http://", "memory:///x"] {
            let opened = crate::export::open_target(bad);
            assert!(matches!(opened, Err(TargetError::Place { .. })), "{bad}");
        }
    }
}
