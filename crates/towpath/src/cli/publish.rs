//! `towpath put`, `delete` and `import`: publish through a running server, or directly into the data folder.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use towpath_proto::{Content, Item, NewChange};

use super::error::{CliError, Exit};
use super::import;
use super::publish_target::{TargetArgs, feed_id};
use super::style::{OutputFormat, print_result};
use super::terminal::plain;
use crate::server::publish::UrlRule;

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Id of the feed
    feed: String,
    /// Id of the item
    id: String,
    /// Media type of the content [default: by the file name, else text/plain or application/octet-stream]
    #[arg(long = "type", value_name = "MEDIA")]
    media_type: Option<String>,
    /// Title of the item
    #[arg(long, value_name = "T")]
    title: Option<String>,
    /// URL of the item's subject
    #[arg(long, value_name = "U")]
    url: Option<String>,
    /// File with the content; "-" reads standard input [default: no content]
    file: Option<PathBuf>,
    /// Form of the receipt
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Id of the feed
    feed: String,
    /// Id of the item
    id: String,
    /// Form of the receipt
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Id of the feed
    feed: String,
    /// File in NDJSON (as `towpath follow` prints it), RSS, Atom or JSON Feed; "-" reads standard input
    file: PathBuf,
    /// Form of the receipt
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

/// Publishes one item.
pub(crate) async fn put(args: PutArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let mut item = Item::new(args.id);
    item.check().map_err(|e| CliError::usage(e.to_string()))?;
    item.title = args.title;
    item.url = args.url;
    UrlRule::Web.check(&item).map_err(|(_, reason)| CliError::usage(format!("--url: {reason}")))?;
    item.content = match &args.file {
        Some(file) => Some(content(file, args.media_type)?),
        None if args.media_type.is_some() => return Err(CliError::usage("--type needs a FILE")),
        None => None,
    };
    let target = args.target.open_for(&feed).await?;
    let id = item.id.clone();
    let published = target.append(&feed, vec![NewChange::put(item)]).await;
    target.close().await;
    let receipt = published?;
    let line = json!({ "feed": feed, "id": id, "op": "put", "receipt": receipt });
    print_result(args.format, &(receipt.of_put(feed.as_str(), &id) + &target.place()), &line)?;
    Ok(Exit::Done)
}

/// Deletes one item.
pub(crate) async fn delete(args: DeleteArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open_for(&feed).await?;
    let deleted = target.delete(&feed, &args.id).await;
    target.close().await;
    let receipt = deleted?;
    let line = json!({ "feed": feed, "id": args.id, "op": "delete", "receipt": receipt });
    let text = format!(
        "deleted item {} from feed {feed}: change {}{}",
        plain(&args.id),
        receipt.last,
        target.place()
    );
    print_result(args.format, &text, &line)?;
    Ok(Exit::Done)
}

/// Publishes the items of a file.
pub(crate) async fn import(args: ImportArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open_for(&feed).await?;
    let imported = import::import(&target, &feed, &args.file).await;
    target.close().await;
    let import::Imported { receipt, left_out } = imported?;
    let line = json!({ "feed": feed, "receipt": receipt });
    print_result(args.format, &(receipt.of_import(feed.as_str()) + &target.place()), &line)?;
    Ok(if left_out == 0 { Exit::Done } else { Exit::Incomplete })
}

/// Reads the content of an item.
fn content(file: &Path, media_type: Option<String>) -> Result<Content, CliError> {
    let mut bytes = Vec::new();
    // Read as a whole: an item is one request, and one value in the log.
    let read = if file == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(file).map(|read| bytes = read)
    };
    read.map_err(|e| CliError::failed(format!("cannot read {}: {e}", file.display())))?;
    let media_type = media_type.unwrap_or_else(|| guess(file, &bytes).to_owned());
    let content = Content::new(media_type, bytes);
    content.check_type().map_err(|e| CliError::usage(e.to_string()))?;
    Ok(content)
}

/// Returns the media type of a file, by its name, or else by its bytes.
fn guess(file: &Path, bytes: &[u8]) -> &'static str {
    match file.extension().and_then(|e| e.to_str()).unwrap_or_default() {
        "json" => "application/json",
        "html" | "htm" => "text/html; charset=utf-8",
        "xml" => "application/xml",
        "md" => "text/markdown; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "pdf" => "application/pdf",
        // Declared as UTF-8 only if it is: readers trust the charset.
        _ if std::str::from_utf8(bytes).is_ok() => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
