//! `towpath token`: makes tokens, and hashes of tokens, for the configuration.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand, ValueEnum};
use towpath_client::random::unguessable;

use super::error::{CliError, Exit};
use super::style::print_done;
use crate::config::{FeedPattern, TokenDigest};

/// Begin of every token that we make. Scanners for leaked secrets find it by this.
const PREFIX: &str = "towpath_";

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token, and print it with the lines for the configuration
    New(NewTokenArgs),
    /// Print the hash of a token that is read from standard input
    Hash,
}

#[derive(Debug, Args)]
pub(crate) struct NewTokenArgs {
    /// Name of the token, for the log
    name: String,
    /// Rights of the token
    #[arg(long, value_name = "RIGHTS", value_delimiter = ',', default_value = "read")]
    rights: Vec<RightArg>,
    /// Feeds to which the rights apply, such as news,orders-* [default: all feeds]
    #[arg(long, value_name = "FEEDS", value_delimiter = ',')]
    feeds: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RightArg {
    Read,
    Publish,
    Admin,
}

impl RightArg {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Publish => "publish",
            Self::Admin => "admin",
        }
    }
}

pub(crate) fn token(command: TokenCommand) -> Result<Exit, CliError> {
    let text = match command {
        TokenCommand::New(args) => new(&args)?,
        TokenCommand::Hash => hash()?,
    };
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written
        .map(|()| Exit::Done)
        .map_err(|e| CliError::failed(format!("cannot write to standard output: {e}")))
}

/// Makes a token: the first line is the token, the rest is for the configuration.
fn new(args: &NewTokenArgs) -> Result<String, CliError> {
    for feed in &args.feeds {
        FeedPattern::try_from(feed.clone()).map_err(|e| CliError::usage(format!("--feeds: {e}")))?;
    }
    // 256 bits: nobody guesses the token, and nobody finds it by its hash.
    let bytes = [unguessable().to_be_bytes(), unguessable().to_be_bytes()].concat();
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
    let quoted = |texts: &mut dyn Iterator<Item = &str>| {
        texts.map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ")
    };
    let rights = quoted(&mut args.rights.iter().map(|right| right.name()));
    let mut lines = format!(
        "{token}\n\n[[token]]\nname = {:?}\nhash = {:?}\nrights = [{rights}]\n",
        args.name,
        TokenDigest::of(&token).to_config()
    );
    if !args.feeds.is_empty() {
        let feeds = quoted(&mut args.feeds.iter().map(String::as_str));
        lines.push_str(&format!("feeds = [{feeds}]\n"));
    }
    print_done("the first line is the token, which is shown only now; the others are for the configuration");
    Ok(lines)
}

fn hash() -> Result<String, CliError> {
    let mut token = String::new();
    let read = std::io::stdin().lock().take(64 << 10).read_to_string(&mut token);
    read.map_err(|e| CliError::failed(format!("cannot read standard input: {e}")))?;
    // A request's header has no white space around the token.
    let token = token.trim();
    if token.is_empty() {
        return Err(CliError::usage("standard input is empty; it must have the token"));
    }
    Ok(format!("{}\n", TokenDigest::of(token).to_config()))
}
