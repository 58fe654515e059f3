//! A first configuration.

use std::fmt::Write as _;

/// A feed of a first configuration, polled from a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StarterFeed {
    /// Id of the feed.
    pub id: String,
    /// URL of the source.
    pub url: String,
    /// Title for people, if a list has one.
    pub title: Option<String>,
}

const HEAD: &str = "\
# towpath's configuration. `towpath config example` prints every key, `towpath config check` finds mistakes.

[server]
# Address of the server. Other machines reach it at \"0.0.0.0:8080\", or behind a proxy.
listen = \"127.0.0.1:8080\"
# Public URL, once there is one. Links in feeds begin with it.
# base_url = \"https://feeds.example.com\"
data = \"data\"
# Programs on this machine may publish without a token. `towpath token new` makes one for others.
";

/// Returns a configuration with a feed for each source. Without any it has one to publish to.
pub fn starter(feeds: &[StarterFeed]) -> String {
    let mut text = HEAD.to_owned();
    if feeds.is_empty() {
        text.push_str(
            "\n# Publish to it: echo Hello | towpath put notes first -\n[[feed]]\nid = \"notes\"\n",
        );
    }
    // Texts of TOML: an address or title may have any character.
    let quoted = |text: &str| toml::Value::from(text.replace("${", "$${"));
    for StarterFeed { id, url, title } in feeds {
        let title = title.as_deref().map_or_else(String::new, |title| format!("title = {}\n", quoted(title)));
        let (id, url) = (quoted(id), quoted(url));
        let _ = write!(text, "\n[[feed]]\nid = {id}\n{title}[feed.source]\nurl = {url}\nevery = \"15m\"\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;
    use super::*;

    #[test]
    fn a_first_configuration_works() {
        let parse =
            |feeds: &[StarterFeed]| Config::parse(&starter(feeds), Path::new("towpath.toml")).unwrap();
        assert_eq!(parse(&[]).feeds[0].id().as_str(), "notes");
        let url = "https://example.com/?q=\"${X}\\".to_owned();
        let title = "\"A\" & ${B}\\'";
        let feed = StarterFeed { id: "aa".into(), url: url.clone(), title: Some(title.into()) };
        let config = parse(&[feed]);
        assert_eq!(config.feeds[0].title(), title);
        assert_eq!(config.feeds[0].source.as_ref().unwrap().url.as_deref(), Some(url.as_str()));
    }
}
